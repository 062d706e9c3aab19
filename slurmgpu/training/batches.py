"""Batches of any kind: what tensors they hold, and how they come to the device.

A batch is a tensor, a mapping, a list or tuple, a dataclass, or any mixture of these; or an object that knows itself how it
gets to a device, with a method ``to(device)``, such as torch_geometric's ``Batch`` or transformers' ``BatchEncoding``.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

__all__ = ["keep_for", "own_copy", "pinned", "to_device"]

_DEPTH = 6  # of objects in objects


def to_device(batch: object, device: torch.device) -> object:
    """Return the batch on the device; from pinned memory the copy does not wait."""
    if device.type == "cpu":
        return batch
    return move(batch, device)


def move(batch: object, device: torch.device) -> object:
    """Return the batch on the device, whichever that is."""

    def its_own(value: Any) -> object:
        try:
            return value.to(device, non_blocking=True)
        except TypeError:  # its own takes the device alone
            return value.to(device)

    return _each(batch, lambda tensor: tensor.to(device, non_blocking=True), "to", its_own)


def own_copy(value: Any) -> Any:
    """Return the value on the CPU, with tensors of its own: a part of a larger one would keep, and send, all of it."""
    return _each(
        value, lambda tensor: tensor.detach().to("cpu", copy=True), "to", lambda its_own: its_own.to("cpu")
    )


def pinned(batch: object) -> object:
    """Return the batch in pinned memory, from where it can be copied during a step."""
    return _each(batch, _pin, "pin_memory", lambda value: value.pin_memory())


def _pin(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_cuda else tensor.pin_memory()


def _each(
    batch: object, act: Callable[[torch.Tensor], torch.Tensor], method: str, its_own: Callable[[Any], object]
) -> object:
    """Return the batch with each tensor acted on; an object that has the method itself does it itself."""
    if isinstance(batch, torch.Tensor):
        return act(batch)
    if type(batch) not in (dict, list, tuple) and callable(getattr(batch, method, None)):
        return its_own(batch)
    if isinstance(batch, Mapping):
        moved = {key: _each(value, act, method, its_own) for key, value in batch.items()}
        if isinstance(batch, dict) or not isinstance(batch, MutableMapping):
            return moved
        changed = copy.copy(batch)  # torch's collate keeps such a class too
        changed.update(moved)
        return changed
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        named: Callable[..., object] = type(batch)
        return named(*(_each(value, act, method, its_own) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(_each(value, act, method, its_own) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        other = copy.copy(batch)
        for field in dataclasses.fields(batch):
            # Also of one that is frozen.
            object.__setattr__(other, field.name, _each(getattr(batch, field.name), act, method, its_own))
        return other
    return batch


def keep_for(batch: object, stream: torch.cuda.Stream) -> None:
    """Let a batch that was copied on another stream live until this stream's work of now is done."""
    for tensor in tensors(batch, _DEPTH):
        if tensor.is_cuda:
            tensor.record_stream(stream)  # or its memory could be given away while the step still reads it


def tensors(value: object, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    """Yield the tensors in a batch, those in the attributes of objects too."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (str, bytes, int, float, type(None))) or not depth:
        return
    elif isinstance(value, Mapping):
        for each in list(value.values()):
            yield from tensors(each, depth - 1)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors(each, depth - 1)
    if not isinstance(value, torch.Tensor):
        for each in list(getattr(value, "__dict__", {}).values()):
            yield from tensors(each, depth - 1)
