"""Checksums of what a step has worked out, of each rank: ``checksums/rank-R.jsonl``, for ``slurmgpu checkpoint replay``.

A checksum is the sum of the bit patterns: one flipped bit anywhere changes it, and on a device it takes one pass over the
memory. That of the gradients is of this rank's own, before they are averaged over the ranks: it tells which rank was wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Optional

import torch

from ..errors import TrainingError
from ..sharding.local import local
from .metrics import Metrics

__all__ = ["Checksums", "Sums", "checksum"]

_AS_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor's bit patterns modulo 2**64, on its device; of a sharded one this process's piece."""
    piece = local(tensor).detach()
    if piece.layout is not torch.strided:
        piece = piece.coalesce()._values() if piece.is_sparse else piece.to_dense()
    if piece.element_size() > 8:
        piece = torch.view_as_real(piece)
    flat = piece.contiguous().reshape(-1)
    return flat.view(_AS_WHOLE[flat.element_size()]).sum(dtype=torch.int64)


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
            # Weighed by the parameter's number, or two gradients changed places unseen.
            _add(self._gradients, checksum(gradient) * number)

    def _weights(self) -> dict[torch.device, torch.Tensor]:
        sums: dict[torch.device, torch.Tensor] = {}
        for number, each in enumerate((*self._model.parameters(), *self._model.buffers()), 1):
            if not each.is_meta:  # another stage's
                _add(sums, checksum(each) * number)
        return sums

    def _states(self) -> dict[torch.device, torch.Tensor]:
        """Not weighed: the order of an optimizer's states is that of its first steps, and after a resume another."""
        sums: dict[torch.device, torch.Tensor] = {}
        for optimizer in self._optimizers:
            for state in list(getattr(optimizer, "state", {}).values()):
                for each in state.values() if isinstance(state, dict) else ():
                    if isinstance(each, torch.Tensor):
                        _add(sums, checksum(each))
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
