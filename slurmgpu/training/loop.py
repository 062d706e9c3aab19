"""The training loop: epochs, steps, micro-batches.

One optimizer step sees ``batch_size`` samples: ``accumulate`` micro-batches on each rank. The step's gradient
is that of the mean over all of them, whatever the number of ranks, also in the shorter last step of an epoch.
Nothing on the path of a step waits for the GPU; losses are read where they are logged.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch.nn.parallel import DistributedDataParallel

from .console import Console, duration
from .data import count_workers, eval_loader, to_device, train_loader
from .evaluation import evaluate
from .group import Group
from .meter import Meter
from .metrics import Metrics
from .precision import Precision
from .randomness import seed_all
from .settings import Config, Settings, micro_batch
from .task import Loss, Task

__all__ = ["Loop", "Position"]


@dataclass
class Position:
    """How far a training is: whole epochs, optimizer steps, and samples (of all ranks) into the epoch."""

    epoch: int = 0
    step: int = 0
    samples_in_epoch: int = 0


class Loop:
    """One rank's part of a training, built and ready; ``limit`` is the step to stop at, if there is one."""

    def __init__(
        self,
        task: Task,
        settings: Settings,
        group: Group,
        console: Console,
        metrics: Metrics,
        limit: Optional[int],
    ) -> None:
        self.task, self.settings, self.group = task, settings, group
        self.console, self.metrics, self.limit = console, metrics, limit
        self.position = Position()
        self.results: dict[str, float] = {}
        self.micro = micro_batch(settings, group.ranks.world_size)
        self.precision = Precision(settings.precision, group.device)
        cfg = Config(settings)
        seed_all(settings.seed)
        self.model = task.model(cfg).to(group.device)
        self.wrapped: torch.nn.Module = self.model
        self._load_data(cfg)
        self.optimizer = task.optimizer(self.model, cfg)
        self.total_steps = settings.epochs * self.steps_per_epoch
        if settings.max_steps is not None:
            self.total_steps = min(self.total_steps, settings.max_steps)
        self.schedule = task.schedule(self.optimizer, cfg, self.total_steps)
        seed_all(settings.seed + 1 + group.ranks.rank)
        self.meter = Meter(group)

    def _load_data(self, cfg: Config) -> None:
        workers = count_workers(self.settings.workers, self.group)
        train = self.task.dataset(cfg, "train")
        seed = self.settings.seed
        self.loader, self.share = train_loader(train, self.micro, self.group, seed=seed, workers=workers)
        self.share_size = len(self.share)
        self.steps_per_epoch = math.ceil(self.share_size / (self.micro * self.settings.accumulate))
        test = self.task.dataset(cfg, "test")
        self.test_loader, self.test_size = None, 0
        if test is not None:
            self.test_loader, share = eval_loader(test, self.micro, self.group, seed=seed, workers=workers)
            self.test_size = len(share)

    def connect(self) -> None:
        """Tie the ranks' models together: all get rank 0's parameters, and share gradients from now on."""
        if self.group.together:
            device = self.group.device
            self.wrapped = DistributedDataParallel(
                self.model,
                device_ids=[device.index] if device.type == "cuda" else None,
                gradient_as_bucket_view=True,
            )

    @property
    def done(self) -> bool:
        """Whether all epochs, or all steps that were asked for, are through."""
        stopped = self.limit is not None and self.position.step >= self.limit
        return stopped or self.position.epoch >= self.settings.epochs

    def remaining_steps(self) -> int:
        """Optimizer steps from here to the end of the training that the settings describe."""
        share = math.ceil(self.position.samples_in_epoch / self.group.ranks.world_size)
        per_step = self.micro * self.settings.accumulate
        steps = (self.settings.epochs - self.position.epoch) * self.steps_per_epoch
        steps -= self.steps_per_epoch - math.ceil((self.share_size - share) / per_step)
        if self.settings.max_steps is not None:
            steps = min(steps, self.settings.max_steps - self.position.step)
        return max(0, steps)

    def last_step(self) -> int:
        """The number of the step at which this start ends."""
        end = self.position.step + self.remaining_steps()
        return end if self.limit is None else min(self.limit, end)

    def epochs(self) -> Iterator[None]:
        """Train epoch by epoch; after each, with the test split evaluated, the caller may save."""
        while not self.done:
            self._epoch()
            started = time.perf_counter()
            self.results = evaluate(
                self.task, self.model, self.test_loader, self.test_size, self.group, self.precision
            )
            if self.results:
                seconds = time.perf_counter() - started
                values = {"epoch": self.position.epoch, "seconds": seconds, **self.results}
                self.metrics.write("eval", self.position.step, values)
            yield

    def _epoch(self) -> None:
        """Train to the end of the epoch, or to the step limit inside it."""
        world = self.group.ranks.world_size
        offset = math.ceil(self.position.samples_in_epoch / world)
        self.share.set_epoch(self.position.epoch)
        self.share.skip = offset
        self.wrapped.train()
        batches = iter(self.loader)
        self.meter.start()
        while offset < self.share_size and not self.done:
            size = min(self.micro * self.settings.accumulate, self.share_size - offset)
            self._step(batches, size)
            offset += size
            self.position.step += 1
            self.position.samples_in_epoch = offset * world
            if self.position.step % self.settings.log_every == 0:
                self._log()
        if self.meter.steps:
            self._log()
        if offset >= self.share_size:
            self.position.epoch += 1
            self.position.samples_in_epoch = 0

    def _step(self, batches: Iterator[Any], size: int) -> None:
        """One optimizer step over ``size`` samples of this rank."""
        scaler = self.precision.scaler
        counts: Any = 0
        counted = False
        left = size
        while left:
            samples = min(self.micro, left)
            left -= samples
            waiting = time.perf_counter()
            batch = to_device(next(batches), self.group.device)
            self.meter.waited += time.perf_counter() - waiting
            with self._no_sync() if left else contextlib.nullcontext():
                with self.precision.autocast():
                    loss = self.task.loss(self.wrapped, batch)
                if not loss.value.requires_grad:
                    self.task.refuse_constant(loss.value)
                share = _share_of_step(loss, samples, size)
                (share if scaler is None else scaler.scale(share)).backward()
            if loss.counted is not None:
                counts, counted = counts + loss.counted, True
            self.meter.add(loss, samples)
        if counted:
            self._weigh_by_count(counts, size)
        self._update()
        self.meter.end_step()

    def _no_sync(self) -> contextlib.AbstractContextManager[None]:
        """Keep gradients on this rank until the step's last micro-batch."""
        if isinstance(self.wrapped, DistributedDataParallel):
            return self.wrapped.no_sync()  # type: ignore[no-any-return, no-untyped-call, unused-ignore]
        return contextlib.nullcontext()

    def _weigh_by_count(self, counts: Any, size: int) -> None:
        """Where the task counts (tokens, say): from a sum per sample to the mean over all ranks' counts."""
        if not isinstance(counts, torch.Tensor):
            counts = torch.full((), counts, dtype=torch.float64, device=self.group.device)
        total = self.group.sum(counts.detach().double())
        factor = size * self.group.ranks.world_size / total.clamp(min=1e-12)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def _update(self) -> None:
        scaler, clip = self.precision.scaler, self.settings.clip_norm
        if clip is not None:
            if scaler is not None:
                scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        if self.schedule is not None:
            self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _log(self) -> None:
        """Read the losses since the last time, write them down, and show how far the training is."""
        values = self.meter.read()
        step, epoch = self.position.step, self.position.epoch
        rate = float(self.optimizer.param_groups[0]["lr"])
        self.metrics.write("train", step, {"epoch": epoch + 1, **values, "learning_rate": rate})
        if not math.isfinite(values["loss"]):
            self.console.say(f"warning: the loss is {values['loss']} at step {step}")
        end = self.last_step()
        left = (end - step) * values["step_seconds"]
        self.console.progress(
            f"epoch {epoch + 1}/{self.settings.epochs}  step {step}/{end}  loss {values['loss']:.4g}  "
            f"{values['samples_per_second']:,.0f} samples/s  {duration(left)} left"
        )


def _share_of_step(loss: Loss, samples: int, size: int) -> torch.Tensor:
    """What a micro-batch adds to the mean over this rank's ``size`` samples of the step."""
    if loss.counted is not None:
        return loss.value / size
    return loss.value if samples == size else loss.value * (samples / size)
