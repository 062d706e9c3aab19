"""A run around its loop: the lock, the way back, saving, stopping, and the marker for the batch script."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Optional, Union

import torch

from .errors import NotFinite, SettingsError, TakenOver, TrainingError
from .files import free_name, read_json, write_json
from .formats.checkpoint import CHECKPOINTS, step_folder
from .formats.run_files import STOP_FILE, Stop
from .generators import capture_random_state, restore_random_state
from .processes.group import Channel, Group
from .saving import checkpoint
from .saving.checkpoint import Generation
from .saving.due import Bound, Budget
from .saving.late import LATE, evaluated
from .saving.lock import Hold, Lock
from .saving.pieces import Pieces
from .saving.replicas import Replicas
from .saving.saver import Cost, Saved, Saver, Saving, try_saving
from .saving.snapshot import Snapshot
from .watching.console import Console
from .watching.signals import Signals
from .watching.watch import NEVER, Duties, Watch, dump_stacks

__all__ = ["Limits", "Session"]


@dataclass(frozen=True)
class Limits:
    """Time limits of a session, in seconds.

    Args:
        timeout: For other ranks, at most.
        stop_margin: To be ready before the time limit (at most a tenth of what is left at the start).
        hang_timeout: For a sign of life, after which a rank ends the job; None: for ever.
    """

    timeout: float = 1800.0
    stop_margin: float = 60.0
    hang_timeout: Optional[float] = 1800.0


class Session:
    """A run directory in use by one training; the same calls in the same order on every rank.

    Opened, it holds the lock and knows what to go on from; ``begin`` when all is built, then ``save`` and ``collect``
    as the steps go, ``finish`` after the last one, and ``close``.
    """

    def __init__(
        self,
        run_dir: Path,
        group: Group,
        environment: Mapping[str, str],
        console: Console,
        saving: Saving,
        limits: Limits,
    ) -> None:
        self.run_dir, self.group, self.console = run_dir, group, console
        self._folder, self.environment = run_dir / CHECKPOINTS, environment
        self._lock = Lock(self._folder, environment, console.say) if group.ranks.first else None
        self._end = _end_time(environment)
        try:
            (anew, self.restart, run), token = group.on_first(lambda: self._open(saving.resume))
            self.found, notes = self._find(anew, saving, token, run)
        except OSError as error:
            raise TrainingError(f"cannot use the run directory {run_dir}: {error}") from error
        for note in notes:
            console.say(f"note: {note}")
        self.first_step = 0 if self.found is None else int(self.found.manifest["step"])
        self.watch = Watch(group.ranks, limits.timeout, limits.hang_timeout)
        self.bound = Bound(saving.interval, saving.keep_every, self.first_step)
        self.budget = Budget(saving.share)
        self._kept_every, self._kept, self._troubled = saving.kept_every or 0, self.first_step, False
        self._hold = Hold(self._folder, token)
        channel = Channel(group.ranks, limits.timeout)
        self.saver = Saver(self._folder, group.ranks, channel, self._hold, saving, self.found, self._lead)
        self._margin = min(limits.stop_margin, max(0.0, self._end - time.time()) / 10)
        self._signals: Optional[Signals] = None
        self._on_saved: Callable[[Saved], None] = lambda _saved: None
        self.sharded = False
        """True if what all have in common holds tensors of which each rank has a piece."""

    def expect_pieces(self) -> None:
        """Have each rank write a file of its pieces from now on, because it has a piece of some tensors."""
        self.sharded = True

    def _find(
        self, anew: Optional[str], saving: Saving, token: str, run: str
    ) -> tuple[Optional[Generation], list[str]]:
        """Return where to go on, and what to say of it; all ranks look through a checkpoint together."""
        try:
            self.replicas = Replicas(self._folder, self.group, self.environment, saving.node_folder)
            found, notes = (None, [anew]) if anew is not None else self._newest(saving)
            self._run = self.group.on_first(lambda: self._belongs(found, run))
            trouble = self.replicas.begin(None if saving.kept_every is None else token)
            if trouble is not None:
                notes.append(
                    f"steps cannot be kept on the nodes ({trouble}): a kill costs the steps since the newest checkpoint "
                    "(checkpoint_shared_steps); checkpoint_node_folder names another folder"
                )
            return found, notes
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise

    def _newest(self, saving: Saving) -> tuple[Optional[Generation], list[str]]:
        """The newest state, on the nodes or in the run directory; where it is damaged there, the nodes are asked once more."""
        notes = self.replicas.bring(saving.keep, saving.keep_every)
        found, damaged = checkpoint.newest_intact(self._folder, self.group)
        if damaged and (more := self.replicas.bring(saving.keep, saving.keep_every)):
            notes += more
            found, further = checkpoint.newest_intact(self._folder, self.group)
            damaged += further
        return found, notes + damaged

    def _belongs(self, found: Optional[Generation], run: str) -> str:
        """Return the run's id, which its checkpoints have, too; those of an earlier version have none.

        Raises:
            TrainingError: the checkpoint is of another run.
        """
        of = "" if found is None else str(found.manifest.get("run", ""))
        if found is not None and run and of and run != of:
            raise TrainingError(
                f"checkpoints/{found.path.name} is of another run (id {of}, and this one has {run}): put this run's own "
                "checkpoints back; to begin a training from those weights, load them (of a task: pretrained: FOLDER); "
                f"to continue that training in this folder, remove {self.run_dir}/state/starts.json"
            )
        if of and not run:
            write_json(self.run_dir / "state" / "starts.json", {"starts": self.restart + 1, "run": of})
        return run or of

    def _open(self, resume: bool) -> tuple[tuple[Optional[str], int, str], str]:
        """Lock, and clear away what a kill left (rank 0 only); what ``_look`` finds, and the lock."""
        assert self._lock is not None
        self._lock.acquire()
        try:
            return self._look(resume), self._lock.token
        except BaseException:
            self._lock.release()
            raise

    def _look(self, resume: bool) -> tuple[Optional[str], int, str]:
        """Return why the training begins anew, the starts so far, and the run's id, if it has one."""
        assert self._lock is not None
        state = self.run_dir / "state"
        state.mkdir(exist_ok=True)
        (self.run_dir / STOP_FILE).unlink(missing_ok=True)  # it spoke of an earlier start
        before = read_json(state / "starts.json")
        run = str(before.get("run") or ("" if checkpoint.folders(self._folder) else secrets.token_hex(8)))
        restart = max(int(before.get("starts", 0)), int(self.environment.get("SLURM_RESTART_COUNT") or 0))
        write_json(state / "starts.json", {"starts": restart + 1, "run": run})
        self._lock.check()
        checkpoint.sweep(self._folder)
        if not resume and checkpoint.folders(self._folder):
            aside = free_name(self.run_dir / "earlier-checkpoints")
            aside.mkdir()
            for path in self._folder.glob("*step-*"):
                path.rename(aside / path.name)
            return (
                f"resume is false: the earlier checkpoints are now in {aside.name}, training starts anew",
                restart,
                run,
            )
        return None, restart, run

    def _lead(self, seconds: float) -> Optional[int]:
        """Steps that the next save is begun early, after one that has taken so many seconds."""
        return self.bound.lead(seconds, self.watch.step_seconds())

    def _deadline(self) -> float:
        """When to stop, so that the last step and its checkpoint are through before the time limit."""
        return self._end - self._margin - 1.5 * self.saver.longest - 2 * self.watch.pace()

    def leave_early(self, name: str) -> None:
        """A signal came before the training: nothing to save, but the next start need not wonder."""
        self.mark(name, self.first_step)
        if self._lock is not None:
            self._lock.release()

    def begin(
        self,
        signals: Optional[Signals],
        on_saved: Callable[[Saved], None] = lambda _saved: None,
        at_each_look: Callable[[], None] = lambda: None,
    ) -> None:
        """From now on, with everything built and restored, signals stop the run in order.

        ``on_saved`` is told how each save ended; ``at_each_look`` runs in the watch's thread.
        """
        self._signals, self._on_saved = signals, on_saved
        self.budget.begin()
        self.watch.start(Duties(self._deadline, self._hang, at_each_look))
        if signals is not None:
            signals.give_to(self.watch)

    def save(
        self,
        step: int,
        common: Callable[[], Mapping[str, object]],
        own: Callable[[], Mapping[str, object]],
        facts: Mapping[str, object],
        losses: Union[torch.Tensor, list[float], None] = None,
    ) -> None:
        """Begin to save a step, after the save before it has come to its end.

        ``common`` gives rank 0's parts (what is the same on all ranks, or of which each has a piece), ``own`` what each rank
        adds to its random state. Of a step that is saved already only the facts are written, and what an evaluation
        changes, and these only at the training's end.
        """
        self.collect()
        began, saves = time.perf_counter(), 0
        if step != self.saver.last_step:
            snapshot, saves = Snapshot(), 1
            parts = self._copies(snapshot, common, own)
            losses = None if losses is None else snapshot.take(losses, "losses")
            self.saver.start(step, snapshot.finish(), parts, {**self._known(), **facts}, losses)
            self.bound.begun(step)
        elif facts.get("complete"):
            self._complete(step, common, own, facts)
        self._stood_still(time.perf_counter() - began, saves)
        if self.bound.must_wait(step):
            self.collect()

    def _known(self) -> dict[str, object]:
        """Return what each manifest says of the run."""
        return {
            "time": time.time(),
            "run": self._run,
            "restart": self.restart,
            "world_size": self.group.ranks.world_size,
            "torch": torch.__version__,
            "save_seconds": self.saver.longest,
        }

    def next_kept(self, step: int) -> int:
        """Return the next step after which a copy is to be kept on the nodes."""
        return max(step + 1, self._kept + self._kept_every) if self.replicas.on else NEVER

    def keep_is_due(self, step: int) -> bool:
        """Return True if a copy of this step is to be kept on the nodes."""
        return self.replicas.on and step >= self._kept + self._kept_every

    def keep(
        self,
        step: int,
        common: Callable[[], Mapping[str, object]],
        own: Callable[[], Mapping[str, object]],
        facts: Mapping[str, object],
        losses: Union[torch.Tensor, list[float], None] = None,
    ) -> None:
        """Keep a copy of a step on the nodes; the arguments are those of ``save``. All ranks have theirs when it returns.

        Raises:
            NotFinite: the state is not worth a copy.
        """
        began = time.perf_counter()
        snapshot = Snapshot()
        parts = self._copies(snapshot, common, own)
        snapshot.finish().wait()
        numbers = losses.tolist() if isinstance(losses, torch.Tensor) else losses or []
        follows = {"follows": self.saver.last_step or 0}
        trouble = self.replicas.keep(
            step, parts, {**self._known(), **facts, **follows}, all(map(math.isfinite, numbers))
        )
        self._kept = step
        if trouble is not None and not self._troubled:
            self.console.say(
                f"warning: step {step} could not be kept on the nodes ({trouble}): training goes on, and the next one is "
                "tried; until one succeeds, a kill costs the steps since the last one that did, or the newest checkpoint"
            )
        self._troubled = trouble is not None
        self.watch.paused += time.perf_counter() - began
        self.watch.beats += 1

    def _copies(
        self,
        snapshot: Snapshot,
        common: Callable[[], Mapping[str, object]],
        own: Callable[[], Mapping[str, object]],
    ) -> dict[str, object]:
        """Return what this rank writes, by the names of the files."""
        parts: dict[str, object] = {}
        if self.group.ranks.first or self.sharded:
            snapshot.only_pieces = not self.group.ranks.first
            parts = {name: snapshot.take(part, name) for name, part in common().items()}
            snapshot.only_pieces = False
        if not self.group.ranks.first:
            parts = {}
        if self.sharded:
            parts[f"shard-{self.group.ranks.rank}.pt"] = snapshot.pieces
        rank = {"random": capture_random_state(self.group.device), **own()}
        name = f"rank-{self.group.ranks.rank}.pt"
        return {**parts, name: snapshot.take(rank, name)}

    def _stood_still(self, seconds: float, saves: int = 0) -> None:
        """So many seconds of the training went into saving."""
        self.watch.paused += seconds
        self.watch.beats += 1
        self.budget.spend(seconds, saves)

    def affords(self, step: int) -> bool:
        """Return True if a checkpoint that no bound asks for is written now; rank 0 decides, and tells of the first left out."""
        kept = self.bound.keep_every and step % self.bound.keep_every == 0
        if kept or self.budget.share is None:
            return True
        return self.group.on_first(self._affords)

    def _affords(self) -> bool:
        writing = self.saver.writing
        if self.budget.affords(writing):
            return True
        if self.bound.steps is None:  # who set a bound has what was asked for
            self._remark(self.budget.left_out(writing))
        return False

    def _remark(self, text: Optional[str]) -> None:
        if text is not None:
            self.console.say(text)

    def try_saving(
        self, step: int, common: Callable[[], Mapping[str, object]], own: Callable[[], Mapping[str, object]]
    ) -> Optional[Cost]:
        """Save a step on trial, and say what it costs; None where the disk did not take it.

        Raises:
            TrainingError: on every rank, where the state cannot be saved.
        """
        path = step_folder(self._folder, step)
        cost, trouble = try_saving(
            path, self.group, lambda snapshot: self._copies(snapshot, common, own), self._hold.check
        )
        self.watch.beats += 1
        if cost is None:
            self.console.say(
                f"warning: a checkpoint could not be written on trial ({trouble}): training goes on, and the first "
                "is tried when it is due; until one succeeds, a kill costs all steps"
            )
        else:
            self.saver.longest = max(self.saver.longest, cost.seconds)
            self.budget.expect(cost.still)
        return cost

    def _complete(
        self,
        step: int,
        common: Callable[[], Mapping[str, object]],
        own: Callable[[], Mapping[str, object]],
        facts: Mapping[str, object],
    ) -> None:
        """The checkpoint that was found lacked the last evaluation alone: now it is the training's end."""
        if self.found is None or self.found.manifest["step"] != step:
            return
        manifest = self.found.manifest
        with contextlib.suppress(OSError):  # without it the next start evaluates once more
            self._hold.check()
            if self.group.ranks.first:
                # Beside what was saved, not in its place: until the manifest says so, the checkpoint is as it was.
                late = Snapshot().take(evaluated(common(), own(), self.group.together), LATE)
                parts = {**manifest["parts"], LATE: checkpoint.write_part(self.found.path, LATE, late)}
                checkpoint.commit(self._folder, step, parts, {**manifest, **facts})

    def collect(self) -> Optional[Saved]:
        """Wait for the save under way, if there is one; a failed one is said, and the training goes on.

        Raises:
            NotFinite: the state is not worth a checkpoint.
            TakenOver: the checkpoints are another run's now.
        """
        began = time.perf_counter()
        saved = self.saver.collect()
        self._stood_still(time.perf_counter() - began)
        if saved is None:
            return None
        if self.group.ranks.first:
            setting = "checkpoint_shared_steps" if self._kept_every else "checkpoint_steps"
            self._remark(self.budget.over(self.bound.steps, setting))
        self.bound.ended(saved.lead)
        if not saved.finite:
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
        self._on_saved(saved)
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
        self.replicas.close()

    def read(self, part: str) -> dict[str, Any]:
        """Return a part of the checkpoint that was found."""
        assert self.found is not None
        return checkpoint.read(self.found, part)

    def read_common(self, part: str) -> dict[str, Any]:
        """Return a part that all ranks need: rank 0 reads it, and sends it to the others."""
        return self.group.read_on_first(lambda: self.read(part))

    @property
    def pieces(self) -> Pieces:
        """The sharded tensors of the checkpoint that was found."""
        assert self.found is not None
        return Pieces(self.found.path)

    def read_own(self) -> dict[str, Any]:
        """Return what this rank saved beside the common parts; its random state is put back. Empty with other ranks."""
        assert self.found is not None
        rank = self.group.ranks.rank
        if self.found.manifest["world_size"] != self.group.ranks.world_size:
            return {}
        own = self.read(f"rank-{rank}.pt")
        restore_random_state(own.pop("random"), self.group.device)
        return own

    def stopped(self, step: int) -> None:
        """Leave the marker of a stop in good order, all saved, and say so."""
        reason = self.watch.reason
        trouble = self.mark(reason, step)
        self.console.say(
            f"stopped by {reason} at step {step}, saved in checkpoints/step-{step}: start it again to continue"
        )
        if trouble:
            self.console.say(f"warning: state/stop.json {trouble}: the job is not started again by itself")

    def mark(self, reason: str, step: int) -> Optional[str]:
        """Write ``state/stop.json``: why the run stopped, and whether to start it again (rank 0); why it could not."""
        return self._mark(reason, step) if self.group.ranks.first else None

    def _mark(self, reason: str, step: int) -> Optional[str]:
        job_id = self.environment.get("SLURM_JOB_ID", "")
        stop = Stop(reason, step, step - self.first_step, job_id, self.restart)
        try:
            (self.run_dir / "state").mkdir(exist_ok=True)
            write_json(self.run_dir / STOP_FILE, stop.document(time.time()))
        except OSError as error:  # without it the run is not started again, which is safe
            return f"could not be written ({error.strerror})"
        return None

    def _hang(self, seconds: float) -> NoReturn:
        ranks, step = self.group.ranks, self.watch.step
        self._mark("hang", step)
        name = dump_stacks(self.run_dir / "state", ranks)
        text = (
            f"error: {ranks}: no step for {seconds:.0f} s (hang_timeout) after step {step}: the job ends here; "
            f"state/{name} shows where each thread is\n"
        )
        with contextlib.suppress(OSError):
            os.write(2, text.encode())
        os._exit(1)

    def let_go(self) -> None:
        """There is nothing more to stop: signals end the process again, and nobody looks for a hang."""
        self.watch.close()
        if self._signals is not None:
            self._signals.hand_back()

    def close(self) -> None:
        """Everything is done, and nothing more is written."""
        self.watch.close()
        if self._lock is not None:
            self._lock.release()


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
