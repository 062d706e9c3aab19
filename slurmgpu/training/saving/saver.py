"""Writes checkpoints while the training goes on: every rank its part, rank 0 the manifest last.

A thread writes what was copied beforehand; at most one save is under way. Rank 0 hears from every rank what it has written. A
disk that is full costs a checkpoint, not the training: what was written of it is removed, all ranks learn of it, and the next
one is tried anew. A save on trial after the first step finds what cannot be saved or put back, before there is much to lose.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple, Optional

import torch

from ..errors import TakenOver, TrainingError
from ..files import Facts
from ..formats.checkpoint import step_folder
from ..processes.group import Channel, Group
from ..processes.ranks import Ranks
from . import checkpoint
from .checkpoint import Generation
from .lock import Hold
from .snapshot import Snapshot

__all__ = ["Cost", "Saved", "Saver", "Saving", "try_saving"]


@dataclass(frozen=True)
class Saving:
    """When checkpoints are written, which stay, and whether they are gone on from.

    Args:
        interval: Steps beyond the newest checkpoint that a kill may cost (see ``due.Bound``).
        keep: Newest checkpoints to keep; ``keep_every``: those of steps that it divides stay for good.
        resume: False sets earlier checkpoints aside.
        share: Of the time, that checkpoints of epochs may take; None: any.
        kept_every: Steps after each of which a copy is kept on the nodes (see ``replicas``); None: none are.
        node_folder: Where on a node; None: where it is usual.
    """

    interval: Optional[int] = None
    keep: int = 2
    keep_every: Optional[int] = None
    resume: bool = True
    share: Optional[float] = None
    kept_every: Optional[int] = None
    node_folder: Optional[str] = None


@dataclass
class Saved:
    """The end of a save: ``error`` is None if it counts; ``seconds`` from copying to commit.

    ``lead``: rank 0's word on how many steps early the next one begins (see ``due.Bound``). ``taken``: another run has the
    checkpoints now, and no further save can succeed. ``finite``: False if the loss or a parameter is not.
    """

    step: int
    error: Optional[str] = None
    seconds: float = 0.0
    size: int = 0
    lead: Optional[int] = None
    taken: bool = False
    finite: bool = True


@dataclass
class _Part:
    """One rank's part of a save, or why it could not be written."""

    step: int
    parts: dict[str, Facts] = field(default_factory=dict)
    error: Optional[str] = None
    taken: bool = False
    finite: bool = True


class Saver:
    """Saves generations into a folder; the same calls in the same order on every rank."""

    def __init__(
        self,
        folder: Path,
        ranks: Ranks,
        channel: Channel,
        lock: Optional[Hold],
        saving: Saving,
        found: Optional[Generation] = None,
        lead: Callable[[float], Optional[int]] = lambda _seconds: None,
    ) -> None:
        self._folder, self._ranks, self._channel, self._lock = folder, ranks, channel, lock
        self._saving, self._lead = saving, lead
        self._thread: Optional[threading.Thread] = None
        self._result: Optional[Saved] = None
        self._number = 0
        self._began = 0.0
        self.last_step: Optional[int] = None if found is None else found.manifest["step"]
        self.longest = 0.0 if found is None else float(found.manifest.get("save_seconds") or 0.0)

    def start(
        self,
        step: int,
        snapshot: Snapshot,
        parts: Mapping[str, object],
        facts: Mapping[str, object],
        losses: Optional[Iterable[float]] = None,
    ) -> None:
        """Begin to write this rank's ``parts``; ``facts`` (rank 0's count) go into the manifest.

        Nothing is written if one of ``losses`` is not finite. The save before must have been collected.
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

    @property
    def writing(self) -> bool:
        """True if a save is under way on this rank."""
        return self._thread is not None and self._thread.is_alive()

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
        parts: Mapping[str, object],
        facts: Mapping[str, object],
        losses: Optional[Iterable[float]],
    ) -> Saved:
        own = _Part(step)
        path = step_folder(self._folder, step)
        try:
            snapshot.wait()
            own.finite = losses is None or all(map(math.isfinite, losses))
            if not own.finite:
                raise ValueError("the loss or a parameter is not finite")
            for name, content in parts.items():
                # A run that was thought dead may be as far as its successor: it must not write over its files.
                # What remains is the time to write one part. A successor that starts, trains up to this very
                # step and commits it within that time would find its part replaced; its checksum tells.
                self._check()
                own.parts[name] = checkpoint.write_part(path, name, content)
        except TakenOver as error:
            own.error, own.taken = str(error), True
        except Exception as error:
            own.error = f"{self._ranks}: {_reason(error)}"
        try:
            return self._agree(step, path, own, facts)
        except Exception as error:
            if own.taken:  # rank 0 has seen it, too, and left
                return Saved(step, own.error, taken=True)
            return Saved(step, f"lost the other ranks ({_reason(error)})")

    def _check(self) -> None:
        """Raise unless the checkpoints are still this run's to write."""
        if self._lock is not None:
            self._lock.check()

    def _agree(self, step: int, path: Path, own: _Part, facts: Mapping[str, object]) -> Saved:
        """Rank 0 hears what all have written, commits it or takes it back, and tells the others."""
        place = f"save/{self._number}"
        if not self._ranks.first:
            self._channel.put(f"{place}/{self._ranks.rank}", asdict(own))
            return Saved(**{**self._channel.get(f"{place}/result"), "step": step})
        all_parts = [own]
        for rank in range(1, self._ranks.world_size):
            all_parts.append(_Part(**self._channel.get(f"{place}/{rank}")))
            self._channel.drop(f"{place}/{rank}")
        saved = self._judge(step, path, all_parts, facts)
        if self._number > 1:
            self._channel.drop(f"save/{self._number - 1}/result")
        self._channel.put(f"{place}/result", asdict(saved))
        return saved

    def _judge(self, step: int, path: Path, written: list[_Part], facts: Mapping[str, object]) -> Saved:
        """Commit what all have written, or take it back (rank 0); that another run has the checkpoints counts before all."""
        failed = [each for each in written if each.error is not None]
        first = next((each for each in failed if each.taken), next(iter(failed), written[0]))
        error, taken, finite = first.error, first.taken, first.finite
        steps = sorted({each.step for each in written})
        if error is None and steps != [step]:
            error = f"the ranks saved different steps: {', '.join(map(str, steps))}"
        parts = {name: entry for each in written for name, entry in each.parts.items()}
        if error is None:
            try:
                error = self._commit(step, parts, facts)
            except TakenOver as refusal:
                error, taken = str(refusal), True
        if taken:
            finite = True
        elif error is not None:
            self._take_back(path)
        lead = None if error is not None else self._lead(time.monotonic() - self._began)
        size = sum(entry["bytes"] for entry in parts.values())
        return Saved(step, error, size=size, lead=lead, taken=taken, finite=finite)

    def _commit(self, step: int, parts: Mapping[str, Facts], facts: Mapping[str, object]) -> Optional[str]:
        """Let the new generation count, and remove those that are too old then; return why it does not count."""
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
            checkpoint.prune(self._folder, self._saving.keep, self._saving.keep_every)
        return None

    def _take_back(self, path: Path) -> None:
        """Remove what was written of a save that failed, but not what may be another run's by now."""
        with contextlib.suppress(OSError, TakenOver):  # the next start sweeps it
            self._check()
            shutil.rmtree(path, ignore_errors=True)


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]


class Cost(NamedTuple):
    """Cost of a checkpoint: its size on all ranks, the seconds to write it, and those in which no step can run."""

    size: int
    seconds: float
    still: float


class _Tried(NamedTuple):
    """A trial on one rank; ``trouble``: with the disk, which may pass."""

    size: int = 0
    seconds: float = 0.0
    still: float = 0.0
    failure: Optional[str] = None
    trouble: Optional[str] = None


def try_saving(
    path: Path,
    group: Group,
    parts: Callable[[Snapshot], Mapping[str, object]],
    check: Callable[[], None],
) -> tuple[Optional[Cost], Optional[str]]:
    """Write this rank's parts as a save does, read them back, and remove them; without a manifest they count for nothing.

    Returns what it cost, or None and the trouble with the disk.

    Raises:
        TrainingError: on every rank, where the state of one cannot be saved; the message names the part.
    """
    tried, snapshot = _Tried(), Snapshot()
    began = time.perf_counter()
    try:
        check()
        copied = parts(snapshot)
        snapshot.finish()
        still = time.perf_counter() - began
        snapshot.wait()
        facts = {name: checkpoint.write_part(path, name, part) for name, part in copied.items()}
        tried = _Tried(sum(each["bytes"] for each in facts.values()), time.perf_counter() - began, still)
        for name in facts:
            checkpoint.read(Generation(path, {}), name)
    except TakenOver:
        raise
    except OSError as error:
        tried = tried._replace(trouble=error.strerror or str(error))
    except Exception as error:
        named = str(error) if isinstance(error, TrainingError) else f"{type(error).__name__}: {error}"
        tried = tried._replace(failure=named)
    failure, trouble = group.first_of(tried.failure), group.first_of(tried.trouble)  # all have written
    if group.ranks.first:
        shutil.rmtree(path, ignore_errors=True)
    if failure is not None:
        raise TrainingError(
            f"{failure}\nfound by a save on trial after its first step: no checkpoint of this training could be written"
        )
    if trouble is not None:
        return None, trouble
    size = int(group.sum(torch.tensor(tried.size, device=group.device)))
    seconds, still = group.largest(tried.seconds, tried.still)
    return Cost(size, seconds, still), None
