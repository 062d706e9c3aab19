"""A training from its run directory to its last checkpoint: build in order, put back, then steps; between them what is due.

Between two steps, in this order: a copy of the step on the nodes, the evaluation and what ends with an epoch, the report, the
end, a checkpoint, a stop that all ranks agree on. ``_next_event`` says up to which step none of it can be due: nothing is asked
on the path of a step, and nothing there waits for the GPU, but for ``nonfinite: skip`` (which needs the gradient's norm) and the
scaler of fp16 beside a schedule or an average.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional

import torch

from .build import Training
from .errors import EvaluationFailed, Mismatch, NotFinite, Paused, SettingsError, TrainingError
from .formats.checkpoint import is_finished, is_spent, is_used_up
from .formats.combinations import clashes
from .formats.metrics import METRICS_FILE
from .formats.settings import REMOVED
from .optimizers import (
    by_name,
    learning_rates,
    left_out,
    unknown_options,
)
from .processes.group import Group
from .saving.checkpoint import Generation
from .saving.checkpoint import require as require_facts
from .saving.saver import Saved, Saving
from .saving.snapshot import reserve, try_out
from .schedules import warmup_steps
from .session import Limits, Session
from .settings import Config, Settings, divided
from .setup import has_pieces, has_stages
from .state import common_state, facts_of, own_state, restore, restore_rank
from .step import put_back
from .task import Task, load
from .watching.advice import awkward_sizes, is_full, lone_samples, memory_advice, tensor_core_multiple
from .watching.console import Bar, Console, describe, describe_bytes, duration
from .watching.meter import Reading
from .watching.metrics import Line, Metrics, Tracking, account, require
from .watching.phases import Phases, phases_for
from .watching.signals import Signals

if TYPE_CHECKING:
    from .watching.profiling import Profile
    from .watching.verifying import Verifier

__all__ = ["Trainer", "check_strategy", "train"]

# What the manifest of a training by a task says beside what each says.
_FACTS = (
    "dataset_samples", "epoch", "evaluated", "complete", "total_steps", "task_sha256", "results", "settings",
)  # fmt: skip
# Seconds before each further attempt at the last save.
_PATIENCE = (1.0, 5.0, 10.0)


def check_strategy(settings: Settings, world_size: int) -> None:
    """Refuse what does not go with the strategy; before the processes meet, or the first to leave breaks the meeting."""
    if settings.strategy in ("single", "dp", "model_parallel") and world_size > 1:
        raise SettingsError(
            f"strategy is {settings.strategy}, but world size is {world_size}: "
            "use strategy ddp or auto, or start one process"
        )
    for reason, remedy in clashes(settings, world_size):
        raise SettingsError(f"{reason}; {remedy}")
    if settings.strategy == "fsdp2" and world_size > 1:
        from .sharding import fully

        fully.require_torch()


def train(
    settings: Settings,
    run_dir: Path,
    group: Group,
    environment: Mapping[str, str],
    signals: Optional[Signals] = None,
    advice: Optional[list[str]] = None,
) -> None:
    """Train as the settings say, from the newest intact checkpoint in the run directory if there is one.

    What is known of an error beside its own words is added to ``advice``.

    Raises:
        Paused: a signal or the clock stopped it before its end; the state is saved, on all ranks.
    """
    started = time.perf_counter()
    console = Console(group.ranks.first)
    limit = _step_limit(settings, environment)
    group.on_first(lambda: require(settings.track))
    on_nodes = settings.checkpoint_shared_steps is not None
    saving = Saving(
        settings.checkpoint_shared_steps if on_nodes else settings.checkpoint_steps,
        settings.keep,
        settings.keep_every,
        settings.resume,
        settings.checkpoint_share,
        settings.checkpoint_steps if on_nodes else None,
        settings.checkpoint_node_folder,
    )
    limits = Limits(settings.timeout, settings.stop_margin, settings.hang_timeout)
    session = Session(run_dir, group, environment, console, saving, limits)
    if signals is not None:
        signals.before_leaving(session.leave_early)
    trainer = Trainer(settings, session, limit)
    console.open()
    try:
        trainer.train(signals, started)
    except NotFinite:
        session.mark("nonfinite", session.watch.step)
        raise
    except Mismatch as error:
        session.mark("mismatch", error.step)
        raise
    except Exception as error:
        if advice is not None and is_full(error):
            advice.append(memory_advice(error, trainer.settings, group))
        raise
    finally:
        session.close()
        console.close()


class Trainer:
    """One start of a training, from the checkpoint found to the one it leaves."""

    def __init__(self, settings: Settings, session: Session, limit: _Limit) -> None:
        self.settings, self.session, self.limit = settings, session, limit
        self.group, self.console, self.watch = session.group, session.console, session.watch
        self.found = session.found
        self.verifier: Optional[Verifier] = None
        self._generated = Metrics(None, session.restart)
        self._keeps = session.replicas.on
        self._reserved = self._noted = self._tried = False
        self._pending: Optional[Reading] = None
        self._told: Optional[tuple[Optional[float], Reading]] = None
        self._step_seconds = self._evaluation_seconds = self._began = 0.0
        self._last = 0

    def train(self, signals: Optional[Signals], started: float) -> None:
        """Everything between the opening of the run directory and its closing."""
        if self.found is not None:
            require_facts(self.found, *_FACTS)
        if self.found is not None and is_finished(self.found.manifest, vars(self.settings), self.limit.step):
            self.console.say(_already_finished(self.found, self.settings))
            self.session.replicas.close()
            return
        tracking = self._tracking()
        self.metrics = self._lines(METRICS_FILE, tracking.put)
        if self.found is not None:
            self.metrics.recover(self.found.manifest.get("lines", []))
        training = self._build()
        if self.found is not None:
            restore(training)
        training.connect()
        if self.found is not None:
            restore_rank(training)  # last, because all that was built before may have drawn
        with tracking:
            self._announce()
            self.session.begin(signals, self._note, self._in_background)
            training.callbacks.start(training.model, Config(self.settings))
            complete = self._take_steps()
            self._save_last(complete)
            if complete:
                training.callbacks.end(training.model, training.results.values)
            training.close()
            self._end(complete, time.perf_counter() - started)
        self.group.barrier()  # nobody leaves before the last checkpoint counts: srun ends the rest soon after
        if not complete:
            raise Paused(self.watch.reason)

    def _build(self) -> Training:
        """Load the task, and build all that it trains."""
        task = load(self.settings.task)
        if has_pieces(self.settings, self.group):
            from .sharding import fully

            fully.require_torch_of(self.group.device)
            fully.refuse(task)
        if has_stages(self.settings, self.group):
            from .sharding import pipeline

            stages = self.settings.pipeline_stages or self.group.ranks.world_size
            pipeline.refuse(task)
            self.group.form_pipeline(stages)
        if task.has("sample"):
            self._generated = self._lines("generated.jsonl")
        self.group.on_first(lambda: task.prepare(Config(self.settings)))
        self.settings = self._divided(task)
        training = self.training = Training(task, self.settings, self.session, self.limit.step)
        self.position, self.meter, self.judge = training.position, training.meter, training.judge
        return training

    def _divided(self, task: Task) -> Settings:
        """Return the settings with the micro-batch as a number: as the checkpoint says, or found now, where it is auto."""
        settings = self.settings
        if settings.micro_batch != "auto":
            return divided(settings, self.group.data.world_size)
        from .fitting.finder import find, found_before

        if self.found is not None:
            settings = found_before(settings, self.found.manifest) or settings
        if settings.micro_batch == "auto":
            return find(settings, task, self.session)
        return divided(settings, self.group.data.world_size)

    def _tracking(self) -> Tracking:
        """Return where lines go beside ``metrics.jsonl``: to what the settings name (rank 0)."""
        names = self.settings.track if self.group.ranks.first else ()
        session, settings = self.session, self.settings.as_dict()
        return Tracking(names, session.run_dir, session.first_step, settings, self.console.say)

    def _lines(self, name: str, also: Callable[[Sequence[Line]], None] = lambda _lines: None) -> Metrics:
        """Return a file of lines in the run directory, which rank 0 writes."""
        path = self.session.run_dir / name
        try:
            return Metrics(path if self.group.ranks.first else None, self.session.restart, also)
        except OSError as error:
            raise TrainingError(f"{path} cannot be written: {error.strerror}") from error

    # Steps, and what is due between them

    def _take_steps(self) -> bool:
        """Train to the end (True), or to where all have agreed to stop; also after a failure no line is lost."""
        training = self.training
        if self._keeps:
            self.metrics.hold()
        take = self._looked_at(training.step.take)
        phases = phases_for(self.settings, self.group.device, self.console)
        profile = None
        if self.settings.profile:
            from .watching.profiling import begin

            profile = begin(training.step, take, self.session, training.last_step(), phases)
        if profile is not None or phases.ranges:
            training.step.mark(phases)
        try:
            return self._loop(take, profile, phases)
        except Mismatch:
            self._save_last(complete=False)
            raise
        except EvaluationFailed as error:
            failed = error
            self._save_unevaluated(error)
        finally:
            self.metrics.flush()
            if profile is not None:
                profile.close()
        raise failed if failed.own is None else failed.own

    def _loop(self, take: Callable[[int], None], profile: Optional[Profile], phases: Phases) -> bool:
        """Take steps up to the next event, then see to it; False when all ranks have agreed to stop before the end."""
        training, settings, position, watch = self.training, self.settings, self.position, self.watch
        bound = self.session.bound
        evaluate = phases.during("evaluating", self._evaluate)
        save, wait_for_save = (
            phases.during("saving", self._save),
            phases.during("saving", self._wait_for_save),
        )
        last = self._last = training.last_step()
        self._began = time.monotonic()
        training.wrapped.train()
        self.meter.start_clock()  # what was built and joined before is not part of a step
        while True:
            if self._keeps:
                self._keep()
            done = position.step >= last or self.judge.spent
            closes_saved_epoch = False
            evaluating = self._evaluation_is_due(done)
            if evaluating or done or training.epoch > position.closed_epochs:
                epochs = range(position.closed_epochs + 1, training.epoch + 1)
                closes_saved_epoch = any(epoch % settings.checkpoint_every == 0 for epoch in epochs)
                if evaluating and not evaluate():
                    watch.stop()  # every rank has skipped the evaluation: all stop here, and wait for the reason
                    return False
                self._close_epochs()
                done = position.step >= last or self.judge.spent
                if evaluating or done or not training.evaluation:
                    self._report_epoch()
            if done:
                self._log()
                self._flush()
                return True
            if bound.must_wait(position.step):
                wait_for_save()
            best = evaluating and self.judge.is_best(position.step)
            if (
                best
                or bound.due(position.step)
                or (closes_saved_epoch and self.session.affords(position.step))
            ):
                save()
                if self._keeps and (best or bound.is_for_good(position.step)):
                    wait_for_save()  # a start after a kill goes on from beyond it, and does not make it again
            if watch.step >= watch.line and watch.stop():
                return False
            now, until = take, min(last, self._next_event())
            if profile is not None and not profile.through:
                now, until = profile.take, min(until, position.step + settings.log_every)
            self._steps(until, training.callbacks.around(now, training.model, lambda: position.step))
            if profile is not None and profile.through and not phases.ranges:
                training.step.unmark()
            if self.verifier is not None and self.verifier.mismatch is not None:
                raise self.verifier.mismatch
            if settings.sanity and not self._tried:
                self._try_out()

    def _next_event(self) -> int:
        """Return the next step after which something other than a line of metrics may be due."""
        step, batch, settings = self.position.step, self.settings.batch_size, self.settings
        if settings.sanity and not self._tried:
            return step + 1
        left_in_epoch = self.training.samples - self.position.samples % self.training.samples
        stops = [settings.evaluate_steps, settings.verify_steps]
        evaluated = [step - step % each + each for each in stops if each]
        session = self.session
        return min(
            *evaluated, step - (-left_in_epoch // batch), session.bound.next(step), session.next_kept(step)
        )

    def _steps(self, until: int, take: Callable[[int], None]) -> None:
        """Train up to a step, or to the one at which the watch stops all ranks; with a line of metrics now and then."""
        position, watch, meter = self.position, self.watch, self.meter
        batch, log_every = self.settings.batch_size, self.settings.log_every
        end = self.training.end()
        self.training.step.forget_gradients()
        while position.step < until:
            size = min(batch, end - position.samples)
            take(size)
            meter.steps += 1
            meter.samples += size
            position.samples += size
            position.step += 1
            watch.step = position.step
            if not position.step % log_every:
                self._log()
            if position.step >= watch.line:
                return

    def _looked_at(self, take: Callable[[int], None]) -> Callable[[int], None]:
        """Return a step of which checksums are written, and verified, where the settings say so.

        Checksums are what ``slurmgpu checkpoint replay`` holds others against.
        """
        training, position = self.training, self.position
        written, verified = self.settings.checksum_steps, self.settings.verify_steps
        if not (written or verified):
            return take
        from .watching.verifying import Checksums, Sums, Verifier

        sums = Sums(training.model, by_name(training.optimizer).values(), lambda: self.meter.losses)
        file = None
        if written:
            file = Checksums(self.session.run_dir / "checksums", self.group.ranks.rank, self.session.restart)
        self.verifier = verifier = (
            Verifier(training, self.metrics, lambda size: sums.of(take, size)) if verified else None
        )
        first = position.step + 1  # DDP lays out its messages anew after a start's first step

        def looked_at(size: int) -> None:
            number = position.step + 1
            writes = written is not None and not number % written
            if verifier is not None and verified and number > first and not number % verified:
                values = verifier.take(size)
            elif writes:
                values = sums.of(take, size)
            else:
                take(size)
                return
            if file is not None and writes:
                file.write(number, values)

        return looked_at

    # Evaluation and the ends of epochs

    def _evaluation_is_due(self, done: bool) -> bool:
        """Return True if an evaluation is due at this position, and has not been done yet."""
        position, settings = self.position, self.settings
        if not self.training.evaluation or (position.evaluated_step == position.step and position.step):
            return False
        every, steps = settings.evaluate_every, settings.evaluate_steps
        epochs = range(position.closed_epochs + 1, self.training.epoch + 1)
        if done or (every and any(epoch % every == 0 for epoch in epochs)):
            return True
        return bool(steps and position.step and position.step % steps == 0)

    def _evaluate(self) -> bool:
        """Evaluate, unless a stop is near; then it is for the resumed run to do."""
        self._flush()
        started = time.perf_counter()
        due = self._evaluation_is_due(False)  # and not just because the training ends, which it need not
        self.training.gauges.paused = True
        with self.training.as_evaluated():
            results = self.training.evaluation.run(self.training.staged or self.training.model)
        self.training.gauges.paused = False
        if results is None:
            return False
        try:
            self.judge.look(self.position.step, results.values)
            if due and self.training.epoch_schedule is not None:
                self.training.epoch_schedule.look(results.values)
        except SettingsError as error:  # no step is lost to it
            raise EvaluationFailed([], error, changed=False) from error
        self.training.results = results
        seconds = time.perf_counter() - started
        self.metrics.write(
            "eval",
            self.position.step,
            {"epoch": self.training.epoch, "seconds": seconds, **self.training.results.values},
        )
        self._evaluation_seconds = seconds
        self.meter.pause(seconds)
        self.watch.paused += seconds
        self.position.evaluated_step = self.position.step
        return True

    def _close_epochs(self) -> None:
        """Do what follows the evaluation at the end of each epoch."""
        for epoch in range(self.position.closed_epochs + 1, self.training.epoch + 1):
            if self.training.epoch_schedule is not None:
                self.training.epoch_schedule.end_epoch()
            self.training.callbacks.epoch_end(self.training.model, epoch, self.training.results.values)
        self.position.closed_epochs = self.training.epoch

    def _report_epoch(self) -> None:
        training = self.training
        self.console.say(
            f"{self.training.of_epochs(training.epoch)}step {self.position.step}/{training.last_step()}  "
            f"{describe(training.results.values)}{', the best so far' if self.judge.is_best(self.position.step) else ''}"
        )
        if training.results.texts:
            self._generated.write("generated", self.position.step, training.results.texts)

    # The trial after the first step

    def _try_out(self) -> None:
        """Save, load and evaluate on trial what no start before has saved or evaluated.

        What cannot be is known now, and not when hours of training depend on it.
        """
        self._tried = True
        training, position, began = self.training, self.position, time.perf_counter()
        if self.found is None:
            cost = self.session.try_saving(position.step, self._common, self._own)
            for name, part in training.parts().items():
                try:
                    where = try_out(part, name)
                except TrainingError as error:
                    raise TrainingError(f"{error}\nfound by a load on trial after its first step") from error
                if where is not None:
                    self.console.say(
                        f"warning: {where} is not as it was after {name} has taken its own state back: "
                        "a resumed training would differ from an uninterrupted one"
                    )
            if cost is not None:
                self.console.say(
                    f"a checkpoint takes {describe_bytes(cost.size)} and {cost.seconds:.2g} s, for {cost.still:.2g} s "
                    "of which the training stands still"
                )
        if not position.closed_epochs:
            self._try_tests()
        training.unsaved.changed()  # what is compared with, from here on
        seconds = time.perf_counter() - began  # no step's
        self.meter.pause(seconds)
        self.watch.paused += seconds

    def _try_tests(self) -> None:
        """Evaluate a batch of each test set on trial; what an evaluation changes is as before."""
        before = [each.detach().clone() for each in self.training.model.buffers()]
        self.training.gauges.paused = True
        with self.training.as_evaluated():
            names = self.training.evaluation.measures(self.training.staged or self.training.model, 1)
            if names is not None:
                names = self._also_of_later_batches(names)
        self.training.gauges.paused = False
        put_back(self.training.model.buffers(), before)
        if names is not None and not self._measures_more:
            hint = " (sanity: false leaves it to the first evaluation)"
            self.judge.require_metrics(names, hint)
            if self.training.epoch_schedule is not None:
                self.training.epoch_schedule.require_metric(names, hint)

    @property
    def _measures_more(self) -> bool:
        """True if an evaluation has more than what its batches measure."""
        return self.training.task.has("finish") or self.training.task.has("sample")

    def _also_of_later_batches(self, names: list[str]) -> Optional[list[str]]:
        """Return the names of all measures, where those of the first batch lack one that the training goes by.

        A later batch may have it: the whole test set is evaluated before a metric is refused.
        """
        wanted = self.judge.metrics
        if self.training.epoch_schedule is not None and self.training.epoch_schedule.metric is not None:
            wanted.add(self.training.epoch_schedule.metric)
        missing = sorted(wanted.difference(names))
        if not missing or self._measures_more:
            return names
        self.console.say(
            f"the first batch of the evaluation has no {', '.join(map(repr, missing))}: evaluating all of it, to see "
            "whether another has"
        )
        return self.training.evaluation.measures(self.training.staged or self.training.model)

    # Checkpoints

    def _common(self) -> dict[str, object]:
        return common_state(self.training)

    def _own(self) -> dict[str, object]:
        return own_state(self.training)

    def _save(self, complete: bool = False) -> None:
        """Begin a checkpoint: rank 0 what all have in common, every rank its random state and open losses."""
        training = self.training
        self._flush()  # the line of this step may still be on its way from the GPU ...
        self.metrics.flush()  # ... and a resume from here does not write it again
        self.metrics.release()
        began = time.perf_counter()
        self._note_changes()
        self.session.collect()  # a failed save changes which checkpoint is the best, and so the facts below
        losses = training.health() if self.settings.nonfinite == "stop" else None
        self.session.save(self.position.step, self._common, self._own, facts_of(training, complete), losses)
        self.meter.saving += time.perf_counter() - began

    def _keep(self) -> None:
        """Keep a copy of the step on the nodes where one is due; its line is written only when it can no longer be lost."""
        training, step = self.training, self.position.step
        if not self.session.keep_is_due(step):
            return
        began = time.perf_counter()
        self._flush()
        facts = {**facts_of(training, complete=False), "lines": self.metrics.waiting()}
        losses = training.health() if self.settings.nonfinite == "stop" else None
        self.session.keep(step, self._common, self._own, facts, losses)
        self.metrics.release()
        self.meter.saving += time.perf_counter() - began

    def _note(self, saved: Saved) -> None:
        if saved.error is not None:
            self.judge.failed(saved.step)
        else:
            path = f"checkpoints/step-{saved.step}"
            values = {"path": path, "seconds": saved.seconds, "bytes": saved.size}
            self.metrics.write("checkpoint", saved.step, values)
            self.training.callbacks.saved(self.session.run_dir / path)

    def _note_changes(self) -> None:
        """Say once what the task changes that no checkpoint holds."""
        # A task with a state of its own has put in what it needs.
        if self._noted or self.training.task.own is not None:
            return
        unsaved = self.training.unsaved.changed()
        if unsaved:
            self._noted = True
            self.console.say(
                f"note: {', '.join(unsaved[:4])}{' and others' if unsaved[4:] else ''} changed while the training went on, and "
                "no checkpoint has such attributes: a resume begins with their first values; if the training depends on "
                "them, make them persistent buffers of the model, or give the task a state_dict() that returns them"
            )
        changed = self.training.aux_modules.changed()
        if changed:
            self._noted = True
            self.console.say(
                f"note: {', '.join(changed[:4])}{' and others' if changed[4:] else ''} of the task changes while it "
                "trains and is in no checkpoint: a resume begins with its first values; "
                "make it part of what model(cfg) returns, or of a state_dict() of the task"
            )

    def _wait_for_save(self) -> None:
        began = time.perf_counter()
        self.session.collect()
        self.meter.saving += time.perf_counter() - began

    def _save_last(self, complete: bool) -> None:
        """The last save, on which all ranks wait; a disk that is full gets a little time."""
        self._save(complete)
        for seconds in _PATIENCE:
            saved = self.session.collect()
            if saved is None or saved.error is None:
                break
            time.sleep(seconds)
            self._save(complete)
        self.session.finish(self.position.step)

    def _save_unevaluated(self, failed: EvaluationFailed) -> None:
        """The steps are as good as ever when measuring them has failed: that must not cost them."""
        step = self.position.step
        try:
            if failed.changed:
                raise TrainingError(
                    f"evaluate failed after step {step} and left the model's parameters changed: "
                    "they are not saved, and an earlier checkpoint is what counts"
                )
            self._save_last(complete=False)
        except Exception as unsaved:
            if failed.own is None and not isinstance(unsaved, TrainingError):
                raise
            # Whatever it is, it must not hide why evaluate failed.
            self.console.say(f"warning: {unsaved}")
        else:
            self.console.say(
                f"the evaluation after step {step} failed, and all steps are saved in checkpoints/step-{step}: "
                "a new start goes on with that evaluation"
            )
            with contextlib.suppress(RuntimeError):  # a rank that is lost by now has its part saved
                self.group.barrier()  # rank 0 leaves with the store by which the others learn of the save

    # What is said and written down

    def _announce(self) -> None:
        """Say and write down who trains what, and where it starts."""
        training, ranks, device = self.training, self.group.ranks, self.group.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
        resumed = None if self.found is None else self.found.path.name
        values = {
            "world_size": ranks.world_size,
            "launcher": ranks.launcher,
            "device_name": name,
            "torch": torch.__version__,
            "ranks": training.places,
            "micro_batch": training.micro,
            "dataset_samples": training.dataset_samples,
            "total_steps": training.total_steps,
            "samples": self.position.samples,
            "resumed_from": resumed,
            "settings": self.settings.as_dict(),
            "absent": training.gauges.absent,
        }
        self.metrics.write("start", self.position.step, values)
        nodes = len({each["host"] for each in training.places})
        self.console.say(
            f"training {self.settings.task}: processes: {ranks.world_size}, nodes: {nodes}, {name}, "
            f"{self.settings.precision}, {_length(training)}{training.total_steps} steps, "
            f"batch {self.settings.batch_size} = {self.group.data.world_size} x {self.settings.accumulate} x {training.micro}"
        )
        self._remark()
        if resumed is not None:
            inside = self.position.samples % training.samples
            where = f"epoch {training.epoch + 1}, {inside} of {training.samples} samples"
            if training.stream is not None:
                where = f"{self.position.samples} samples of the stream are through"
            self.console.say(f"resuming from checkpoints/{resumed} ({where})")
        self._account()

    def _remark(self) -> None:
        """Say what may not be as it is meant to be."""
        training, device = self.training, self.group.device
        if training.precision.note is not None:
            self.console.say(training.precision.note)
        if self.settings.batch_size > training.samples:
            self.console.say(
                f"note: batch_size {self.settings.batch_size} is more than the {training.samples} samples of an epoch: "
                f"a step takes samples of {self.settings.batch_size / training.samples:.3g} epochs"
            )
        warmup = warmup_steps(self.settings, training.total_steps)
        if warmup > training.total_steps and not (
            training.task.has("schedule") or training.task.has("schedules")
        ):
            reached = training.total_steps / warmup
            self.console.say(
                f"note: warmup_steps {warmup} is more than the {training.total_steps} steps of this "
                f"training: the learning rate rises to {reached:.3g} of lr at most"
            )
        if training.average is not None:
            self.console.say(
                f"evaluations and exports have the average of the weights (ema: {self.settings.ema:g})"
            )
        untrained = left_out(training.model, training.optimizer)
        if untrained:
            self.console.say(
                f"note: {len(untrained)} parameter(s) stay as they are, because the optimizer does not have them: "
                f"{', '.join(untrained[:4])}{' and others' if untrained[4:] else ''}"
            )
        unknown = unknown_options(training.task, training.optimizer)
        if unknown:
            self.console.say(
                f"warning: parameter_groups sets {', '.join(map(repr, unknown))}, which AdamW does not have: it changes "
                "nothing; the options are lr, betas, eps, weight_decay, amsgrad, maximize"
            )
        if training.task.has("parallelize"):
            self.console.say(
                f"warning: nothing calls parallelize of the task: tensor_parallel {REMOVED['tensor_parallel']}"
            )
        alone = lone_samples(training.model, training.sizes(), training.micro, self.group.data.world_size)
        if alone is not None:
            self.console.say(alone)
        multiple = tensor_core_multiple(self.settings, device)
        note = awkward_sizes(training.model, training.micro, multiple) if multiple else None
        if note is not None:
            self.console.say(note)

    def _account(self) -> None:
        """Write down what the interruption before this start has cost (rank 0)."""
        session = self.session
        if not (session.restart and self.settings.resume and self.group.ranks.first):
            return
        lost = account(session.run_dir, session.restart, session.first_step)
        if lost is not None:
            self.metrics.write("restart", session.first_step, lost)
            self.console.say(
                f"stood still for {duration(lost['down_seconds'])}; "
                f"{lost['repeated_steps']} logged steps are taken again"
            )

    def _log(self) -> None:
        """End an interval of metrics; on a GPU its line is written one interval later, without a wait."""
        if not (self.meter.steps or self.meter.open):  # a resume may have nothing left to do but this line
            return
        epoch = max(0, self.position.samples - 1) // self.training.samples + 1
        remark = self.training.step.remark()
        if remark is not None:
            self.console.say(remark)
        reading = self.meter.read(
            self.position.step, {"epoch": epoch, **learning_rates(self.training.optimizer)}
        )
        if self.training.gauges.any or self.group.together:
            self._gauge(reading)  # now: a line that is written late is of this interval, too
        self._flush()
        if self._writes_late:
            self._pending = reading
        else:
            self._write(reading)

    @property
    def _writes_late(self) -> bool:
        """True if a line waits for the next one, so that nobody waits for the GPU."""
        return self.group.device.type == "cuda"

    def _flush(self) -> None:
        """Write the line that is still on its way."""
        reading, self._pending = self._pending, None
        if reading is not None:
            self._write(reading)

    def _write(self, reading: Reading) -> None:
        step, late = reading.step, reading.taken.step_seconds
        self._step_seconds = late if not self._step_seconds else 0.8 * self._step_seconds + 0.2 * late
        if reading.on_its_way:
            values = reading.values()
            loss = values.get("loss")
            self.metrics.write("train", step, values)
        else:
            loss = reading.loss
            self.metrics.write("train", step, reading.values)
        if loss is not None and not math.isfinite(loss):
            if self.settings.nonfinite == "stop":
                raise NotFinite(step)
            self.console.say(f"warning: the loss is {loss} at step {step}")
        self._told = (loss, reading)
        if self.console.due():
            shown, rate, *own = self._last_facts()
            epoch = self.training.of_epochs(int(reading.taken.facts["epoch"]))
            facts = "  ".join([*([shown] if shown else []), *own, rate])
            self.console.progress(
                f"{epoch}step {step}/{self.training.last_step()}  {facts}  {duration(self._left(step))} left"
            )

    def _last_facts(self) -> list[str]:
        """The loss, or an empty word where there is none, the rate and the task's own values, of the last line of metrics."""
        if self._told is None:
            return []
        loss, reading = self._told
        own = [f"{name} {value:.4g}" for name, value in reading.own.items()]
        rate = _rate(reading.taken.samples / reading.taken.seconds)
        return ["" if loss is None else f"loss {loss:.4g}", rate, *own]

    def _gauge(self, reading: Reading) -> None:
        """Add what else is known of the interval, and say what has come of it."""
        values = reading.taken.times()
        reading.more.update(
            self.training.gauges.values(values), **self.training.pace.values(values["step_seconds"])
        )
        remark = self.training.pace.remark()
        if remark is not None:
            self.console.say(remark)

    def _draw(self) -> None:
        """Draw the bar, where there is a terminal; called by another thread, a few times a second."""
        step = self.watch.step
        if not self._began or not self.console.draws(step):
            return
        epoch = self.training.of_epochs(max(0, self.position.samples - 1) // self.training.samples + 1)
        seconds, facts = self.watch.step_seconds(), [each for each in self._last_facts() if each]
        if not facts and seconds:  # before the first line of metrics
            facts = [_rate(self.settings.batch_size / seconds)]
        left = self._left(step) if seconds or self._step_seconds else None
        elapsed = time.monotonic() - self._began
        self.console.draw(Bar(step, self._last, elapsed, left, epoch, facts))

    def _left(self, step: int) -> float:
        """Seconds to the end, from the steps of late and the last evaluation."""
        settings, steps = self.settings, self.training.last_step() - step
        samples = self.position.samples + steps * settings.batch_size
        evaluations = steps // settings.evaluate_steps if settings.evaluate_steps else 0
        if settings.evaluate_every:
            epochs = min(samples // self.training.samples, self.training.epochs())
            evaluations += max(0, epochs - self.position.closed_epochs) // settings.evaluate_every
        step_seconds = self._step_seconds or self.watch.step_seconds()
        return steps * step_seconds + evaluations * self._evaluation_seconds

    def _in_background(self) -> None:
        """Do what the watch's thread does a few times a second."""
        self.metrics.flush_held()
        self.meter.look()
        self.training.gauges.look()
        self.training.pace.look()
        self._draw()
        if not self._reserved and self.session.watch.step > self.session.first_step:
            self._reserved = True  # after the first step the optimizer has its state
            # A sharded model gives its state from the thread alone that steps.
            if self.group.device.type == "cuda" and self.group.ranks.first and not self.training.sharded:
                # The states may change beside it, and pinned memory may be short: the first save is slower then.
                with contextlib.suppress(RuntimeError):
                    average = self.training.average
                    state = {} if average is None else average.state_dict()
                    reserve([self.training.model.state_dict(), self.training.optimizer.state_dict(), state])

    def _end(self, complete: bool, seconds: float) -> None:
        """Say and write down how it ended; when it is to go on, leave the marker for the batch script."""
        training, step = self.training, self.position.step
        if not complete:
            self.metrics.write("end", step, {"reason": self.session.watch.reason, "seconds": seconds})
            self.session.stopped(step)
            return
        early = self.judge.spent and step < training.last_step()
        cut = not early and not is_used_up(self.position.samples, training.samples, vars(self.settings))
        reason = "early_stop" if early else self.limit.name if cut else "epochs"
        values = {"reason": reason, "epochs": training.epoch, "seconds": seconds, **training.results.values}
        self.metrics.write("end", step, values)
        epochs = "" if training.stream else f"{training.epoch} epochs, "
        alone = self.settings.most_epochs is None and self.limit.name == "max_steps"
        stopped = f" (stopped by {self.limit.name})" if cut and not alone else ""
        if early:
            stopped = f" ({self.judge.describe_end()})"
        self.console.say(
            f"done: {epochs}{step} steps, {duration(seconds)}, {describe(training.results.values)}{stopped}"
        )


class _Limit(NamedTuple):
    """The step to stop at, if there is one, and the setting that says so."""

    step: Optional[int]
    name: str


def _step_limit(settings: Settings, environment: Mapping[str, str]) -> _Limit:
    """``max_steps``, unless ``SLURMGPU_MAX_STEPS`` cuts the run shorter."""
    text = environment.get("SLURMGPU_MAX_STEPS", "")
    if text and not (text.isdecimal() and int(text)):
        raise SettingsError(f"SLURMGPU_MAX_STEPS is {text!r}; it must be a whole number of at least 1")
    if text and (settings.max_steps is None or int(text) < settings.max_steps):
        return _Limit(int(text), "SLURMGPU_MAX_STEPS")
    return _Limit(settings.max_steps, "max_steps")


def _length(training: Training) -> str:
    """Return how long a training is, as it is said at its start."""
    if training.stream:
        return "a stream, "
    epochs = training.settings.most_epochs
    return (
        f"{training.samples} samples an epoch, "
        if epochs is None
        else f"{epochs} epoch{'s' * (epochs != 1)} of {training.samples} samples, "
    )


def _already_finished(found: Generation, settings: Settings) -> str:
    facts = found.manifest
    early = is_spent(facts.get("early_stop"), settings.early_stop)
    longer = "early_stop.patience" if early else "epochs or max_steps"
    return (
        f"already done: {facts['epoch']} epochs, {facts['step']} steps, {describe(facts['results'])} "
        f"(checkpoints/{found.path.name}); to train on, raise {longer} in the run directory's train.json"
    )


def _rate(samples_per_second: float) -> str:
    form = ",.0f" if samples_per_second >= 10 else ".2g"
    return f"{samples_per_second:{form}} samples/s"
