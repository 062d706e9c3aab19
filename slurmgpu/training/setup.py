"""From the task's model to the one that is trained: frozen, laid out, compiled, spread over the ranks."""

from __future__ import annotations

import fnmatch
import functools
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from .errors import SettingsError
from .precision import Precision
from .processes.group import Group
from .settings import Config, Settings
from .task import Task

__all__ = ["built", "make_model", "set_backends", "spread"]


def set_backends(settings: Settings) -> None:
    """Set what torch keeps for the whole process: TF32, cuDNN's choice of algorithms, determinism."""
    deterministic = settings.deterministic
    if torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32 = settings.tf32
        torch.backends.cudnn.allow_tf32 = settings.tf32
        torch.backends.cudnn.benchmark = settings.cudnn_benchmark and not deterministic
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as cuBLAS asks (its manual, 2.1.4)
        torch.use_deterministic_algorithms(True)


def has_pieces(settings: Settings, group: Group) -> bool:
    """Return True if each process keeps a piece of the model (fsdp2); by one process alone there is nothing to share out."""
    return settings.strategy == "fsdp2" and group.pieces > 1


def has_stages(settings: Settings, group: Group) -> bool:
    """Return True if each process has a stage of the model (pipeline)."""
    return settings.strategy == "pipeline" and group.together


def make_model(
    task: Task, cfg: Config, settings: Settings, device: Optional[torch.device]
) -> torch.nn.Module:
    """Return the task's model on the device (None: where the task made it), with what is to be frozen frozen."""
    model = built(task, cfg, settings)
    if settings.channels_last:
        return model.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
    return model.to(device)


def built(task: Task, cfg: Config, settings: Settings) -> torch.nn.Module:
    """Return the same where the task has made it."""
    model = task.model(cfg)
    if settings.activation_checkpointing:
        for block in task.blocks(model):
            _around_forward(block, _recompute)
    if settings.freeze:
        _freeze(model, settings.freeze)
    return model


def _around_forward(module: torch.nn.Module, around: Callable[..., object]) -> None:
    """Replace the module's forward by ``around(forward, ...)``, in a subclass.

    Not by an attribute: DataParallel's replicas would call the original's, with its parameters.
    """
    kind = type(module)

    def forward(self: torch.nn.Module, *arguments: object, **named: object) -> object:
        return around(functools.partial(kind.forward, self), *arguments, **named)

    module.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _recompute(forward: Callable[..., object], *arguments: Any, **named: Any) -> object:
    if not torch.is_grad_enabled():
        return forward(*arguments, **named)
    return checkpoint(forward, *arguments, use_reentrant=False, **named)


def _freeze(model: torch.nn.Module, patterns: Sequence[str]) -> None:
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise SettingsError(
                f"freeze: no parameter is named like {pattern!r}; there are {', '.join(names)}"
            )
    for name, parameter in model.named_parameters():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SettingsError(f"freeze: {', '.join(patterns)} leaves nothing to train")


def spread(
    model: torch.nn.Module, settings: Settings, group: Group, own_step: bool = False
) -> torch.nn.Module:
    """Return the model as the training calls it; all ranks get rank 0's parameters, and share gradients from now on."""
    device = group.device
    wrapped = model
    if has_pieces(settings, group):
        return model
    if own_step:
        if settings.strategy == "dp":
            raise SettingsError(
                "strategy dp spreads what goes through the model's own forward, and the task's step calls what it likes: "
                "use ddp, with a process for each GPU"
            )
        group.share(model)
    elif settings.strategy == "dp":
        if settings.precision != "fp32":
            _cast_in_replicas(model, settings, device)
        if device.type == "cuda":
            wrapped = DataParallel(model)
    elif group.together:
        wrapped = DistributedDataParallel(
            model,
            device_ids=[device.index] if device.type == "cuda" else None,
            find_unused_parameters=settings.find_unused_parameters,
            **_buffers(settings.broadcast_buffers),
            gradient_as_bucket_view=True,
            static_graph=settings.static_graph,
            bucket_cap_mb=settings.bucket_cap_mb,
        )
    return torch.compile(wrapped) if settings.compile else wrapped  # type: ignore[return-value]


def _buffers(broadcast: bool) -> dict[str, Any]:
    """DDP's argument about buffers, whose older name newer releases warn of."""
    if broadcast:
        return {}
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False}


def _cast_in_replicas(model: torch.nn.Module, settings: Settings, device: torch.device) -> None:
    """Enter autocast in the forward pass itself: DataParallel's threads would use torch's default, fp16, and not bf16."""
    precision = Precision(settings.precision, device, settings.init_scale)

    def cast(forward: Callable[..., object], *arguments: object, **named: object) -> object:
        with precision.autocast():
            return forward(*arguments, **named)

    _around_forward(model, cast)
