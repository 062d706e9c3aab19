"""``strategy: model_parallel``: one process, whose model's layers lie on several devices, one after the other.

A block's inputs are moved to its device when its forward pass begins, and the model's output back to the first device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from ..errors import TrainingError
from ..task import Task
from .fully import blocks_of

__all__ = ["devices_of", "laid_out"]


def devices_of(first: torch.device) -> list[torch.device]:
    """Return all devices of this process; on a CPU there is but one."""
    if first.type != "cuda":
        return [first]
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]


def laid_out(model: nn.Module, task: Task, devices: Sequence[torch.device]) -> nn.Module:
    """Lay the model's blocks out over the devices, in their order, such that each has about as many parameters.

    Modules outside of blocks go where the block before them is; those before all blocks, and parameters of the model itself,
    to the first device.

    Raises:
        TrainingError: a parameter is used by modules on two devices.
    """
    blocks = {id(each) for each in blocks_of(model, task)}
    pieces = list(_in_order(model, blocks))
    places = _shared_out([_size(each) for each, _ in pieces], len(devices))
    where: dict[int, tuple[int, str]] = {}
    now = 0
    for (module, name), wanted in zip(pieces, places):
        now = wanted if id(module) in blocks else now
        for parameter in module.parameters():
            place, other = where.setdefault(id(parameter), (now, name))
            if place != now:
                raise TrainingError(
                    f"strategy model_parallel: {other} and {name} have a parameter in common, and would lie on two devices; "
                    "untie them, or use strategy fsdp2"
                )
        module.to(devices[now])
        module.register_forward_pre_hook(_bring(devices[now]), with_kwargs=True)
    for tensor in [*model.parameters(recurse=False), *model.buffers(recurse=False)]:
        tensor.data = tensor.data.to(devices[0])
    model.register_forward_hook(lambda _module, _inputs, output: _moved(output, devices[0]))
    return model


def _in_order(model: nn.Module, blocks: set[int], name: str = "") -> Iterable[tuple[nn.Module, str]]:
    """Return the blocks, and of what is outside of them the modules without modules inside, in the order of the model."""
    for child_name, child in model.named_children():
        full = f"{name}.{child_name}" if name else child_name
        if id(child) in blocks or not any(True for _ in child.children()):
            yield child, full
        else:
            own = [*child.parameters(recurse=False), *child.buffers(recurse=False)]
            if own:
                raise TrainingError(
                    f"strategy model_parallel: {full} has parameters of its own beside the modules inside: name it as a block in "
                    "shards(model)"
                )
            yield from _in_order(child, blocks, full)


def _size(module: nn.Module) -> int:
    return sum(each.numel() * each.element_size() for each in module.parameters())


def _shared_out(sizes: Sequence[int], parts: int) -> list[int]:
    """Return which part each of these belongs to, in their order: that in which its middle lies."""
    total, before, found = max(1, sum(sizes)), 0, []
    for size in sizes:
        found.append(min(parts - 1, (2 * before + size) * parts // (2 * total)))
        before += size
    return found


def _bring(device: torch.device) -> Any:
    def bring(_module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
        return _moved(inputs, device), _moved(named, device)

    return bring


def _moved(value: Any, device: torch.device) -> Any:
    """Return the value with its tensors on the device."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {name: _moved(each, device) for name, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_moved(each, device) for each in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(each, device) for each in value)
    return value
