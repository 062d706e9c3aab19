"""Checksums of what a step has worked out, of each rank: ``checksums/rank-R.jsonl``, for ``slurmgpu checkpoint replay``.

A checksum is the sum of the bit patterns, each times a number of its own: one flipped bit anywhere changes it, and so do two
errors that a plain sum would not show, as where one value is rounded up and another down. That of the gradients is of this
rank's own, before they are averaged over the ranks: it tells which rank was wrong.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Optional

import torch

from ..errors import TrainingError
from ..sharding.local import local
from .metrics import Metrics

__all__ = ["Checksums", "Sums", "checksum"]

_AS_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


_COLUMNS = 4096
_MASK = 2**64 - 1
# splitmix64's, by which neighbours become numbers that have nothing to do with each other.
_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of a tensor's bit patterns, each times an odd number for its place, modulo 2**64, on its device.

    Of a sharded one this process's piece. The place's number is that of its column and of its row, with the tensor laid out in
    rows of some thousand values: so they need not be worked out for each of them.
    """
    piece = local(tensor).detach()
    if piece.layout is not torch.strided:
        piece = piece.coalesce()._values() if piece.is_sparse else piece.to_dense()
    if piece.element_size() > 8:
        piece = torch.view_as_real(piece)
    flat = piece.contiguous().reshape(-1)
    whole = flat.view(_AS_WHOLE[flat.element_size()]).to(torch.int64)
    rows, along = len(whole) // _COLUMNS, _along(whole.device)
    rest = whole[rows * _COLUMNS :]
    found = (rest * along[: len(rest)]).sum()
    if rows:
        table = whole[: rows * _COLUMNS].view(rows, _COLUMNS)
        found = (
            found + (table.sum(0) * along).sum() + (table.sum(1) * (_mixed(rows, whole.device) << 1)).sum()
        )
    return found


@functools.cache
def _along(device: torch.device) -> torch.Tensor:
    """Return the number of each column: odd, so that no bit of a value is lost; those of rows are even, for the same reason."""
    return _mixed(_COLUMNS, device) | 1


def _mixed(count: int, device: torch.device) -> torch.Tensor:
    first, second, third = (each - 2**64 if each >= 2**63 else each for each in _MIX)
    found = torch.arange(1, count + 1, device=device) * first
    found = (found ^ (found >> 30)) * second
    found = (found ^ (found >> 27)) * third
    return found ^ (found >> 31)


@functools.cache
def _of(number: int, name: str = "") -> int:
    """Return the odd number of a tensor, by that of its parameter and its name beside it; as torch takes it, with a sign."""
    found = number * _MIX[0] + zlib.crc32(name.encode()) & _MASK
    for shift, factor in ((30, _MIX[1]), (27, _MIX[2])):
        found = (found ^ (found >> shift)) * factor & _MASK
    found |= 1
    return found - 2**64 if found >= 2**63 else found


class Sums:
    """Works out the checksums of a step while it is taken; ``losses`` gives the list that the step adds to."""

    def __init__(
        self, model: torch.nn.Module, optimizers: Iterable[Any], losses: Callable[[], list[Any]]
    ) -> None:
        self._model, self._optimizers, self._losses = model, list(optimizers), losses
        self._gradients: Optional[dict[torch.device, torch.Tensor]] = None
        for number, parameter in enumerate(model.parameters(), 1):
            if parameter.requires_grad:
                # Of a leaf it is called with what is about to be added to its gradient, before DDP averages that.
                hook = functools.partial(self._take_gradient, number)
                parameter.register_hook(hook)  # type: ignore[no-untyped-call, unused-ignore]

    def of(self, take: Callable[[int], None], size: int) -> dict[str, Any]:
        """Take a step; what it has worked out, by name."""
        self._gradients, known = {}, len(self._losses())
        try:
            take(size)
            return {
                "losses": [float(each) for each in self._losses()[known:]],
                "gradients": _hex(self._gradients),
                "weights": _hex(self._weights()),
                "optimizer": _hex(self._states()),
            }
        finally:
            self._gradients = None

    def _take_gradient(self, number: int, gradient: torch.Tensor) -> None:
        if self._gradients is not None:
            # Times a number of the parameter's own, or two gradients changed places unseen.
            _add(self._gradients, checksum(gradient) * _of(number))

    def _weights(self) -> dict[torch.device, torch.Tensor]:
        sums: dict[torch.device, torch.Tensor] = {}
        for number, each in enumerate((*self._model.parameters(), *self._model.buffers()), 1):
            if not each.is_meta:  # another stage's
                _add(sums, checksum(each) * _of(number))
        return sums

    def _states(self) -> dict[torch.device, torch.Tensor]:
        """By parameter and name: the order of an optimizer's states is that of its first steps, and after a resume another."""
        sums: dict[torch.device, torch.Tensor] = {}
        for optimizer in self._optimizers:
            groups = getattr(optimizer, "param_groups", [])
            parameters = itertools.chain.from_iterable(group["params"] for group in groups)
            numbers = {id(parameter): number for number, parameter in enumerate(parameters, 1)}
            for parameter, state in list(getattr(optimizer, "state", {}).items()):
                for name, each in state.items() if isinstance(state, dict) else ():
                    if isinstance(each, torch.Tensor):
                        _add(sums, checksum(each) * _of(numbers.get(id(parameter), 0), str(name)))
        return sums


class Checksums:
    """Writes a rank's checksums into ``checksums`` in the run directory.

    Raises:
        TrainingError: there is no writing there.
    """

    def __init__(self, folder: Path, rank: int, restart: int) -> None:
        try:
            folder.mkdir(exist_ok=True)
            self._lines = Metrics(folder / f"rank-{rank}.jsonl", restart, rank=rank)
        except OSError as error:
            raise TrainingError(f"{folder} cannot be written: {error.strerror}") from error

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Write those of a step."""
        self._lines.write("checksums", step, values)


def _add(sums: dict[torch.device, torch.Tensor], value: torch.Tensor) -> None:
    before = sums.get(value.device)
    sums[value.device] = value if before is None else before + value


def _hex(sums: dict[torch.device, torch.Tensor]) -> str:
    """One number of the sums of all devices; asking for it waits for these."""
    return f"{sum(int(each) for each in sums.values()) % 2**64:016x}"
