"""This process's pieces of sharded tensors; of any other tensor, the tensor itself.

torch keeps a sharded tensor as a ``DTensor`` (from 2.5 on in public). Here it is known by its class's name, so that an
older torch needs no import of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch
import torch.distributed as dist

__all__ = ["is_sharded", "local", "norm", "scale_down", "settle"]


def is_sharded(value: object) -> bool:
    """Return True if a tensor is one of which each process has a piece."""
    return isinstance(value, torch.Tensor) and type(value) not in _PLAIN and _is_dtensor(value)


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _is_dtensor(value: torch.Tensor) -> bool:
    return any(kind.__name__ == "DTensor" for kind in type(value).__mro__)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's piece, in the same memory; without a record for a backward pass."""
    if not is_sharded(tensor):
        return tensor
    piece: torch.Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
    return piece


def settle(model: torch.nn.Module) -> None:
    """Give back what forward passes have gathered: from now on the model's parameters are the pieces again.

    After a forward pass without a backward pass, FSDP keeps the outermost module's parameters whole, and would go on with
    these after the pieces have changed.
    """
    for module in model.modules():
        reshard = getattr(module, "reshard", None)
        if reshard is not None and any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__):
            reshard()


def norm(gradients: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return the norm of all gradients together, each counted once, the same on every rank.

    ``torch.nn.utils.get_total_norm`` takes those of one mesh alone, and none on a CPU beside GPUs that talk by NCCL.
    """
    squares: dict[Any, list[torch.Tensor]] = {}
    for each in gradients:
        square = torch.linalg.vector_norm(local(each), dtype=torch.float32).square().to(device)
        squares.setdefault(getattr(each, "device_mesh", None), []).append(square)
    total = torch.zeros((), device=device)
    for mesh, own in squares.items():
        part = torch.stack(own).sum()
        if mesh is not None:  # each process has the squares of its pieces
            dist.all_reduce(part, group=mesh.get_group())
        total = total + part
    return total.sqrt()


def scale_down(gradients: Sequence[torch.Tensor], total: torch.Tensor, clip: Optional[float]) -> None:
    """Scale gradients down to a norm of ``clip``, if theirs is larger, as ``torch.nn.utils.clip_grad_norm_`` does."""
    if clip is None:
        return
    factor = (clip / (total + 1e-6)).clamp(max=1.0)
    for each in gradients:
        piece = local(each)
        piece.mul_(factor.to(piece.device))
