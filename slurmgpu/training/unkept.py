"""What a task and its model keep in attributes, which no checkpoint has: whether it changes while the training goes on."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator
from typing import Optional

import torch
from torch import nn

from .generators import own_attributes, raw_bytes

__all__ = ["Unkept"]

# Values of a tensor, beyond which it is not looked at.
_MOST = 1 << 16


class Unkept:
    """Numbers, texts, containers and tensors in attributes of the task and of the model's modules.

    Such as a temperature that falls with each forward pass. Buffers that are not persistent count, too.
    """

    def __init__(self, user: object, model: nn.Module) -> None:
        self._user, self._model = user, model
        self._before: Optional[dict[str, object]] = None

    def changed(self) -> list[str]:
        """What is not as it was at the first call, which is to be after a step: many are set by the first batch for good."""
        now = dict(self._all())
        if self._before is None:
            self._before = now
        return [name for name, mark in now.items() if name in self._before and self._before[name] != mark]

    def _all(self) -> Iterator[tuple[str, object]]:
        for where, module in self._model.named_modules(prefix="model"):
            for name in module._non_persistent_buffers_set:
                yield f"{where}.{name}", _mark(getattr(module, name))
            yield from _marks(where, module)
        if self._user is not self._model:
            yield from _marks(type(self._user).__name__, self._user)


def _marks(where: str, holder: object) -> Iterator[tuple[str, object]]:
    kept = own_attributes(holder) if isinstance(holder, nn.Module) else getattr(holder, "__dict__", {})
    for name, value in list(kept.items()):
        mark = _mark(value)
        if mark is not None:
            yield f"{where}.{name}", mark


def _mark(value: object) -> Optional[tuple[object, ...]]:
    """Return what tells two values apart at little cost; None: of this kind it is not known."""
    if isinstance(value, torch.Tensor):
        # By its values: DDP writes each buffer anew before a forward pass, and it is the same.
        known = value.numel() <= _MOST and not value.is_meta  # as what other processes of a pipeline have
        return ("tensor", zlib.crc32(raw_bytes(value))) if known else None
    if isinstance(value, (bool, int, float, str)):
        return "plain", repr(value)
    if isinstance(value, Collection) and hasattr(value, "__len__"):
        return "length", len(value)
    return None
