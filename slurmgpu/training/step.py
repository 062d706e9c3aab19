"""One optimizer step: forward, backward and update over its micro-batches; the code whose speed counts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch

from .optimizers import MAIN, Average, Optimizer, Schedule, driven
from .order import shares
from .precision import Precision
from .processes.group import shared_by
from .session import Session
from .settings import Settings, micro_batch
from .sharding.local import is_sharded, local, norm, scale_down
from .task import Task
from .watching.meter import Means, Meter, on_device
from .watching.pace import Forward
from .watching.phases import Each, Phases

__all__ = ["Step", "Trained", "clipped_norm", "loss_name", "means", "norm_name", "put_back"]


def loss_name(optimizer: str) -> str:
    """Return what the loss of an optimizer's own updates is called in the metrics."""
    return f"loss.{optimizer}"


def norm_name(optimizer: str) -> str:
    """Return what the norm of the gradient is called there."""
    return "gradient_norm" if optimizer == MAIN else f"gradient_norm.{optimizer}"


def means(settings: Settings, names: Sequence[str], own_step: bool) -> Means:
    """Return what steps with optimizers of these names measure beside the loss."""
    losses = [loss_name(name) for name in names] if own_step else []
    norms = [norm_name(name) for name in (names if own_step else [MAIN])]
    logs_norm = settings.log_grad_norm or settings.clip_norm is not None
    return Means([*losses, *(norms if logs_norm else [])], finite=norms, summed=losses)


@dataclass(frozen=True)
class Trained:
    """The parts of a step: what it trains, and with what; ``wrapped`` is the model spread over the ranks."""

    wrapped: torch.nn.Module
    optimizer: Optimizer
    schedule: Optional[Schedule]
    precision: Precision
    average: Optional[Average] = None


class Step:
    """Takes steps with a model that is spread over the ranks, from an iterator of this rank's micro-batches."""

    def __init__(
        self,
        task: Task,
        settings: Settings,
        session: Session,
        trained: Trained,
        batches: Iterator[object],
        meter: Meter,
        timer: Optional[Forward],
    ) -> None:
        self.task, self.settings, self.session, self.group = task, settings, session, session.group
        self.batches, self.meter, self._timer = batches, meter, timer
        self.wrapped = trained.wrapped
        self._counts = False
        wrapped, precision = trained.wrapped, trained.precision
        self._ddp = shared_by(wrapped)
        self._loss = task.raw_loss
        # What a step calls: in phases while a profile looks on.
        self._call_loss: Callable[..., Any] = self._loss
        self._call_update: Callable[[list[tuple[float, int]]], None] = self._update
        self._autocast = None if settings.precision == "fp32" else precision.autocast
        self._trained = [parameter for parameter in wrapped.parameters() if parameter.requires_grad]
        self._micro = micro_batch(settings, self.group.data.world_size)
        # Looked up once, not in every step.
        self._batch = settings.batch_size
        self._scaler = precision.scaler
        self._driven = driven(
            trained.optimizer, trained.schedule, precision.scaler, must_know=trained.average is not None
        )
        driven_too = {id(one) for each in self._driven for one in each.parameters}
        self._undriven = [each for each in self._trained if id(each) not in driven_too]
        self._average_weights = None if trained.average is None else trained.average.update
        self._skips = settings.nonfinite == "skip"
        self._logs_norm = settings.log_grad_norm or settings.clip_norm is not None
        self._guards = self._skips or self._logs_norm
        # As DDP does before a forward pass.
        self._shares_buffers = (
            any(map(is_sharded, self._trained))
            and settings.broadcast_buffers
            and next(wrapped.buffers(), None) is not None
        )
        self._before: list[torch.Tensor] = []
        self._keep, self._losses, self._sizes = meter.keep, meter.losses, meter.sizes
        self._whole = self._rounds(self._batch)

    def mark(self, phases: Phases) -> None:
        """Tell what a step is at, until ``unmark``."""
        self.batches = Each(self.batches, phases, "data")
        self._call_loss = phases.during("forward", self._loss, then="backward")
        self._call_update = phases.during("optimizer", self._update)

    def unmark(self) -> None:
        """Take steps as before ``mark``."""
        if isinstance(self.batches, Each):
            self.batches = self.batches.inner
        self._call_loss, self._call_update = self._loss, self._update

    def remark(self) -> Optional[str]:
        """Return what is worth a word about the steps so far."""
        return None

    def forget_gradients(self) -> None:
        """Drop what an evaluation or a callback has left: no checkpoint has it, and the next step would add to it."""
        for parameter in self._trained:
            parameter.grad = None

    def _rounds(self, size: int) -> list[tuple[float, int]]:
        """Return the weight and the samples of this rank's micro-batches in a step of ``size`` samples; (0, 0) for a stand-in.

        DDP averages gradients over the ranks: hence the weight times their number, so that each sample counts the same.
        """
        ranks = self.group.data
        own = shares(0, size, size, self._micro, rank=ranks.rank, world_size=ranks.world_size)
        counts = [stop - start if counted else 0 for start, stop, counted in own]
        return [(count * ranks.world_size / size, count) for count in counts]

    def take(self, size: int) -> None:
        """One optimizer step over ``size`` samples of all ranks."""
        rounds = self._whole if size == self._batch else self._rounds(size)
        if self._shares_buffers:
            self.group.share_buffers(self.wrapped)
        if self._skips:
            self._before = [each.detach().clone() for each in self.wrapped.buffers()]
            self.meter.own.mark()
        meter, batches, clock = self.meter, self.batches, time.perf_counter
        left, known = len(rounds), len(meter.counts)
        for weight, samples in rounds:
            left -= 1
            waiting = clock()
            batch = next(batches)
            meter.waited += clock() - waiting
            if left and self._ddp is not None:
                with self._ddp.no_sync():  # type: ignore[no-untyped-call, unused-ignore]
                    self._backward(batch, weight, samples, size)
            else:
                self._backward(batch, weight, samples, size)
        if self._counts:
            if len(meter.counts) - known != _count_rounds(rounds):
                self.task.refuse_mixed()
            self._weigh_by_count(_count_rounds(rounds), size)
        self._call_update(rounds)

    def _backward(self, batch: object, weight: float, samples: int, size: int) -> None:
        timer = self._timer
        if timer is not None:
            timer.begin()
        if self._autocast is None:
            answer = self._call_loss(self.wrapped, batch)
        else:
            with self._autocast():
                answer = self._call_loss(self.wrapped, batch)
        if timer is not None:
            timer.end()
        if isinstance(answer, torch.Tensor) and answer.dim() == 0:
            value, counted, own = answer, None, None
        else:
            value, counted, own = self.task.counted_loss(answer)
        if not value.requires_grad:
            self.task.refuse_constant(value)
        if counted is not None:
            self._counts = True
            weight = self.group.data.world_size / size if samples else 0.0
        loss = value
        if weight != 1:
            value = value * weight
        if self._scaler is not None:
            value = self._scaler.scale(value)
        self._back(value)
        if samples:
            self._losses.append(self._keep(loss))
            self._sizes.append(samples)
            if counted is not None:
                self.meter.counts.append(counted)
        if own is not None:
            self.meter.add_own(own, samples)

    def _back(self, value: torch.Tensor) -> None:
        value.backward()  # type: ignore[no-untyped-call, unused-ignore]

    def _weigh_by_count(self, rounds: int, size: int) -> None:
        """Where the task counts (tokens, say): from a sum per sample to the mean over all ranks' counts."""
        device = self.group.device
        counts = self.meter.counts[len(self.meter.counts) - rounds :]
        zero = torch.zeros((), dtype=torch.float64, device=device)
        total = self.group.sum(sum((on_device(each, device) for each in counts), zero))
        factor = size / total.clamp(min=1e-12)
        for parameter in self._trained:
            if parameter.grad is not None:
                piece = local(parameter.grad)
                piece.mul_(factor.to(piece.device))

    def _clipped_norm(self) -> torch.Tensor:
        return clipped_norm(self._trained, self.settings.clip_norm, self.group.device)

    def _update(self, rounds: list[tuple[float, int]]) -> None:
        scaler, skip = self._scaler, False
        if self._guards:
            if scaler is not None:
                for each in self._driven:
                    scaler.unscale_(each.optimizer)
            norm = self._clipped_norm()
            if self._logs_norm:
                self.meter.means.add(norm_name(MAIN), self._keep(norm))
            if self._skips and not math.isfinite(norm):
                skip = True
                put_back(self.wrapped.buffers(), self._before)
                self.meter.drop_last(_count_rounds(rounds))
                self.meter.own.go_back()
                step = self.session.watch.step + 1
                self.session.console.say(f"warning: step {step} is left out: its gradient is not finite")
        for each in self._driven:
            if not skip:
                each.take()
                if each.schedule is not None and each.stepped:
                    each.schedule.step()
            each.optimizer.zero_grad(set_to_none=True)
        for parameter in self._undriven:
            parameter.grad = None  # or the norm of all gradients would grow by it in every step
        if self._average_weights is not None and not skip and any(each.stepped for each in self._driven):
            self._average_weights()
        if scaler is not None:
            scaler.update()


def put_back(buffers: Iterable[torch.Tensor], before: Iterable[torch.Tensor]) -> None:
    """Undo what forward passes did: an average of batches, as BatchNorm's, would never get rid of a NaN."""
    with torch.no_grad():
        for buffer, saved in zip(buffers, before):
            # A sparse one cannot be compared; one that never changes may not be writable: an expanded one.
            if buffer.is_meta:
                continue  # another stage's
            if buffer.layout is not torch.strided or not torch.equal(buffer, saved):
                buffer.copy_(saved)


def clipped_norm(
    parameters: Sequence[torch.nn.Parameter], clip: Optional[float], device: torch.device
) -> torch.Tensor:
    """Return the norm of the parameters' gradients, which are scaled down to ``clip`` if theirs is larger."""
    if any(map(is_sharded, parameters)):
        gradients = [each.grad for each in parameters if each.grad is not None]
        total = norm(gradients, device)
        scale_down(gradients, total, clip)
        return total
    if any(each.grad is not None and each.grad.is_sparse for each in parameters):
        return _clipped_values(parameters, clip)
    if clip is None and hasattr(torch.nn.utils, "get_total_norm"):  # from torch 2.6 on
        return torch.nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])
    return torch.nn.utils.clip_grad_norm_(parameters, math.inf if clip is None else clip)


def _clipped_values(parameters: Sequence[torch.nn.Parameter], clip: Optional[float]) -> torch.Tensor:
    """Return the same where gradients are sparse (an embedding's), of which torch takes no norm: that of the values is theirs."""
    values: list[torch.Tensor] = []
    for each in parameters:
        if each.grad is not None and each.grad.is_sparse:
            each.grad = each.grad.coalesce()  # a row that comes several times counts as one
            values.append(each.grad._values())
        elif each.grad is not None:
            values.append(each.grad)
    norms = [torch.linalg.vector_norm(each) for each in values]
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack([each.to(norms[0].device) for each in norms]))
    if clip is not None:
        factor = (clip / (norm + 1e-6)).clamp(max=1.0)
        for value in values:
            value.mul_(factor.to(value.device))
    return norm


def _count_rounds(rounds: list[tuple[float, int]]) -> int:
    """Return the number of rounds in which this rank has samples of its own."""
    return sum(1 for _, samples in rounds if samples)
