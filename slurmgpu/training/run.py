"""A run from its directory to its last checkpoint: resume, train, save, report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import torch

from .errors import EvaluationFailed, Mismatch, NotFinite, Paused, SettingsError, TrainingError
from .export import AVERAGE
from .fitting.finder import find, found_before
from .formats.checkpoint import is_finished, is_spent, is_used_up
from .formats.combinations import clashes
from .formats.metrics import METRICS_FILE
from .formats.settings import REMOVED
from .generators import states_of
from .loop import Loop
from .optimizers import by_name, left_out, states_in, unknown_options, without_states
from .processes.group import Group
from .resume import restore, restore_rank
from .saving.checkpoint import Generation
from .saving.checkpoint import require as require_facts
from .saving.pieces import Owned, refuse_uneven
from .saving.saver import Saved, Saving
from .saving.snapshot import plain_state, reserve, try_out
from .schedules import warmup_steps
from .session import Limits, Session
from .settings import Config, Settings, divided
from .sharding import fully, pipeline
from .sharding.pipeline import Staged
from .task import Task, load
from .versions import with_versions
from .watching import profiling
from .watching.advice import awkward_sizes, is_full, lone_samples, memory_advice, tensor_core_multiple
from .watching.console import Console, describe, describe_bytes, duration
from .watching.lost import account
from .watching.metrics import Line, Metrics, Tracking, require
from .watching.phases import phases_for
from .watching.signals import Signals

__all__ = ["check_strategy", "train"]

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
    run = _Run(settings, session, limit, signals)
    console.open()
    try:
        run.train(started)
    except NotFinite:
        session.mark("nonfinite", session.watch.step)
        raise
    except Mismatch as error:
        session.mark("mismatch", error.step)
        raise
    except Exception as error:
        if advice is not None and is_full(error):
            advice.append(memory_advice(error, run.settings, group))
        raise
    finally:
        session.close()
        console.close()


class _Run:
    """One start of a training, from the checkpoint found to the one it leaves."""

    def __init__(
        self, settings: Settings, session: Session, limit: _Limit, signals: Optional[Signals]
    ) -> None:
        self.settings, self.session, self.limit, self.signals = settings, session, limit, signals
        self.group, self.console, self.found = session.group, session.console, session.found
        self._generated = Metrics(None, session.restart)
        self._reserved = self._noted = False

    def train(self, started: float) -> None:
        """Everything between the opening of the run directory and its closing."""
        if self.found is not None:
            require_facts(self.found, *_FACTS)
        if self.found is not None and is_finished(self.found.manifest, vars(self.settings), self.limit.step):
            self.console.say(_already_finished(self.found, self.settings))
            self.session.replicas.close()
            return
        tracking = self._tracking()
        metrics = self._lines(METRICS_FILE, tracking.put)
        if self.found is not None:
            metrics.recover(self.found.manifest.get("lines", []))
        task = load(self.settings.task)
        if fully.is_asked_for(self.settings, self.group):
            fully.require_torch_of(self.group.device)
            fully.refuse(task)
        if pipeline.is_asked_for(self.settings, self.group):
            stages = self.settings.pipeline_stages or self.group.ranks.world_size
            pipeline.refuse(task)
            self.group.form_pipeline(stages)
        if task.has("sample"):
            self._generated = self._lines("generated.jsonl")
        self.group.on_first(lambda: task.prepare(Config(self.settings)))
        self.settings = self._divided(task)
        loop = self.loop = Loop(task, self.settings, self.session, metrics, self.limit.step)
        if self.found is not None:
            restore(loop)
        loop.connect()
        if self.found is not None:
            restore_rank(loop)  # last, because all that was built before may have drawn
        with tracking:
            self._announce()
            self.session.begin(self.signals, self._note, self._in_background)
            loop.callbacks.start(loop.model, Config(self.settings))
            complete = self._run()
            self._save_for_good(complete)
            if complete:
                loop.callbacks.end(loop.model, loop.results.values)
            loop.close()
            self._end(complete, time.perf_counter() - started)
        self.group.barrier()  # nobody leaves before the last checkpoint counts: srun ends the rest soon after
        if not complete:
            raise Paused(self.session.watch.reason)

    def _divided(self, task: Task) -> Settings:
        """Return the settings with the micro-batch as a number: as the checkpoint says, or found now, where it is auto."""
        settings = self.settings
        if settings.micro_batch == "auto" and self.found is not None:
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

    def _run(self) -> bool:
        """Train to the end (True), or to where all have agreed to stop; also after a failure no line is lost."""
        loop, save, wait = self.loop, self._save, self._wait_for_save
        if self.settings.sanity:
            loop.after_first = self._try_out
        if self.session.replicas.on:
            loop.keep, loop.metrics.holds = self._keep, True
        phases = phases_for(self.settings, self.group.device, self.console)
        profile = profiling.begin(loop.step, self.session, loop.last_step(), phases)
        if profile is not None or phases.ranges:
            save, wait = phases.during("saving", save), phases.during("saving", wait)
            unmark = loop.mark(phases)
            if profile is not None and not phases.ranges:
                profile.on_end = unmark
        try:
            return loop.run(save, wait, self._report_epoch, profile)
        except Mismatch:
            self._save_for_good(complete=False)
            raise
        except EvaluationFailed as error:
            failed = error
            self._save_unevaluated(error)
        finally:
            loop.metrics.flush()
            if profile is not None:
                profile.close()
        raise failed if failed.own is None else failed.own

    def _in_background(self) -> None:
        """What the watch's thread does a few times a second."""
        self.loop.metrics.flush_held()
        self.loop.meter.look()
        self.loop.gauges.look()
        self.loop.pace.look()
        self.loop.draw()
        if not self._reserved and self.session.watch.step > self.session.first_step:
            self._reserved = True  # after the first step the optimizer has its state
            # A sharded model gives its state from the thread alone that steps.
            if self.group.device.type == "cuda" and self.group.ranks.first and not self.loop.sharded:
                # The states may change beside it, and pinned memory may be short: the first save is slower then.
                with contextlib.suppress(RuntimeError):
                    average = self.loop.average
                    state = {} if average is None else average.state_dict()
                    reserve([self.loop.model.state_dict(), self.loop.optimizer.state_dict(), state])

    def _announce(self) -> None:
        """Say and write down who trains what, and where it starts."""
        loop, ranks, device = self.loop, self.group.ranks, self.group.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
        resumed = None if self.found is None else self.found.path.name
        values = {
            "world_size": ranks.world_size,
            "launcher": ranks.launcher,
            "device_name": name,
            "torch": torch.__version__,
            "ranks": loop.places,
            "micro_batch": loop.micro,
            "dataset_samples": loop.dataset_samples,
            "total_steps": loop.total_steps,
            "samples": loop.position.samples,
            "resumed_from": resumed,
            "settings": self.settings.as_dict(),
            "absent": loop.gauges.absent,
        }
        loop.metrics.write("start", loop.position.step, values)
        nodes = len({each["host"] for each in loop.places})
        self.console.say(
            f"training {self.settings.task}: processes: {ranks.world_size}, nodes: {nodes}, {name}, "
            f"{self.settings.precision}, {_length(loop)}{loop.total_steps} steps, "
            f"batch {self.settings.batch_size} = {self.group.data.world_size} x {self.settings.accumulate} x {loop.micro}"
        )
        self._remark()
        if resumed is not None:
            inside = loop.position.samples % loop.samples
            where = f"epoch {loop.epoch + 1}, {inside} of {loop.samples} samples"
            if loop.stream is not None:
                where = f"{loop.position.samples} samples of the stream are through"
            self.console.say(f"resuming from checkpoints/{resumed} ({where})")
        self._account()

    def _remark(self) -> None:
        """Say what may not be as it is meant to be."""
        loop, device = self.loop, self.group.device
        if loop.precision.note is not None:
            self.console.say(loop.precision.note)
        if self.settings.batch_size > loop.samples:
            self.console.say(
                f"note: batch_size {self.settings.batch_size} is more than the {loop.samples} samples of an epoch: "
                f"a step takes samples of {self.settings.batch_size / loop.samples:.3g} epochs"
            )
        warmup = warmup_steps(self.settings, loop.total_steps)
        if warmup > loop.total_steps and not (loop.task.has("schedule") or loop.task.has("schedules")):
            reached = loop.total_steps / warmup
            self.console.say(
                f"note: warmup_steps {warmup} is more than the {loop.total_steps} steps of this "
                f"training: the learning rate rises to {reached:.3g} of lr at most"
            )
        if loop.average is not None:
            self.console.say(
                f"evaluations and exports have the average of the weights (ema: {self.settings.ema:g})"
            )
        untrained = left_out(loop.model, loop.optimizer)
        if untrained:
            self.console.say(
                f"note: {len(untrained)} parameter(s) stay as they are, because the optimizer does not have them: "
                f"{', '.join(untrained[:4])}{' and others' if untrained[4:] else ''}"
            )
        unknown = unknown_options(loop.task, loop.optimizer)
        if unknown:
            self.console.say(
                f"warning: parameter_groups sets {', '.join(map(repr, unknown))}, which AdamW does not have: it changes "
                "nothing; the options are lr, betas, eps, weight_decay, amsgrad, maximize"
            )
        if loop.task.has("parallelize"):
            self.console.say(
                f"warning: nothing calls parallelize of the task: tensor_parallel {REMOVED['tensor_parallel']}"
            )
        alone = lone_samples(loop.model, loop.sizes(), loop.micro, self.group.data.world_size)
        if alone is not None:
            self.console.say(alone)
        multiple = tensor_core_multiple(self.settings, device)
        note = awkward_sizes(loop.model, loop.micro, multiple) if multiple else None
        if note is not None:
            self.console.say(note)

    def _account(self) -> None:
        """Write down what the interruption before this start has cost (rank 0)."""
        session = self.session
        if not (session.restart and self.settings.resume and self.group.ranks.first):
            return
        lost = account(session.run_dir, session.restart, session.first_step)
        if lost is not None:
            self.loop.metrics.write("restart", session.first_step, lost)
            self.console.say(
                f"stood still for {duration(lost['down_seconds'])}; "
                f"{lost['repeated_steps']} logged steps are taken again"
            )

    def _save(self, complete: bool = False) -> None:
        """Begin a checkpoint: rank 0 what all have in common, every rank its random state and open losses."""
        loop = self.loop
        loop.flush()  # the line of this step may still be on its way from the GPU ...
        loop.metrics.flush()  # ... and a resume from here does not write it again
        loop.metrics.release()
        began = time.perf_counter()
        self._note_changes()
        self.session.collect()  # if the save before has failed, the facts are others
        losses = loop.health() if self.settings.nonfinite == "stop" else None
        self.session.save(loop.position.step, self._common, self._own, self._facts(complete), losses)
        loop.meter.saving += time.perf_counter() - began

    def _keep(self) -> None:
        """Keep a copy of the step on the nodes where one is due; its line is written only when it can no longer be lost."""
        loop, step = self.loop, self.loop.position.step
        if not self.session.keep_is_due(step):
            return
        began = time.perf_counter()
        loop.flush()
        facts = {**self._facts(complete=False), "lines": loop.metrics.waiting()}
        losses = loop.health() if self.settings.nonfinite == "stop" else None
        self.session.keep(step, self._common, self._own, facts, losses)
        loop.metrics.release()
        loop.meter.saving += time.perf_counter() - began

    def _facts(self, complete: bool) -> dict[str, object]:
        """Return what the manifest says of the training at this step."""
        loop, position = self.loop, self.loop.position
        return {
            "samples": position.samples,
            "dataset_samples": loop.dataset_samples,
            "epoch": loop.epoch,
            "evaluated": position.evaluated,
            "tested": position.tested,
            "complete": complete,
            "total_steps": loop.total_steps,
            "task_sha256": loop.task.sha256,
            "results": loop.results.values,
            **loop.judge.facts(position.step),
            "order": loop.order_mark(),
            "settings": self.settings.as_dict(),
            "stages": None if loop.staged is None else loop.staged.count,
        }

    def _common(self) -> dict[str, object]:
        """Return what all ranks have in common, by the names of the files."""
        loop = self.loop
        if loop.staged is not None:
            return self._common_of_stages(loop.staged)
        if loop.sharded:
            for each in by_name(loop.optimizer).values():
                refuse_uneven(each)
        average = {} if loop.average is None else {AVERAGE: loop.average.state_dict()}
        training = {
            "optimizer": loop.optimizer.state_dict(),
            "schedule": plain_state(loop.schedule),
            "scaler": plain_state(loop.precision.scaler),
        }
        if loop.epoch_schedule is not None:
            training["epoch_schedule"] = loop.epoch_schedule.state_dict()
        return {"model.pt": loop.model.state_dict(), "training.pt": training, **average}

    def _common_of_stages(self, staged: Staged) -> dict[str, object]:
        """Return the same of a pipeline: each stage has its own weights, and keeps the state of their optimizer itself."""
        loop = self.loop
        state, found = loop.model.state_dict(), dict[str, object]()
        model = {
            name: Owned(each, staged.owners[name]) if name in staged.owners else each
            for name, each in state.items()
        }
        found["model.pt"] = with_versions(model, state)
        training = {
            "optimizer": without_states(loop.optimizer.state_dict()),
            "schedule": plain_state(loop.schedule),
            "scaler": None,
        }
        if loop.epoch_schedule is not None:
            training["epoch_schedule"] = loop.epoch_schedule.state_dict()
        return {**found, "training.pt": training}

    def _own(self) -> dict[str, object]:
        """Return what a rank has of its own, beside its random state."""
        loop = self.loop
        own: dict[str, object] = {"meter": loop.meter.state()}
        if loop.staged is not None and self.group.data.first:
            own["optimizer"] = states_in(loop.optimizer.state_dict())
        buffers = loop.own_buffers()
        if buffers:
            own["buffers"] = buffers
        generators = loop.generators()
        if generators:
            own["generators"] = states_of(generators)
        if loop.stream is not None:
            own["stream"] = loop.stream.state()
        if loop.task.own is not None:
            own["task"] = loop.task.state()
        return own

    def _try_out(self) -> None:
        """Save, load and evaluate on trial what no start before has saved or evaluated.

        What cannot be is known now, and not when hours of training depend on it.
        """
        loop, position = self.loop, self.loop.position
        if self.found is None:
            cost = self.session.try_saving(position.step, self._common, self._own)
            for name, part in loop.parts().items():
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
        if not position.evaluated:
            loop.try_tests()
        loop.unkept.changed()  # what is compared with, from here on

    def _note_changes(self) -> None:
        """Say once what the task changes that no checkpoint holds."""
        # A task with a state of its own has put in what it needs.
        if self._noted or self.loop.task.own is not None:
            return
        unkept = self.loop.unkept.changed()
        if unkept:
            self._noted = True
            self.console.say(
                f"note: {', '.join(unkept[:4])}{' and others' if unkept[4:] else ''} changed while the training went on, and "
                "no checkpoint has such attributes: a resume begins with their first values; if the training depends on "
                "them, make them persistent buffers of the model, or give the task a state_dict() that returns them"
            )
        changed = self.loop.beside.changed()
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
        self.loop.meter.saving += time.perf_counter() - began

    def _save_for_good(self, complete: bool) -> None:
        """The last save, on which all ranks wait; a disk that is full gets a little time."""
        self._save(complete)
        for seconds in _PATIENCE:
            saved = self.session.collect()
            if saved is None or saved.error is None:
                break
            time.sleep(seconds)
            self._save(complete)
        self.session.finish(self.loop.position.step)

    def _save_unevaluated(self, failed: EvaluationFailed) -> None:
        """The steps are as good as ever when measuring them has failed: that must not cost them."""
        step = self.loop.position.step
        try:
            if failed.changed:
                raise TrainingError(
                    f"evaluate failed after step {step} and left the model's parameters changed: "
                    "they are not saved, and an earlier checkpoint is what counts"
                )
            self._save_for_good(complete=False)
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

    def _note(self, saved: Saved) -> None:
        if saved.error is not None:
            self.loop.judge.failed(saved.step)
        else:
            path = f"checkpoints/step-{saved.step}"
            values = {"path": path, "seconds": saved.seconds, "bytes": saved.size}
            self.loop.metrics.write("checkpoint", saved.step, values)
            self.loop.callbacks.saved(self.session.run_dir / path)

    def _report_epoch(self) -> None:
        loop = self.loop
        self.console.say(
            f"{loop.of_epochs(loop.epoch)}step {loop.position.step}/{loop.last_step()}  "
            f"{describe(loop.results.values)}{', the best so far' if loop.judge.is_best(loop.position.step) else ''}"
        )
        if loop.results.texts:
            self._generated.write("generated", loop.position.step, loop.results.texts)

    def _end(self, complete: bool, seconds: float) -> None:
        """Say and write down how it ended; when it is to go on, leave the marker for the batch script."""
        loop, step = self.loop, self.loop.position.step
        if not complete:
            loop.metrics.write("end", step, {"reason": self.session.watch.reason, "seconds": seconds})
            self.session.stopped(step)
            return
        early = loop.judge.spent and step < loop.last_step()
        cut = not early and not is_used_up(loop.position.samples, loop.samples, vars(self.settings))
        reason = "early_stop" if early else self.limit.name if cut else "epochs"
        values = {"reason": reason, "epochs": loop.epoch, "seconds": seconds, **loop.results.values}
        loop.metrics.write("end", step, values)
        epochs = "" if loop.stream else f"{loop.epoch} epochs, "
        alone = self.settings.most_epochs is None and self.limit.name == "max_steps"
        stopped = f" (stopped by {self.limit.name})" if cut and not alone else ""
        if early:
            stopped = f" ({loop.judge.describe_end()})"
        self.console.say(
            f"done: {epochs}{step} steps, {duration(seconds)}, {describe(loop.results.values)}{stopped}"
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


def _length(loop: Loop) -> str:
    """Return how long a training is, as it is said at its start."""
    if loop.stream:
        return "a stream, "
    epochs = loop.settings.most_epochs
    return (
        f"{loop.samples} samples an epoch, "
        if epochs is None
        else f"{epochs} epoch{'s' * (epochs != 1)} of {loop.samples} samples, "
    )


def _already_finished(found: Generation, settings: Settings) -> str:
    facts = found.manifest
    early = is_spent(facts.get("early_stop"), settings.early_stop)
    longer = "early_stop.patience" if early else "epochs or max_steps"
    return (
        f"already done: {facts['epoch']} epochs, {facts['step']} steps, {describe(facts['results'])} "
        f"(checkpoints/{found.path.name}); to train on, raise {longer} in the run directory's train.json"
    )
