"""Everything that a training is made of, built in order: model, data, optimizer, schedules, and what measures them.

One optimizer step sees ``batch_size`` samples: ``accumulate`` micro-batches on each rank. The step's gradient is that of the mean
over all of them, whatever the number of ranks, also in the training's shorter last step.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Union

import torch

from .callbacks import Callbacks
from .data import count_workers, train_batches
from .errors import SettingsError
from .evaluation import Evaluation, Results, trained_sums
from .generators import put_back as put_generators_back
from .generators import reach, seed_all, states_of
from .judging import Judge
from .optimizers import (
    Average,
    by_name,
    make_optimizer,
)
from .order import Order, Share, mix, shares
from .orders import make_order
from .precision import Precision
from .processes.ranks import cpu_model
from .schedules import make_epoch_schedule, make_schedule
from .session import Session
from .settings import Config, Settings, micro_batch
from .setup import has_pieces, has_stages, make_model, set_backends, spread
from .sharding.local import settle
from .step import Step, Trained, means, put_back
from .task import Data, Task, is_stream
from .watching.gauges import Gauges
from .watching.meter import Meter
from .watching.pace import Pace, forward_timer

if TYPE_CHECKING:
    from .sharding.meta_init import MetaInit
    from .sharding.pipeline import Staged
    from .streams import Stream

__all__ = ["Position", "Training"]

_ENDLESS = 1 << 62  # samples of an epoch that never ends: a stream's

_FIRST_SAMPLES = 8  # of each rank, in the metrics of a start


@dataclass
class Position:
    """Progress of a training: optimizer steps, and samples of all ranks.

    An epoch is closed with the evaluation at its end, if one is due there. In manifests ``closed_epochs`` is called
    ``evaluated``, and ``evaluated_step`` (the step of the last evaluation) ``tested``.
    """

    step: int = 0
    samples: int = 0
    closed_epochs: int = 0
    evaluated_step: int = 0


class Training:
    """One rank's part of a training; ``limit`` is the step to stop at, if there is one.

    It is built as if at step 0, so that a checkpoint can be put back; ``connect`` starts it from where it is then.
    """

    def __init__(self, task: Task, settings: Settings, session: Session, limit: Optional[int] = None) -> None:
        self.task, self.settings, self.limit = task, settings, limit
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
        self.staged: Optional[Staged] = None
        self.model = self._make_model(cfg)
        self.wrapped: torch.nn.Module = self.model
        self._load_data(cfg)
        # Before the optimizer, which may want their parameters, and once more for what came with it.
        task.aux_modules(self.model, group.device)
        self.optimizer = make_optimizer(task, self.model, cfg)
        self.aux_modules = task.aux_modules(self.model, group.device)
        self.unsaved = task.unsaved_state(self.model)
        self.aux_modules.refuse_trained(self.optimizer.param_groups, self.model, str(task.path))
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
        self.callbacks = Callbacks(task, group, self.console)

    def _make_model(self, cfg: Config) -> torch.nn.Module:
        """Return the task's model with its first weights, whole on the device, or cut."""
        task, settings, session, group = self.task, self.settings, self.session, self.group
        staged = has_stages(settings, group)
        self.sharded = staged or has_pieces(settings, group)
        if self.sharded:
            session.expect_pieces()
        # A model that is sharded goes to the device piece by piece.
        layered = settings.strategy == "model_parallel"
        device = torch.device("cpu") if self.sharded or layered else group.device
        if settings.meta_device and self.sharded:
            from .sharding.meta_init import MetaInit

            return self._cut_from_meta(cfg, MetaInit(task, settings, group))
        model = make_model(task, cfg, settings, device)
        if session.found is None and settings.pretrained is not None:  # a checkpoint has all weights
            from .weights.loading import load_pretrained

            load_pretrained(model, settings, group, self.console)
        if self.sharded:
            return self._cut(model)
        if not layered:
            return model
        from .sharding import layers

        return layers.laid_out(model, task, layers.devices_of(group.device))

    def _cut(self, model: torch.nn.Module, meta: Optional[MetaInit] = None) -> torch.nn.Module:
        """Keep this process's stage of the model, or its pieces."""
        if has_stages(self.settings, self.group):
            from .sharding import pipeline

            self.staged = pipeline.staged(model, self.task, self.group, meta)
            return model
        from .sharding import fully

        return fully.fully_sharded(model, self.task, self.settings, self.group, meta)

    def _cut_from_meta(self, cfg: Config, meta: MetaInit) -> torch.nn.Module:
        """Make the model without memory, cut it, and give what this process keeps its first values."""
        with meta.making():
            model = make_model(self.task, cfg, self.settings, None)
        model = self._cut(model, meta)
        if self.session.found is None:
            from .weights.loading import load_pretrained_cut

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
            self.samples = _ENDLESS
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
        self.watch.step = self.position.step
        self.places = self.group.collect(self._place())
        hosts = [str(each["host"]) for each in self.places]
        self.pace = Pace(self.group, self.watch, self.meter, timer, hosts)

    def _kind_of_step(self) -> type[Step]:
        if self.task.has("step"):
            from .own_step import OwnStep

            return OwnStep
        if self.staged is not None:
            from .pipeline_step import PipelineStep

            return PipelineStep
        if self.session.environment.get("SLURMGPU_APART"):
            from .benching.task import ApartStep

            return ApartStep
        return Step

    def _make_stream(self, dataset: Data) -> Stream:
        if self.settings.max_steps is None:
            raise SettingsError(
                f"max_steps is null, and the training data are a stream ({type(dataset).__name__}), whose length nobody "
                "knows: set max_steps; the stream is read again where it ends before"
            )
        from .streams import Stream

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
        start, end = self.position.samples, self.end()
        return shares(start, end, batch, self.micro, rank=ranks.rank, world_size=ranks.world_size)

    def _place(self) -> dict[str, object]:
        """Return this rank's place and the first samples that it takes from here, at most those of a micro-batch."""
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
        return "" if self.stream is not None else f"epoch {epoch:g}/{self.epochs()}  "

    @property
    def dataset_samples(self) -> Optional[int]:
        """Samples of an epoch; None for a stream."""
        return None if self.stream is not None else self.samples

    @property
    def epoch(self) -> int:
        """Whole epochs so far."""
        return self.position.samples // self.samples

    def epochs(self) -> int:
        """Epochs of the whole training; with ``max_steps`` alone as many as it begins from here on."""
        return self.settings.most_epochs or -(-self.end() // self.samples)

    def end(self) -> int:
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
        steps = -(-(self.end() - self.position.samples) // self.settings.batch_size)
        if self.settings.max_steps is not None:
            steps = min(steps, self.settings.max_steps - self.position.step)
        return max(0, steps)

    def sizes(self) -> list[tuple[str, int]]:
        """Return the samples of the steps from here on: of the last one, and of those before it."""
        steps, batch = self.remaining_steps(), self.settings.batch_size
        last = min(batch, self.end() - self.position.samples - (steps - 1) * batch)
        found = [("the training's last step", last)] if steps and last < batch else []
        return [("each step", batch), *found] if steps > len(found) else found

    def last_step(self) -> int:
        """Return the number of the step at which this start ends."""
        end = self.position.step + self.remaining_steps()
        return end if self.limit is None else min(self.limit, end)

    def parts(self) -> dict[str, Any]:
        """Whatever has a state that a checkpoint holds, by name."""
        scaler = self.precision.scaler
        named = {
            "model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, "scaler": scaler,
            "task": self.task.own, "epoch_schedule": self.epoch_schedule,
            "average": self.average,
        }  # fmt: skip
        return {name: part for name, part in named.items() if part is not None}

    @contextlib.contextmanager
    def as_evaluated(self) -> Iterator[None]:
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
