"""What a run needs around its loop: the lock, the way back, saving, stopping, and the marker for the batch script."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, Optional

import torch

from .errors import NotFinite, SettingsError, TakenOver, TrainingError
from .files import write_json
from .processes.channel import Channel
from .processes.group import Group
from .saving import checkpoint, randomness
from .saving.bound import Bound
from .saving.checkpoint import Generation
from .saving.lock import Hold, Lock
from .saving.saver import NOT_FINITE, Saved, Saver
from .saving.snapshot import Snapshot
from .watching.console import Console
from .watching.signals import Signals
from .watching.watch import Watch, dump_stacks

__all__ = ["STOP_SCHEMA", "Session"]

STOP_SCHEMA = "slurmgpu.stop/1"
# Slurm ends a job for these, and a person may too; whether it goes on afterwards is for the batch script to say.
_ORDERLY = {"SIGTERM", "SIGUSR1", "SIGUSR2", "time"}


class Session:
    """A run directory in use by one training; the same calls in the same order on every rank.

    Args:
        interval: Steps beyond the newest checkpoint that a kill may cost (see ``bound``).
        keep: Newest checkpoints to keep; ``keep_every``: those of steps it divides stay for good.
        resume: False sets earlier checkpoints aside.
        timeout: Longest wait for other ranks, in seconds.
        stop_margin: Seconds to be ready before the time limit (at most a tenth of what is left now).
        hang_timeout: Seconds without a sign of life after which a rank ends the job; None: never.
    """

    def __init__(
        self,
        run_dir: Path,
        group: Group,
        environment: Mapping[str, str],
        console: Console,
        signals: Optional[Signals] = None,
        *,
        interval: Optional[int] = None,
        keep: int = 2,
        keep_every: Optional[int] = None,
        resume: bool = True,
        timeout: float = 1800.0,
        stop_margin: float = 60.0,
        hang_timeout: Optional[float] = 1800.0,
    ) -> None:
        self.run_dir, self.group, self.console = run_dir, group, console
        self._folder, self._environment, self._signals = run_dir / "checkpoints", environment, signals
        self._lock = Lock(self._folder, environment, console.say) if group.ranks.first else None
        end = _end_time(environment)
        try:
            opened = group.on_first(lambda: self._open(resume))
        except OSError as error:
            raise TrainingError(f"cannot use the run directory {run_dir}: {error}") from error
        self.found, notes, self.restart, token = opened
        self._hold = Hold(self._folder, token)
        for note in notes:
            console.say(f"note: {note}")
        self.watch = Watch(group.ranks, timeout)
        self.watch.hang_timeout = hang_timeout
        self.watch.on_hang = self._hang
        found = self.found
        self.saver = Saver(
            self._folder,
            group.ranks,
            Channel(group.ranks, timeout),
            self._hold,
            keep=keep,
            keep_every=keep_every,
            last_step=None if found is None else found.manifest["step"],
        )
        self.first_step = 0 if found is None else int(found.manifest["step"])
        self.bound = Bound(interval, keep_every, self.first_step)
        self.saver.lead = lambda seconds: self.bound.lead(seconds, self.watch.step_seconds())
        self.saver.longest = 0.0 if found is None else float(found.manifest.get("save_seconds") or 0.0)
        self._margin = min(stop_margin, max(0.0, end - time.time()) / 10)
        self.watch.deadline = lambda: end - self._margin - 1.5 * self.saver.longest - 2 * self.watch.pace()
        if signals is not None:
            signals.before_leaving = self._leave_early
        self.on_saved: Callable[[Saved], None] = lambda _saved: None

    def _open(self, resume: bool) -> tuple[Optional[Generation], list[str], int, str]:
        """Lock, clear away what a kill left, and find where to go on (rank 0 only)."""
        assert self._lock is not None
        self._lock.acquire()
        try:
            return (*self._look(resume), self._lock.token)
        except BaseException:
            self._lock.release()
            raise

    def _look(self, resume: bool) -> tuple[Optional[Generation], list[str], int]:
        assert self._lock is not None
        state = self.run_dir / "state"
        state.mkdir(exist_ok=True)
        (state / "stop.json").unlink(missing_ok=True)  # it spoke of an earlier start
        restart = max(_starts(state), int(self._environment.get("SLURM_RESTART_COUNT") or 0))
        write_json(state / "starts.json", {"starts": restart + 1})
        self._lock.check()
        checkpoint.sweep(self._folder)
        if not resume and checkpoint.folders(self._folder):
            aside = self._set_aside()
            note = f"resume is false: the earlier checkpoints are now in {aside.name}, training starts anew"
            return None, [note], restart
        found, notes = checkpoint.newest_intact(self._folder)
        return found, notes, restart

    def _set_aside(self) -> Path:
        number = 1
        while (target := self.run_dir / f"earlier-checkpoints-{number}").exists():
            number += 1
        target.mkdir()
        for path in self._folder.glob("*step-*"):
            path.rename(target / path.name)
        return target

    def _leave_early(self, name: str) -> None:
        """A signal came before the training: nothing to save, but the next start need not wonder."""
        self.mark(name, self.first_step)
        if self._lock is not None:
            self._lock.release()

    def handle(self, signals: Signals) -> None:
        """Signals are handled from now on."""
        self._signals = signals

    def begin(self) -> None:
        """Everything is built and restored: from now on signals stop the run in good order."""
        self.watch.start()
        if self._signals is not None:
            self._signals.give_to(self.watch)

    def save(
        self,
        step: int,
        common: Callable[[], Mapping[str, Any]],
        own: Callable[[], Mapping[str, Any]],
        facts: Mapping[str, Any],
        losses: Any = None,
    ) -> None:
        """Begin to save a step, after the save before it has come to its end.

        ``common`` gives rank 0's parts (what is the same on all ranks), ``own`` what each rank adds to its
        random state. Of a step that is saved already only the facts are written, and these only at the
        training's end.
        """
        self.collect()
        began = time.perf_counter()
        if step != self.saver.last_step:
            snapshot = Snapshot()
            parts: dict[str, Any] = {}
            if self.group.ranks.first:
                parts = {name: snapshot.take(part, name) for name, part in common().items()}
            rank = {"random": randomness.capture(self.group.device), **own()}
            name = f"rank-{self.group.ranks.rank}.pt"
            parts[name] = snapshot.take(rank, name)
            losses = None if losses is None else snapshot.take(losses, "losses")
            known = {
                "time": time.time(),
                "restart": self.restart,
                "world_size": self.group.ranks.world_size,
                "torch": torch.__version__,
                "save_seconds": self.saver.longest,
            }
            self.saver.start(step, snapshot.finish(), parts, {**known, **facts}, losses)
            self.bound.begun(step)
        elif facts.get("complete"):
            self._complete(step, facts)
        self.watch.paused += time.perf_counter() - began
        self.watch.beats += 1
        if self.bound.must_wait(step):
            self.collect()

    def _complete(self, step: int, facts: Mapping[str, Any]) -> None:
        """The checkpoint that was found lacked the last evaluation alone: now it is the training's end."""
        if self.found is None or self.found.manifest["step"] != step:
            return
        manifest = self.found.manifest
        with contextlib.suppress(OSError):  # without it the next start evaluates once more
            self._hold.check()
            if self.group.ranks.first:
                checkpoint.commit(self._folder, step, manifest["parts"], {**manifest, **facts})

    def collect(self) -> Optional[Saved]:
        """Wait for the save under way, if there is one; a failed one is said, and the training goes on.

        Raises:
            NotFinite: the state is not worth a checkpoint.
            TakenOver: the checkpoints are another run's now.
        """
        began = time.perf_counter()
        saved = self.saver.collect()
        self.watch.paused += time.perf_counter() - began
        self.watch.beats += 1
        if saved is None:
            return None
        self.bound.ended(saved.lead)
        if saved.error is not None and saved.error.endswith(NOT_FINITE):
            raise NotFinite(saved.step, "the loss or a parameter")
        if saved.taken:
            raise TakenOver(saved.error)
        if saved.error is not None:
            kept = "none" if self.saver.last_step is None else f"checkpoints/step-{self.saver.last_step}"
            self.console.say(
                f"warning: checkpoint of step {saved.step} failed ({saved.error}); the newest one is {kept}. "
                "Training goes on, and the next checkpoint is tried when it is due; until one succeeds, "
                "a kill costs all steps since the newest"
            )
        self.on_saved(saved)
        return saved

    def finish(self, step: int) -> None:
        """After the last save has been begun: every rank waits here until it counts.

        Raises:
            TrainingError: it does not.
        """
        saved = self.collect()
        if self.saver.last_step != step:
            reason = "see above" if saved is None else saved.error
            raise TrainingError(
                f"step {step} could not be saved ({reason}); an earlier checkpoint is what counts"
            )

    def read(self, part: str) -> Any:
        """A part of the checkpoint that was found."""
        assert self.found is not None
        return checkpoint.read(self.found, part)

    def read_own(self) -> dict[str, Any]:
        """What this rank saved beside the common parts; its random state is put back. Empty with other ranks."""
        assert self.found is not None
        rank = self.group.ranks.rank
        if self.found.manifest["world_size"] != self.group.ranks.world_size:
            return {}
        own: dict[str, Any] = self.read(f"rank-{rank}.pt")
        randomness.restore(own.pop("random"), self.group.device)
        return own

    def stopped(self, step: int) -> None:
        """Leave the marker of a stop in good order, all saved, and say so."""
        reason = self.watch.reason
        self.mark(reason, step)
        self.console.say(
            f"stopped by {reason} at step {step}, saved in checkpoints/step-{step}: start again to go on"
        )

    def mark(self, reason: str, step: int) -> None:
        """Write ``state/stop.json``: why the run stopped, and whether to start it again (rank 0)."""
        if self.group.ranks.first:
            self._mark(reason, step)

    def _mark(self, reason: str, step: int) -> None:
        gained = step - self.first_step
        marker = {
            "schema": STOP_SCHEMA,
            "reason": reason,
            "step": step,
            "gained": gained,
            "requeue": reason in _ORDERLY and gained > 0,
            "job_id": self._environment.get("SLURM_JOB_ID", ""),
            "restart": self.restart,
            "time": time.time(),
        }
        with contextlib.suppress(OSError):  # without it the run is not started again, which is safe
            (self.run_dir / "state").mkdir(exist_ok=True)
            write_json(self.run_dir / "state" / "stop.json", marker)

    def _hang(self, seconds: float) -> NoReturn:
        ranks, step = self.group.ranks, self.watch.step
        self._mark("hang", step)
        name = dump_stacks(self.run_dir / "state", ranks)
        text = (
            f"error: {ranks}: no step for {seconds:.0f} s (hang_timeout) after step {step}: the job ends here; "
            f"where each thread is stands in state/{name}\n"
        )
        with contextlib.suppress(OSError):
            os.write(2, text.encode())
        os._exit(1)

    def let_go(self) -> None:
        """There is nothing more to stop: signals end the process again, and nobody looks for a hang."""
        self.watch.finished = True
        self.watch.close()
        if self._signals is not None:
            self._signals.hand_back()

    def close(self) -> None:
        """Everything is done and nobody writes any more."""
        self.watch.finished = True
        self.watch.close()
        if self._lock is not None:
            self._lock.release()


def _starts(state: Path) -> int:
    try:
        return int(json.loads((state / "starts.json").read_text(encoding="utf-8"))["starts"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _end_time(environment: Mapping[str, str]) -> float:
    """When the job's time is up, in seconds since 1970; infinity when nobody says."""
    text = environment.get("SLURMGPU_END_TIME", "")
    if not text:
        return math.inf
    if not text.isdecimal():
        raise SettingsError(
            f"SLURMGPU_END_TIME is {text!r}; it must be in whole seconds since 1970 (date +%s)"
        )
    return float(text)
