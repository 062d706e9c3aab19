"""The training loop: steps, and what is due between them.

One optimizer step sees ``batch_size`` samples: ``accumulate`` micro-batches on each rank. The step's gradient
is that of the mean over all of them, whatever the number of ranks, also in the training's shorter last step.
Nothing on the path of a step waits for the GPU, and whatever is not due in every step is decided outside of it.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Optional, Union

import torch

from .averaged import Average
from .callbacks import Callbacks
from .data import count_workers, train_batches
from .errors import EvaluationFailed, NotFinite, SettingsError
from .evaluation import Evaluation, Results, trained_sums
from .generators import put_back as put_generators_back
from .generators import reach, states_of
from .judging import Judge
from .optimizers import by_name, learning_rates, make_optimizer
from .order import Order, Share, mix, shares
from .orders import make_order
from .own_step import OwnStep
from .pipeline_step import PipelineStep
from .precision import Precision
from .processes.ranks import cpu_model
from .saving.randomness import seed_all
from .schedules import make_epoch_schedule, make_schedule
from .session import Session
from .settings import Config, Settings, micro_batch
from .setup import make_model, set_backends, spread
from .sharding import fully, layers, pipeline
from .sharding.local import settle
from .sharding.meta_init import MetaInit
from .step import Step, Trained, means, put_back
from .streams import ENDLESS, Stream
from .task import Data, Task, is_stream
from .watching.bar import Bar
from .watching.checksums import Checksums, Sums
from .watching.console import duration
from .watching.gauges import Gauges
from .watching.meter import Meter, Reading
from .watching.metrics import Metrics
from .watching.pace import Pace, forward_timer
from .watching.phases import Phases
from .watching.profiling import Profile
from .watching.verifying import Verifier
from .weights.loading import load_pretrained, load_pretrained_cut

__all__ = ["Loop", "Position"]

_FIRST_SAMPLES = 8  # of each rank, in the metrics of a start


@dataclass
class Position:
    """How far a training is: optimizer steps, samples of all ranks, epochs that are closed, and the step last evaluated.

    An epoch is closed with the evaluation at its end, if one is due there.
    """

    step: int = 0
    samples: int = 0
    evaluated: int = 0
    tested: int = 0


class Loop:
    """One rank's part of a training; ``limit`` is the step to stop at, if there is one.

    It is built at the first step, so that a checkpoint can be restored; ``connect`` starts it from where it is then.
    """

    keep: Optional[Callable[[], None]] = None
    """Called before anything follows on a step: a copy of it may be due on the nodes."""
    verifier: Optional[Verifier] = None

    def __init__(
        self, task: Task, settings: Settings, session: Session, metrics: Metrics, limit: Optional[int]
    ) -> None:
        self.task, self.settings, self.limit, self.metrics = task, settings, limit, metrics
        self.session, self.console, self.watch = session, session.console, session.watch
        self.group = group = session.group
        self.position = Position()
        self.judge = Judge(settings)
        self.results = Results({}, {})
        self.micro = micro_batch(settings, group.data.world_size)
        self.precision = Precision(settings.precision, group.device, settings.init_scale)
        cfg = Config(settings)
        set_backends(settings)
        seed_all(settings.seed)
        self.staged: Optional[pipeline.Staged] = None
        self.model = self._make_model(cfg)
        self.wrapped: torch.nn.Module = self.model
        self._load_data(cfg)
        # Before the optimizer, which may want their parameters, and once more for what came with it.
        task.beside(self.model, group.device)
        self.optimizer = make_optimizer(task, self.model, cfg)
        self.beside = task.beside(self.model, group.device)
        self.unkept = task.unkept(self.model)
        self.beside.refuse_trained(self.optimizer.param_groups, self.model, str(task.path))
        self.average = None if settings.ema is None else Average(self.model, settings.ema)
        self.total_steps = self.remaining_steps()
        self._cfg = cfg
        self._rates = [
            copy.deepcopy({name: each[name] for name in each if name != "params"})
            for each in self.optimizer.param_groups
        ]
        self.renew_schedule()
        self.epoch_schedule = make_epoch_schedule(
            task, self.optimizer, cfg, settings, evaluated=bool(self.evaluation)
        )
        seed_all(mix(settings.seed, 1 + group.data.rank) >> 1)
        self.meter = Meter(
            group, means(settings, list(by_name(self.optimizer)), task.has("step")), self.console.say
        )
        self.gauges = Gauges(settings, group, task.flops(cfg))
        self._gauged = self.gauges.any or group.together
        self.callbacks = Callbacks(task, group, self.console)
        self._pending: Optional[Reading] = None
        self._step_seconds = self._evaluation_seconds = self._began = 0.0
        self._last = 0
        self._told: Optional[tuple[Optional[float], Reading]] = None
        self.after_first: Optional[Callable[[], None]] = None

    def _make_model(self, cfg: Config) -> torch.nn.Module:
        """Return the task's model with its first weights, whole on the device, or cut."""
        task, settings, session, group = self.task, self.settings, self.session, self.group
        staged = pipeline.is_asked_for(settings, group)
        self.sharded = session.sharded = staged or fully.is_asked_for(settings, group)
        # A model that is sharded goes to the device piece by piece.
        layered = settings.strategy == "model_parallel"
        device = torch.device("cpu") if self.sharded or layered else group.device
        if settings.meta_device and self.sharded:
            return self._cut_from_meta(cfg, MetaInit(task, settings, group))
        model = make_model(task, cfg, settings, device)
        if session.found is None:  # a checkpoint has all weights
            load_pretrained(model, settings, group, self.console)
        if self.sharded:
            return self._cut(model)
        return layers.laid_out(model, task, layers.devices_of(group.device)) if layered else model

    def _cut(self, model: torch.nn.Module, meta: Optional[MetaInit] = None) -> torch.nn.Module:
        """Keep this process's stage of the model, or its pieces."""
        if pipeline.is_asked_for(self.settings, self.group):
            self.staged = pipeline.staged(model, self.task, self.group, meta)
            return model
        return fully.fully_sharded(model, self.task, self.settings, self.group, meta)

    def _cut_from_meta(self, cfg: Config, meta: MetaInit) -> torch.nn.Module:
        """Make the model without memory, cut it, and give what this process keeps its first values."""
        with meta.making():
            model = make_model(self.task, cfg, self.settings, None)
        model = self._cut(model, meta)
        if self.session.found is None:
            meta.require_values(load_pretrained_cut(model, self.settings, self.group, self.console))
        else:
            meta.require_values(model.state_dict())  # all that the checkpoint puts back
        return model

    def renew_schedule(self) -> None:
        """Make the schedule for the training's length, at its start."""
        for group, rates in zip(self.optimizer.param_groups, self._rates):
            # An earlier schedule has set its first rate, and torch's LinearLR, say, multiplies what it finds.
            for name in group.keys() - rates.keys() - {"params"}:
                del group[name]
            group.update(copy.deepcopy(rates))
        self.schedule = make_schedule(self.task, self.optimizer, self._cfg, self.settings, self.total_steps)

    def _load_data(self, cfg: Config) -> None:
        train = self._train = self.task.dataset(cfg)
        self._workers = count_workers(self.settings.workers, self.group, train)
        self.order: Optional[Order] = None
        self.stream: Optional[Stream] = None
        if is_stream(train):
            if self.group.data is not self.group.ranks:
                raise SettingsError(
                    f"several processes take the same samples (pipeline), and the training data are a stream "
                    f"({type(train).__name__}): which processes read the same of it is not worked out yet; give samples by number"
                )
            self.stream = self._make_stream(train)
            if self.task.ordered_by is not None:
                self.console.say(
                    f"warning: nothing calls {self.task.ordered_by} of the task: the training data are a stream "
                    f"({type(train).__name__}), whose order is its own"
                )
            self.samples = ENDLESS
        else:
            self.order = make_order(self.task, train, cfg, self.settings, self.group)
            self.samples = self.order.samples
        epochs = self.settings.most_epochs
        if self.settings.drop_last and epochs and epochs * self.samples < self.settings.batch_size:
            raise SettingsError(
                f"drop_last leaves nothing to train on: batch_size is {self.settings.batch_size}, and the "
                f"{epochs} epoch{'s' * (epochs > 1)} ha{'ve' if epochs > 1 else 's'} {epochs * self.samples} samples in all; "
                "lower batch_size, or set drop_last: false"
            )
        self.evaluation = Evaluation(self.task, cfg, self.precision, self.session)
        self.evaluation.load(
            None if self.stream else train, self.settings, self.settings.eval_micro_batch or self.micro
        )
        self.judge.require_evaluations(bool(self.evaluation))

    def connect(self) -> None:
        """Tie the ranks' models together, and start the data at the position."""
        own_step = self.task.has("step")
        self.wrapped = self.staged or spread(self.model, self.settings, self.group, own_step)
        if self.average is not None:
            self.average.begin()
        batches = self._batches()
        timer = forward_timer(self.wrapped, self.group, self.settings.accumulate)
        trained = Trained(self.wrapped, self.optimizer, self.schedule, self.precision, self.average)
        self.step: Step = self._kind_of_step()(
            self.task, self.settings, self.session, trained, batches, self.meter, timer
        )
        if self.settings.checksum_steps or self.settings.verify_steps:
            self._look_at_bits(self.settings.checksum_steps, self.settings.verify_steps)
        self.watch.step = self.position.step
        self.places = self.group.collect(self._place())
        hosts = [str(each["host"]) for each in self.places]
        self.pace = Pace(self.group, self.watch, self.meter, timer, hosts)

    def _kind_of_step(self) -> type[Step]:
        if self.task.has("step"):
            return OwnStep
        if self.staged is not None:
            return PipelineStep
        return Step

    def _look_at_bits(self, written: Optional[int], verified: Optional[int]) -> None:
        """From now on, some steps leave what ``slurmgpu checkpoint replay`` holds others against, and some are verified."""
        session, take, position = self.session, self.step.take, self.position
        sums = Sums(self.model, by_name(self.optimizer).values(), lambda: self.meter.losses)
        file = None
        if written:
            file = Checksums(session.run_dir / "checksums", self.group.ranks.rank, session.restart)
        self.verifier = verifier = Verifier(self, lambda size: sums.of(take, size)) if verified else None
        first = position.step + 1  # DDP lays out its messages anew after a start's first step

        def taken(size: int) -> None:
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

        self.step.take = taken  # type: ignore[method-assign]

    def _make_stream(self, dataset: Data) -> Stream:
        if self.settings.max_steps is None:
            raise SettingsError(
                f"max_steps is null, and the training data are a stream ({type(dataset).__name__}), whose length nobody "
                "knows: set max_steps; the stream is read again where it ends before"
            )
        return Stream(
            dataset,
            self.group,
            seed=self.settings.seed,
            workers=self._workers,
            micro_batch=self.micro,
            collate=self.task.collate,
        )

    def _batches(self) -> Iterator[object]:
        """This rank's micro-batches, from the position on."""
        if self.stream is not None:
            return self.stream.begin()
        assert self.order is not None
        return train_batches(
            self._train,
            self.order,
            self._shares(),
            self.group,
            seed=self.settings.seed,
            workers=self._workers,
            collate=self.task.collate,
        )

    def _shares(self) -> Iterator[Share]:
        """Return what this rank takes from here to the end."""
        ranks, batch = self.group.data, self.settings.batch_size
        start, end = self.position.samples, self._end()
        return shares(start, end, batch, self.micro, rank=ranks.rank, world_size=ranks.world_size)

    def _place(self) -> dict[str, object]:
        """Who this rank is, and the first samples that it takes from here, at most those of a micro-batch."""
        low, high, counts = next(self._shares(), (0, 0, False))
        known = self.order if counts else None
        pieces = known.pieces(low, min(high, low + _FIRST_SAMPLES)) if known else []
        first = [int(index) for _, piece, _ in pieces for index in piece]
        ranks, device = self.group.ranks, str(self.group.device)
        place = {"rank": ranks.rank, "host": ranks.host, "pid": os.getpid(), "device": device}
        place["threads"] = torch.get_num_threads()  # the order of sums on the CPU hangs on it
        if self.group.device.type == "cpu":
            place["cpu"] = cpu_model()  # as the instructions by which they are taken do
        return {**place, "first_samples": first}

    def mark(self, phases: Phases) -> Callable[[], None]:
        """Tell what the loop is at; what this returns leaves its steps as they were."""
        self._evaluate = phases.during("evaluating", self._evaluate)  # type: ignore[method-assign]
        return self.step.mark(phases)

    def close(self) -> None:
        """End the data-loader workers."""
        self.step.batches = iter(())
        self.evaluation.close()

    def order_mark(self) -> Optional[int]:
        """Return a number that tells whether the order of the epoch last trained on is as it was; None: no need."""
        if self.order is None:
            return None
        return self.order.mark(max(0, self.position.samples - 1) // self.samples)

    def of_epochs(self, epoch: float) -> str:
        """Return an epoch as a line of progress names it; a stream has none."""
        return "" if self.stream is not None else f"epoch {epoch:g}/{self._epochs()}  "

    @property
    def dataset_samples(self) -> Optional[int]:
        """Samples of an epoch; None for a stream."""
        return None if self.stream is not None else self.samples

    @property
    def epoch(self) -> int:
        """Whole epochs so far."""
        return self.position.samples // self.samples

    def _epochs(self) -> int:
        """Epochs of the whole training; with ``max_steps`` alone as many as it begins from here on."""
        return self.settings.most_epochs or -(-self._end() // self.samples)

    def _end(self) -> int:
        """Return the position, in samples, at which the epochs are through, or the steps where these alone are counted."""
        epochs, position, batch = self.settings.most_epochs, self.position, self.settings.batch_size
        if epochs is None:
            assert self.settings.max_steps is not None
            return position.samples + max(0, self.settings.max_steps - position.step) * batch
        end = epochs * self.samples
        if self.settings.drop_last:
            end -= (end - position.samples) % batch
        return end

    def remaining_steps(self) -> int:
        """Optimizer steps from here to the end of the training that the settings describe."""
        # In whole numbers: the end of a stream's epoch is beyond what a float holds.
        steps = -(-(self._end() - self.position.samples) // self.settings.batch_size)
        if self.settings.max_steps is not None:
            steps = min(steps, self.settings.max_steps - self.position.step)
        return max(0, steps)

    def sizes(self) -> list[tuple[str, int]]:
        """Return the samples of the steps from here on: of the last one, and of those before it."""
        steps, batch = self.remaining_steps(), self.settings.batch_size
        last = min(batch, self._end() - self.position.samples - (steps - 1) * batch)
        found = [("the training's last step", last)] if steps and last < batch else []
        return [("each step", batch), *found] if steps > len(found) else found

    def last_step(self) -> int:
        """Return the number of the step at which this start ends."""
        end = self.position.step + self.remaining_steps()
        return end if self.limit is None else min(self.limit, end)

    def run(
        self,
        save: Callable[[], None],
        wait_for_save: Callable[[], None],
        report: Callable[[], None],
        profile: Optional[Profile] = None,
    ) -> bool:
        """Train to the end; False when all ranks have agreed to stop before it.

        ``save`` is called where a checkpoint is due, ``wait_for_save`` where the one under way must count before
        another step, ``report`` after each evaluation. Steps go through ``profile`` until it is through.
        """
        settings, position, watch, bound = self.settings, self.position, self.watch, self.session.bound
        last = self._last = self.last_step()
        self._began = time.monotonic()
        self.wrapped.train()
        self.meter.start_clock()  # what was built and joined before is not part of a step
        while True:
            if self.keep is not None:
                self.keep()
            done = position.step >= last or self.judge.spent
            due = False
            evaluating = self._evaluation_is_due(done)
            if evaluating or done or self.epoch > position.evaluated:
                epochs = range(position.evaluated + 1, self.epoch + 1)
                due = any(epoch % settings.checkpoint_every == 0 for epoch in epochs)
                if evaluating and not self._evaluate():
                    watch.stop()  # only to wait until all know why; they are all here
                    return False
                self._close_epochs()
                done = position.step >= last or self.judge.spent
                if evaluating or done or not self.evaluation:
                    report()
            if done:
                self._log()
                self.flush()
                return True
            if bound.must_wait(position.step):
                wait_for_save()
            best = evaluating and self.judge.is_best(position.step)
            if best or bound.due(position.step) or (due and self.session.affords(position.step)):
                save()
                if self.keep is not None and (best or bound.is_for_good(position.step)):
                    wait_for_save()  # a start after a kill goes on from beyond it, and does not make it again
            if watch.step >= watch.line and watch.stop():
                return False
            take, until = self.step.take, min(last, self._next_event())
            if profile is not None and not profile.through:
                take, until = profile.take, min(until, position.step + settings.log_every)
            told = self.callbacks.around(take, self.model, lambda: position.step)
            self._steps(until, told)
            if self.verifier is not None and self.verifier.mismatch is not None:
                raise self.verifier.mismatch
            if self.after_first is not None:
                self._try_out(self.after_first)

    def _close_epochs(self) -> None:
        """What follows the evaluation at the end of each epoch."""
        for epoch in range(self.position.evaluated + 1, self.epoch + 1):
            if self.epoch_schedule is not None:
                self.epoch_schedule.end_epoch()
            self.callbacks.epoch_end(self.model, epoch, self.results.values)
        self.position.evaluated = self.epoch

    def _next_event(self) -> int:
        """Return the next step after which something other than a line of metrics may be due."""
        step, batch, settings = self.position.step, self.settings.batch_size, self.settings
        if self.after_first is not None:
            return step + 1
        left_in_epoch = self.samples - self.position.samples % self.samples
        stops = [settings.evaluate_steps, settings.verify_steps]
        evaluated = [step - step % each + each for each in stops if each]
        session = self.session
        return min(
            *evaluated, step - (-left_in_epoch // batch), session.bound.next(step), session.next_kept(step)
        )

    def _try_out(self, act: Callable[[], None]) -> None:
        """What is done once, after the first step; its time is no step's."""
        self.after_first = None
        began = time.perf_counter()
        act()
        seconds = time.perf_counter() - began
        self.meter.pause(seconds)
        self.watch.paused += seconds

    def parts(self) -> dict[str, Any]:
        """Whatever has a state that a checkpoint holds, by name."""
        scaler = self.precision.scaler
        named = {
            "model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, "scaler": scaler,
            "task": self.task.own, "epoch_schedule": self.epoch_schedule,
            "average": self.average,
        }  # fmt: skip
        return {name: part for name, part in named.items() if part is not None}

    def try_tests(self) -> None:
        """Evaluate a batch of each test set on trial; what an evaluation changes is as before."""
        before = [each.detach().clone() for each in self.model.buffers()]
        self.gauges.paused = True
        with self._as_evaluated():
            names = self.evaluation.measures(self.staged or self.model, 1)
            if names is not None:
                names = self._also_of_later_batches(names)
        self.gauges.paused = False
        put_back(self.model.buffers(), before)
        if names is not None and not self._measures_more:
            hint = " (sanity: false leaves it to the first evaluation)"
            self.judge.require_metrics(names, hint)
            if self.epoch_schedule is not None:
                self.epoch_schedule.require_metric(names, hint)

    @property
    def _measures_more(self) -> bool:
        """True if an evaluation has more than what its batches measure."""
        return self.task.has("finish") or self.task.has("sample")

    def _also_of_later_batches(self, names: list[str]) -> Optional[list[str]]:
        """Return the names of all measures, where those of the first batch lack one that the training goes by.

        A later batch may have it: the whole test set is evaluated before a metric is refused.
        """
        wanted = self.judge.metrics
        if self.epoch_schedule is not None and self.epoch_schedule.metric is not None:
            wanted.add(self.epoch_schedule.metric)
        missing = sorted(wanted.difference(names))
        if not missing or self._measures_more:
            return names
        self.console.say(
            f"the first batch of the evaluation has no {', '.join(map(repr, missing))}: evaluating all of it, to see "
            "whether another has"
        )
        return self.evaluation.measures(self.staged or self.model)

    @contextlib.contextmanager
    def _as_evaluated(self) -> Iterator[None]:
        """The model has the average of its weights inside, if there is one; buffers of a rank's own are its own again after.

        And what is drawn from generators of the task's own is as if it had not been.
        """
        own, generators = self.own_buffers(), self.generators()
        states = states_of(generators)
        try:
            with contextlib.nullcontext() if self.average is None else self.average.in_place():
                yield
        finally:
            put_back(self.model.buffers(), own)
            put_generators_back(generators, states)
            if self.sharded:
                settle(self.model)

    def generators(self) -> list[Any]:
        """Random generators that the model and the task keep; those of a stream go on with it."""
        found = self.task.generators(self.model)
        others = reach(self._train) if found and self.stream is not None else []
        return [each for each in found if not any(each is other for other in others)]

    def own_buffers(self) -> list[torch.Tensor]:
        """Copies of this rank's buffers where they are not rank 0's; else none."""
        if self.settings.broadcast_buffers or self.group.ranks.first or self.staged is not None:
            return []
        return [each.detach().clone() for each in self.model.buffers()]

    def _steps(self, until: int, take: Callable[[int], None]) -> None:
        """Train up to a step, or to the line that the watch has drawn, with a line of metrics now and then."""
        position, watch, meter = self.position, self.watch, self.meter
        batch, log_every = self.settings.batch_size, self.settings.log_every
        end = self._end()
        self.step.forget_gradients()
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

    def _evaluation_is_due(self, done: bool) -> bool:
        """Whether to evaluate at this position, and it has not been done yet."""
        position, settings = self.position, self.settings
        if not self.evaluation or (position.tested == position.step and position.step):
            return False
        every, steps = settings.evaluate_every, settings.evaluate_steps
        epochs = range(position.evaluated + 1, self.epoch + 1)
        if done or (every and any(epoch % every == 0 for epoch in epochs)):
            return True
        return bool(steps and position.step and position.step % steps == 0)

    def _evaluate(self) -> bool:
        """Evaluate, unless a stop is near; then it is for the resumed run to do."""
        self.flush()
        started = time.perf_counter()
        due = self._evaluation_is_due(False)  # and not just because the training ends, which it need not
        self.gauges.paused = True
        with self._as_evaluated():
            results = self.evaluation.run(self.staged or self.model)
        self.gauges.paused = False
        if results is None:
            return False
        try:
            self.judge.look(self.position.step, results.values)
            if due and self.epoch_schedule is not None:
                self.epoch_schedule.look(results.values)
        except SettingsError as error:  # no step is lost to it
            raise EvaluationFailed([], error, changed=False) from error
        self.results = results
        seconds = time.perf_counter() - started
        self.metrics.write(
            "eval", self.position.step, {"epoch": self.epoch, "seconds": seconds, **self.results.values}
        )
        self._evaluation_seconds = seconds
        self.meter.pause(seconds)
        self.watch.paused += seconds
        self.position.tested = self.position.step
        return True

    def _log(self) -> None:
        """End an interval of metrics; on a GPU its line is written one interval later, without a wait."""
        if not (self.meter.steps or self.meter.open):  # a resume may have nothing left to do but this line
            return
        epoch = max(0, self.position.samples - 1) // self.samples + 1
        remark = self.step.remark() if isinstance(self.step, OwnStep) else None
        if remark is not None:
            self.console.say(remark)
        reading = self.meter.read(self.position.step, {"epoch": epoch, **learning_rates(self.optimizer)})
        if self._gauged:
            self._gauge(reading)  # now: a line that is written late is of this interval, too
        self.flush()
        if self.writes_late:
            self._pending = reading
        else:
            self._write(reading)

    @property
    def writes_late(self) -> bool:
        """True if a line waits for the next one, so that nobody waits for the GPU."""
        return self.group.device.type == "cuda"

    def health(self) -> Union[torch.Tensor, list[float]]:
        """Return the open losses' totals and, on rank 0, a number that is finite as long as all trained parameters are.

        A finite loss may have a gradient that is not: the parameters show it a step before the next loss does. Of a sharded
        model each rank sees its own.
        """
        totals = self.meter.totals()
        sums = trained_sums(self.model) if self.group.ranks.first or self.sharded else []
        if not sums:
            return totals
        mark = (
            torch.stack([torch.isfinite(each).to(self.group.device) for each in sums])
            .all()
            .double()
            .reciprocal()
        )
        return (
            torch.cat([totals, mark[None].to(totals.device)])
            if isinstance(totals, torch.Tensor)
            else [*totals, mark.item()]
        )

    def flush(self) -> None:
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
            shown, rate, *own = self._facts()
            epoch = self.of_epochs(int(reading.taken.facts["epoch"]))
            facts = "  ".join([*([shown] if shown else []), *own, rate])
            self.console.progress(
                f"{epoch}step {step}/{self.last_step()}  {facts}  {duration(self._left(step))} left"
            )

    def _facts(self) -> list[str]:
        """The loss, or an empty word where there is none, the rate and the task's own values, of the last line of metrics."""
        if self._told is None:
            return []
        loss, reading = self._told
        own = [f"{name} {value:.4g}" for name, value in reading.own.items()]
        rate = _rate(reading.taken.samples / reading.taken.seconds)
        return ["" if loss is None else f"loss {loss:.4g}", rate, *own]

    def draw(self) -> None:
        """Draw the bar, where there is a terminal; called by another thread, a few times a second."""
        step = self.watch.step
        if not self._began or not self.console.draws(step):
            return
        epoch = self.of_epochs(max(0, self.position.samples - 1) // self.samples + 1)
        seconds, facts = self.watch.step_seconds(), [each for each in self._facts() if each]
        if not facts and seconds:  # before the first line of metrics
            facts = [_rate(self.settings.batch_size / seconds)]
        left = self._left(step) if seconds or self._step_seconds else None
        elapsed = time.monotonic() - self._began
        self.console.draw(Bar(step, self._last, elapsed, left, epoch, facts))

    def _gauge(self, reading: Reading) -> None:
        """Add what else is known of the interval, and say what has come of it."""
        values = reading.taken.times()
        reading.more.update(self.gauges.values(values), **self.pace.values(values["step_seconds"]))
        remark = self.pace.remark()
        if remark is not None:
            self.console.say(remark)

    def _left(self, step: int) -> float:
        """Seconds to the end, from the steps of late and the last evaluation."""
        settings, steps = self.settings, self.last_step() - step
        samples = self.position.samples + steps * settings.batch_size
        evaluations = steps // settings.evaluate_steps if settings.evaluate_steps else 0
        if settings.evaluate_every:
            epochs = min(samples // self.samples, self._epochs())
            evaluations += max(0, epochs - self.position.evaluated) // settings.evaluate_every
        step_seconds = self._step_seconds or self.watch.step_seconds()
        return steps * step_seconds + evaluations * self._evaluation_seconds


def _rate(samples_per_second: float) -> str:
    form = ",.0f" if samples_per_second >= 10 else ".2g"
    return f"{samples_per_second:{form}} samples/s"
