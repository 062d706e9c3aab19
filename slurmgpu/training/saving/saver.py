"""Writes checkpoints while the training goes on: every rank its part, the manifest last.

A thread writes what was copied beforehand; at most one save is under way. A disk that is full costs a checkpoint,
not the training: what was written of it is removed, all ranks learn of it, and the next one is tried anew.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from ..errors import TakenOver, TrainingError
from ..processes.channel import Channel
from ..processes.ranks import Ranks
from . import checkpoint
from .lock import Hold
from .snapshot import Snapshot

__all__ = ["NOT_FINITE", "Saved", "Saver"]

NOT_FINITE = "the loss or a parameter is not finite"


@dataclass
class Saved:
    """How a save ended: ``error`` is None for one that counts; ``seconds`` from copying to commit.

    ``lead`` is rank 0's word on how many steps early the next one is to begin (see ``bound``).
    ``taken`` says that another run has the checkpoints now: no further save can succeed.
    """

    step: int
    error: Optional[str] = None
    seconds: float = 0.0
    size: int = 0
    lead: Optional[int] = None
    taken: bool = False

    @property
    def name(self) -> str:
        """The generation's folder, as people and metrics name it."""
        return f"checkpoints/step-{self.step}"


class Saver:
    """Saves generations into a folder; the same calls in the same order on every rank."""

    def __init__(
        self,
        folder: Path,
        ranks: Ranks,
        channel: Channel,
        lock: Optional[Hold],
        *,
        keep: int,
        keep_every: Optional[int],
        last_step: Optional[int] = None,
    ) -> None:
        self._folder, self._ranks, self._channel, self._lock = folder, ranks, channel, lock
        self._keep, self._keep_every = keep, keep_every
        self._thread: Optional[threading.Thread] = None
        self._result: Optional[Saved] = None
        self._number = 0
        self._began = 0.0
        self.lead: Callable[[float], Optional[int]] = lambda _seconds: None
        self.last_step = last_step
        self.longest = 0.0

    def start(
        self,
        step: int,
        snapshot: Snapshot,
        parts: Mapping[str, Any],
        facts: Mapping[str, Any],
        losses: Optional[Sequence[Any]] = None,
    ) -> None:
        """Begin to write this rank's ``parts``; ``facts`` (rank 0's count) go into the manifest.

        With a number that is not finite among ``losses`` nothing is written: such a state helps nobody.
        The save before must have been collected.
        """
        assert self._thread is None
        self._number += 1
        self._result = None
        self._began = time.monotonic()

        def work() -> None:
            self._result = self._save(step, snapshot, parts, facts, losses)
            self._result.seconds = time.monotonic() - self._began

        self._thread = threading.Thread(target=work, name="saver", daemon=True)
        self._thread.start()

    def collect(self) -> Optional[Saved]:
        """Wait for the save under way; its result, once, and None when there is none."""
        if self._thread is None:
            return None
        self._thread.join()
        self._thread = None
        result = self._result
        if result is None:
            raise TrainingError("the thread that writes checkpoints has died")
        if result.error is None:
            self.last_step = result.step
            self.longest = max(self.longest, result.seconds)
        return result

    def _save(
        self,
        step: int,
        snapshot: Snapshot,
        parts: Mapping[str, Any],
        facts: Mapping[str, Any],
        losses: Optional[Sequence[Any]],
    ) -> Saved:
        own: dict[str, Any] = {"step": step, "parts": {}, "error": None, "taken": False}
        path = self._folder / f"step-{step}"
        try:
            snapshot.wait()
            if losses is not None and not all(map(math.isfinite, losses)):
                raise ValueError(NOT_FINITE)
            for name, content in parts.items():
                # A run that was thought dead may be as far as its successor: it must not write over its files.
                # What remains is the time to write one part. A successor that starts, trains up to this very
                # step and commits it within that time would find its part replaced; its checksum tells.
                self._check()
                own["parts"][name] = checkpoint.write_part(path, name, content)
        except TakenOver as error:
            own.update(error=str(error), taken=True)
        except Exception as error:
            own["error"] = f"{self._ranks}: {_reason(error)}"
        try:
            return self._agree(step, path, own, facts)
        except Exception as error:
            if own["taken"]:  # rank 0 has seen it, too, and left
                return Saved(step, own["error"], taken=True)
            return Saved(step, f"lost the other ranks ({_reason(error)})")

    def _check(self) -> None:
        """Raise unless the checkpoints are still this run's to write."""
        if self._lock is not None:
            self._lock.check()

    def _agree(self, step: int, path: Path, own: dict[str, Any], facts: Mapping[str, Any]) -> Saved:
        """Rank 0 gathers what all have written, commits it or takes it back, and tells the others."""
        before, place = f"save/{self._number - 1}", f"save/{self._number}"
        if not self._ranks.first:
            self._channel.put(f"{place}/{self._ranks.rank}", own)
            answer = self._channel.get(f"{place}/result")
            return Saved(step, **answer)
        others = range(1, self._ranks.world_size)
        everyone = [own, *(self._channel.get(f"{place}/{rank}") for rank in others)]
        parts = {name: entry for each in everyone for name, entry in each["parts"].items()}
        error = next((each["error"] for each in everyone if each["error"]), None)
        taken = next((each["error"] for each in everyone if each["taken"]), None)
        steps = [each["step"] for each in everyone]
        if error is None and set(steps) != {step}:
            error = f"the ranks saved different steps: {', '.join(map(str, steps))}"
        if error is None:
            try:
                error = self._commit(step, parts, facts)
            except TakenOver as refusal:
                taken = str(refusal)
        if taken is not None:
            error = taken
        elif error is not None:
            self._take_back(path)
        size = sum(entry["bytes"] for entry in parts.values())
        lead = None if error is not None else self.lead(time.monotonic() - self._began)
        if self._number > 1:
            for name in ("result", *map(str, others)):
                self._channel.drop(f"{before}/{name}")
        answer = {"error": error, "size": size, "lead": lead, "taken": taken is not None}
        self._channel.put(f"{place}/result", answer)
        return Saved(step, **answer)

    def _commit(self, step: int, parts: Mapping[str, Any], facts: Mapping[str, Any]) -> Optional[str]:
        """Let the new generation count, and remove what is too old then; why it does not count."""
        try:
            self._check()
            checkpoint.commit(self._folder, step, parts, facts)
        except TakenOver:
            raise
        except Exception as error:
            return _reason(error)
        # From here on the new generation counts; what cannot be removed now can be later.
        with contextlib.suppress(OSError, TakenOver):  # the next save says it
            self._check()
            checkpoint.prune(self._folder, self._keep, self._keep_every)
        return None

    def _take_back(self, path: Path) -> None:
        """Remove what was written of a save that failed, but not what may be another run's by now."""
        with contextlib.suppress(OSError, TakenOver):  # the next start sweeps it
            self._check()
            shutil.rmtree(path, ignore_errors=True)


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
