"""``strategy: fsdp2``: each process keeps a piece of each parameter, of its gradient and of the optimizer's state.

A block's parameters are gathered when its forward pass begins, and given back at its end; once more for its backward pass,
whose gradients are averaged into the pieces. The source: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Optional

import torch
from torch import nn

from ..errors import SettingsError, TrainingError
from ..processes.group import Group
from ..settings import Settings
from ..task import Task
from .meta_init import MetaInit

__all__ = [
    "blocks_of",
    "fully_sharded",
    "refuse",
    "require_torch",
    "require_torch_of",
]

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def require_torch() -> None:
    """Refuse a torch that does not have it.

    Raises:
        SettingsError: this torch is older than 2.6.
    """
    try:
        from torch.distributed.fsdp import fully_shard  # noqa: F401
    except ImportError:
        raise SettingsError(
            f"strategy fsdp2 needs torch 2.6 or newer, and here is {torch.__version__}: use an environment with a newer "
            "one, or strategy ddp"
        ) from None


def require_torch_of(device: torch.device) -> None:
    """Refuse a torch that has it for GPUs alone, on a CPU.

    Raises:
        SettingsError: this one does.
    """
    if device.type == "cpu" and not hasattr(torch.cpu.current_stream(), "record_event"):
        raise SettingsError(
            f"strategy fsdp2 on the CPU needs a newer torch than {torch.__version__}, which has it for GPUs alone: use an "
            "environment with torch 2.13, say, or strategy ddp"
        )


def refuse(task: Task) -> None:
    """Raise SettingsError where the task has what cannot be done with a sharded model; the message says what to do."""
    if task.has("step"):
        raise SettingsError(
            "strategy fsdp2 shares gradients where the model's own forward is called, and the task's step calls what it "
            "likes: use strategy ddp"
        )


def fully_sharded(
    model: nn.Module, task: Task, settings: Settings, group: Group, meta: Optional[MetaInit] = None
) -> nn.Module:
    """Shard the model, in place: its blocks first, then what is left; rank 0's parameters are what is shared out.

    ``meta`` gives a model on the meta device its first values.

    The blocks are those that the task's ``shards(model)`` returns, or else its ``blocks(model)``; or else the modules in each
    outermost ``ModuleList``, or, where there is none, the model's children.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    group.share(model)
    options: dict[str, Any] = {"mesh": init_device_mesh(group.device.type, (group.pieces,))}
    if settings.precision != "fp32":
        options["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=_DTYPES[settings.precision], reduce_dtype=torch.float32
        )
    if not settings.reshard_after_forward:
        options["reshard_after_forward"] = False
    if settings.cpu_offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=group.device.type == "cuda")
    names = _names_of_parameters(model)
    blocks = [
        each
        for each in _innermost_first(model, blocks_of(model, task))
        # A weight that is tied over blocks stays with the model itself: one group has to have it.
        if all(names[one] == count for one, count in _names_of_parameters(each).items())
    ]
    if "mp_policy" in options:
        # Beside half-precision values they take weights of the precision of their buffers, which is fp32, and no others.
        norms = [each for each in model.modules() if isinstance(each, nn.modules.batchnorm._NormBase)]
        for norm in norms:
            if norm is not model:
                fully_shard(norm, **{**options, "mp_policy": MixedPrecisionPolicy(cast_forward_inputs=False)})
        blocks = [each for each in blocks if each not in norms]
    if meta is not None:
        meta.fill_blocks(model, blocks)
    for block in blocks:
        if settings.compile:
            _compile(block, blocks)
        if any(True for _ in block.parameters()):
            fully_shard(block, **options)
    try:
        fully_shard(model, **options)
    except ValueError as error:
        raise TrainingError(f"strategy fsdp2: torch cannot shard {type(model).__name__}: {error}") from error
    if meta is not None:
        meta.place_pieces(model, torch.device("cpu") if settings.cpu_offload else group.device)
    return model


def _names_of_parameters(module: nn.Module) -> Counter[int]:
    """Return under how many names a module has each of its parameters: tied ones have several."""
    return Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))


def _compile(block: nn.Module, blocks: Iterable[nn.Module]) -> None:
    """Compile what a block computes, and not what gathers it, which comes around it; one with blocks inside stays as it is."""
    inside = {id(each) for each in block.modules()} - {id(block)}
    if not any(id(each) in inside for each in blocks):
        block.forward = torch.compile(block.forward)


def blocks_of(model: nn.Module, task: Task) -> list[nn.Module]:
    """Return the modules that stay together, as the task says, or by default."""
    found = task.shards(model)
    return list(_default_blocks(model)) if found is None else found


def _default_blocks(model: nn.Module) -> Iterable[nn.Module]:
    lists = list(_outermost_lists(model))
    if lists:
        return [block for each in lists for block in each]
    return [each for each in model.children() if not isinstance(each, (nn.ModuleDict, nn.ParameterList))]


def _outermost_lists(module: nn.Module) -> Iterable[nn.ModuleList]:
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield child
        else:
            yield from _outermost_lists(child)


def _innermost_first(model: nn.Module, blocks: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the blocks once each, such that one inside of another comes before it; the model itself comes last, by itself."""
    order: dict[int, Optional[int]] = {id(each): place for place, each in enumerate(model.modules())}
    once = {id(each): each for each in blocks if each is not model and not isinstance(each, nn.ModuleList)}
    return sorted(once.values(), key=lambda each: -(order.get(id(each)) or 0))
