"""Writes checkpoints while the training goes on: every rank its part, the manifest last.

What was written goes from rank to rank up a tree, and who speaks for a folder's ranks writes its index: rank 0 hears, writes
and removes no more with a thousand ranks than with a hundred. A thread writes what was copied beforehand; at most one save is
under way. A disk that is full costs a checkpoint, not the training: what was written of it is removed, all ranks learn of
it, and the next one is tried anew.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Optional

from ..errors import TakenOver, TrainingError
from ..files import Facts
from ..formats.checkpoint import INDEX, step_folder
from ..processes.group import Channel
from ..processes.ranks import Ranks
from ..processes.tree import Tree
from . import checkpoint
from .checkpoint import Doomed, Generation
from .layout import Layout, layout_for
from .lock import Hold
from .snapshot import Snapshot

__all__ = ["Saved", "Saver", "Saving"]


@dataclass(frozen=True)
class Saving:
    """When checkpoints are written, which stay, and whether they are gone on from.

    Args:
        interval: Steps beyond the newest checkpoint that a kill may cost (see ``bound``).
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
    """How a save ended: ``error`` is None if it counts; ``seconds`` from copying to commit.

    ``lead``: rank 0's word on how many steps early the next one begins (see ``bound``). ``taken``: another run has the
    checkpoints now, and no further save can succeed. ``finite``: False if the loss or a parameter is not.
    """

    step: int
    error: Optional[str] = None
    seconds: float = 0.0
    size: int = 0
    lead: Optional[int] = None
    taken: bool = False
    finite: bool = True
    doomed: list[Doomed] = field(default_factory=list)
    """What all remove together now, because this one counts."""


@dataclass
class _Part:
    """What one rank has written of a save, and those for whom it speaks.

    Of these ``parts`` has the indexes of their folders, and ``steps`` the steps that they have saved, once each.
    """

    steps: list[int]
    parts: dict[str, Facts] = field(default_factory=dict)
    size: int = 0
    error: Optional[str] = None
    taken: bool = False
    finite: bool = True

    def join(self, others: list[_Part]) -> None:
        """Speak for others, too; of errors the first counts, and before any that another run has the checkpoints."""
        for each in others:
            self.steps = sorted({*self.steps, *each.steps})
            self.parts.update(each.parts)
            self.size += each.size
            if each.error is not None and (self.error is None or (each.taken and not self.taken)):
                self.error, self.finite = each.error, each.finite
            self.taken = self.taken or each.taken


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
        self._tree = Tree(ranks.rank, ranks.world_size)
        self._layout = layout_for(ranks.world_size)
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
        own = _Part([step])
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
                place = self._layout.place(name)
                own.parts[place] = checkpoint.write_part(path, place, content)
                own.size += own.parts[place]["bytes"]
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
        whole = self._tree.pass_up(
            own,
            lambda rank: _Part(**self._heard(f"{place}/{rank}")),
            lambda said: self._channel.put(f"{place}/{self._ranks.rank}", asdict(said)),
            lambda span, mine, others: self._joined(path, span, mine, others),
        )
        if whole is None:
            saved = replace(_read_saved(self._channel.get(f"{place}/result")), step=step)
        else:
            saved = self._judge(step, path, whole, facts)
            if self._number > 1:
                self._channel.drop(f"save/{self._number - 1}/result")
            self._channel.put(f"{place}/result", asdict(saved))
        if saved.doomed:
            self._remove_together(saved.doomed, f"{place}/removed")
        return saved

    def _heard(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._channel.get(name)
        self._channel.drop(name)
        return found

    def _joined(self, path: Path, span: int, own: _Part, others: list[_Part]) -> _Part:
        """Return what this rank and those that it hears have written; where they share a folder, its index in place of that."""
        own.join(others)
        if own.error is not None or span not in self._layout.spans:
            return own
        folder = self._layout.folder(self._ranks.rank, span)
        inside = {name: entry for name, entry in own.parts.items() if name.startswith(folder)}
        own.parts = {name: entry for name, entry in own.parts.items() if name not in inside}
        listed = {name[len(folder) :]: entry for name, entry in inside.items()}
        try:
            self._check()
            own.parts[folder + INDEX] = checkpoint.write_index(path, folder + INDEX, listed)
        except TakenOver as error:
            own.error, own.taken = str(error), True
        except Exception as error:
            own.error = f"{self._ranks}: {_reason(error)}"
        return own

    def _judge(self, step: int, path: Path, whole: _Part, facts: Mapping[str, object]) -> Saved:
        """Commit what all have written, or take it back (rank 0)."""
        error, finite, taken, doomed = whole.error, whole.finite, whole.taken, list[Doomed]()
        if error is None and whole.steps != [step]:
            error = f"the ranks saved different steps: {', '.join(map(str, whole.steps))}"
        if error is None:
            try:
                error = self._commit(step, whole.parts, facts, doomed)
            except TakenOver as refusal:
                error, taken = str(refusal), True
        if taken:
            finite = True
        elif error is not None:
            self._take_back(path)
        lead = None if error is not None else self._lead(time.monotonic() - self._began)
        return Saved(step, error, size=whole.size, lead=lead, taken=taken, finite=finite, doomed=doomed)

    def _commit(
        self, step: int, parts: Mapping[str, Facts], facts: Mapping[str, object], doomed: list[Doomed]
    ) -> Optional[str]:
        """Let the new generation count, and those that are too old then no more; why it does not count."""
        if self._layout.spans:
            facts = {**facts, "ranks_per_folder": self._layout.fan}
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
            checkpoint.prune(
                self._folder, self._saving.keep, self._saving.keep_every, lambda old: self._doom(old, doomed)
            )
        return None

    def _doom(self, path: Path, doomed: list[Doomed]) -> None:
        if not self._layout.spans:
            checkpoint.remove_generation(path)
            return
        found = checkpoint.doom(path)
        if found is not None:
            doomed.append(found)

    def _remove_together(self, doomed: list[Doomed], place: str) -> None:
        """Remove generations that count no more: who speaks for a folder's ranks one of their folders, rank 0 the rest."""
        ranks, fan = self._ranks, self._tree.fan
        if ranks.rank % fan:
            return
        with contextlib.suppress(OSError, TakenOver):  # the next start sweeps it
            self._check()
            for each in doomed:
                each.remove_share(self._folder, ranks.rank, ranks.world_size, fan)
        speakers = Tree(ranks.rank // fan, -(-ranks.world_size // fan), fan)

        def joined(span: int, own: bool, _others: list[bool]) -> bool:
            for each in doomed:
                each.remove_outer(self._folder, ranks.rank, span * fan)
            return own

        done = speakers.pass_up(
            True,
            lambda number: bool(self._heard(f"{place}/{number}")),
            lambda _said: self._channel.put(f"{place}/{speakers.rank}", True),
            joined,
        )
        if done:
            with contextlib.suppress(OSError, TakenOver):
                self._check()
                for each in doomed:
                    shutil.rmtree(self._folder / each.name, ignore_errors=True)

    def _take_back(self, path: Path) -> None:
        """Remove what was written of a save that failed, but not what may be another run's by now."""
        with contextlib.suppress(OSError, TakenOver):  # the next start sweeps it
            self._check()
            shutil.rmtree(path, ignore_errors=True)


def _read_saved(said: Mapping[str, Any]) -> Saved:
    doomed = [Doomed(name, Layout(*layout)) for name, layout in said["doomed"]]
    return Saved(**{**said, "doomed": doomed})


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
