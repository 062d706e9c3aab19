"""The job's GPUs on one node, by whatever tells about them there."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Callable, Optional, Protocol

from .nvml import Nvml
from .readings import Reading, Totals, own
from .smi import Smi

__all__ = ["Gpus", "Source", "find_source"]

_PATIENCE = 5.0  # seconds that a sample waits for the GPUs: a driver may hang for ever
_NAMES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


class Source(Protocol):
    """A source of facts about GPUs."""

    source: str

    @property
    def found(self) -> list[tuple[int, Optional[str]]]:
        """Number and UUID of each that is seen."""

    def watch(self, indices: list[int]) -> None:
        """Keep to these."""

    def read(self) -> list[Reading]:
        """Return every GPU at this moment; OSError where nothing can be read."""


def find_source() -> Optional[Source]:
    """NVML, else a program; None where neither shows a GPU."""
    for make in (Nvml, Smi):
        try:
            return make()
        except (OSError, AttributeError):
            continue
    return None


class Gpus:
    """Reads the job's GPUs in a thread of its own: a driver that hangs costs their figures, and nothing else.

    Args:
        environment: Where Slurm says which are the job's.
        expected: How many the job has on this node, where that is known.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        expected: Optional[int],
        find: Callable[[], Optional[Source]] = find_source,
        patience: float = _PATIENCE,
    ) -> None:
        self._environment, self._expected, self._find, self._patience = environment, expected, find, patience
        self._source: Optional[Source] = None
        self._totals: dict[int, Totals] = {}
        self._asked, self._answered = threading.Semaphore(0), threading.Event()
        self._answer: Optional[list[Reading]] = None
        self._waiting = False
        self._failures = 0
        self._skip = 0
        threading.Thread(target=self._work, daemon=True).start()

    @property
    def source(self) -> Optional[str]:
        """Return the name of the source of facts about them; None if there is none."""
        return self._source.source if self._source else None

    def read(self) -> Optional[list[Reading]]:
        """Return every GPU of the job; None where they cannot be read, or were not by now."""
        if self._expected == 0:
            return None
        if self._skip:
            self._skip -= 1
            return None
        if not self._waiting:
            self._answered.clear()
            self._asked.release()
            self._waiting = True
        if not self._answered.wait(self._patience):
            return None
        self._waiting = False
        if self._answer is None:
            # What fails is asked again less and less often: after 1, 3, 7, ... samples.
            self._failures = min(self._failures + 1, 6)
            self._skip = (1 << self._failures) - 1
        else:
            self._failures = 0
        return self._answer

    def sample(self, readings: Optional[list[Reading]], now: float) -> Optional[list[dict[str, object]]]:
        """Return what a sample says of them."""
        if readings is None:
            return None
        return [self._totals.setdefault(one.number, Totals()).take(one, now) for one in readings]

    def _work(self) -> None:
        while True:
            self._asked.acquire()
            try:
                self._answer = self._readings()
            except Exception:  # whatever a library of others does must not end the sampler
                self._answer = None
            self._answered.set()

    def _readings(self) -> Optional[list[Reading]]:
        if self._source is None:
            source = self._find()
            if source is None:
                return None
            named = next(
                (value for name in _NAMES if (value := self._environment.get(name)) is not None), None
            )
            indices = own(source.found, named, self._expected)
            if indices is None:
                return None
            source.watch(indices)
            self._source = source
        return self._source.read()
