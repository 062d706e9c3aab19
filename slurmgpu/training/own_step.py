"""A step that the task takes itself: several updates, of several optimizers, over the same micro-batches.

DDP shares gradients in the backward pass of its own forward, once for each. Here a loss calls parts of the model, in any order
and several times, and another update follows on other parameters; so the ranks' gradients are averaged after the backward
passes, once in each update, and those of its own parameters alone.
"""

from __future__ import annotations

import difflib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Optional, Union

import torch
import torch.distributed as dist

from .errors import TrainingError
from .optimizers import Driven
from .processes.group import Group
from .step import Step, clipped_norm, loss_name, norm_name, put_back
from .task import Scalar
from .watching.meter import on_device
from .watching.phases import Each, Phases

__all__ = ["OwnStep", "average"]

Loss = Union[torch.Tensor, Callable[[torch.nn.Module, Any], object]]


class _Round(NamedTuple):
    """A micro-batch of an update, what its mean loss weighs, and how many samples of its own it has."""

    batch: object
    weight: float
    samples: int


class OwnStep(Step):
    """Takes steps by the task's own ``step(model, batches, update)``."""

    _now: list[_Round]
    _size: int

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._idle: Optional[set[str]] = {each.name for each in self._driven}
        self._call_answer: Callable[..., Any] = self._answer
        self._call_apply: Callable[[Driven, int], None] = self._apply

    def remark(self) -> Optional[str]:
        """Return which optimizers no update has named since the start; said once."""
        idle, self._idle = self._idle, None
        if not idle:
            return None
        return (
            f"warning: step has called update() for none of: {', '.join(sorted(idle))}: in the steps so far, what these "
            "optimizers have has learned nothing"
        )

    def take(self, size: int) -> None:
        """One step over ``size`` samples of all ranks, with the updates that the task makes in it."""
        rounds = self._whole if size == self._batch else self._rounds(size)
        if self.settings.broadcast_buffers:
            self.group.share_buffers(self.wrapped)  # as DDP does before a forward pass
        waiting = time.perf_counter()
        self._now = [_Round(next(self.batches), weight, samples) for weight, samples in rounds]
        self.meter.waited += time.perf_counter() - waiting
        self._size = size
        self._moved: dict[str, Driven] = {}
        batches = [each.batch for each in self._now]
        if self._autocast is None:
            self.task.step(self.wrapped, batches, self._update_by)
        else:
            with self._autocast():
                self.task.step(self.wrapped, batches, self._update_by)
        for each in self._moved.values():
            if each.schedule is not None:
                each.schedule.step()
        if self._average_weights is not None and self._moved:
            self._average_weights()

    def mark(self, phases: Phases) -> None:
        """Tell what a step is at; the time of a loss is that of its forward pass."""
        self.batches = Each(self.batches, phases, "data")
        self._call_answer = phases.during("forward", self._answer, then="backward")
        self._call_apply = phases.during("optimizer", self._apply)

    def unmark(self) -> None:
        """Take steps as before ``mark``."""
        super().unmark()
        self._call_answer, self._call_apply = self._answer, self._apply

    def _update_by(self, name: str, loss: Loss, batches: Optional[Iterable[object]] = None) -> None:
        """Update the parameters of one optimizer: backward passes, gradients averaged over ranks, clipping, its step.

        ``loss(model, batch)`` is called with each micro-batch and returns what a task's ``loss`` may; or it is a mean loss,
        a tensor.
        ``batches`` are others than the step's; each counts the same.
        """
        optimizer = self._named(name)
        rounds = self._now
        if isinstance(loss, torch.Tensor):
            rounds = [_Round(None, sum(each.weight for each in rounds), sum(each.samples for each in rounds))]
        elif batches is not None:
            others = list(batches)
            rounds = [_Round(each, 1 / len(others), 1) for each in others]
        if self._skips:
            self._before = [each.detach().clone() for each in self.wrapped.buffers()]
            self.meter.own.mark()
        answers = [self._backward_of(optimizer, loss, each) for each in rounds]
        counts = [each for each in answers if each is not None]
        own = sum(1 for each in rounds if each.samples)
        if self._autocast is None:
            self._conclude(optimizer, counts, own)
        else:
            with torch.autocast(self.group.device.type, enabled=False):
                self._conclude(optimizer, counts, own)
            torch.clear_autocast_cache()  # it has casts of parameters as they were before

    def _conclude(self, optimizer: Driven, counts: Sequence[Scalar], own: int) -> None:
        """From this rank's gradients to the optimizer's step."""
        self._average(optimizer)
        if counts:
            self._divide_by(sum_of(counts, self.group), optimizer)
        self._call_apply(optimizer, own)

    def _named(self, name: str) -> Driven:
        for each in self._driven:
            if each.name == name:
                if self._idle:
                    self._idle.discard(name)
                return each
        names = [each.name for each in self._driven]
        close = difflib.get_close_matches(str(name), names, n=1)
        raise TrainingError(
            f"{self.task.path}: step calls update({name!r}, ...), and there is no optimizer of that name"
            + (f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(names)}")
        )

    def _backward_of(self, optimizer: Driven, loss: Loss, each: _Round) -> Optional[Scalar]:
        """Forward and backward pass of a micro-batch; what the loss is a sum over, if it is one."""
        answer = self._call_answer(loss, each.batch)
        value, counted, own = self.task.checked_loss(answer)
        if not value.requires_grad:
            self.task.refuse_constant(value)
        weight = each.weight
        if counted is not None:
            weight = self.group.ranks.world_size if each.samples else 0.0
        if each.samples:
            logged, of = self._keep(value), each.samples if counted is None else self._kept(counted)
            if counted is None:
                self.meter.means.add(loss_name(optimizer.name), logged, of)
            else:
                self.meter.means.add_sum(loss_name(optimizer.name), logged, of)
        if own is not None:
            self.meter.add_own(own, each.samples)
        scaled = value * weight if weight != 1 else value
        if self._scaler is not None:
            scaled = self._scaler.scale(scaled)
        # Into these parameters alone: those of other optimizers keep the gradients that they have.
        scaled.backward(inputs=optimizer.parameters)  # type: ignore[no-untyped-call, unused-ignore]
        if counted is None:
            return None
        return counted if each.samples else 0.0

    def _answer(self, loss: Loss, batch: object) -> object:
        return loss if isinstance(loss, torch.Tensor) else loss(self.wrapped, batch)

    def _kept(self, count: Scalar) -> Scalar:
        return self._keep(count) if isinstance(count, torch.Tensor) else count

    def _average(self, optimizer: Driven) -> None:
        """Give all ranks the mean of their gradients, in few and large messages."""
        if not self.group.together:
            return
        missing = [index for index, each in enumerate(optimizer.parameters) if each.grad is None]
        unused: set[int] = set()
        if self.settings.find_unused_parameters:
            unused = set(missing).intersection(*self.group.gather(missing))
        elif missing:
            names = {id(each): name for name, each in self.wrapped.named_parameters()}
            shown = [names.get(id(optimizer.parameters[index]), "?") for index in missing]
            raise TrainingError(
                f"{self.task.path}: update({optimizer.name!r}, ...) leaves {len(missing)} of the optimizer's parameters "
                f"without a gradient ({', '.join(shown[:4])}), and several processes must know of the same ones: "
                "set find_unused_parameters: true, or use them in the loss"
            )
        used = [each for index, each in enumerate(optimizer.parameters) if index not in unused]
        average(used, self.group, self.settings.bucket_cap_mb)

    def _divide_by(self, count: torch.Tensor, optimizer: Driven) -> None:
        factor = 1 / count.clamp(min=1e-12)
        for each in optimizer.parameters:
            if each.grad is not None:
                each.grad.mul_(factor)

    def _apply(self, optimizer: Driven, rounds: int) -> None:
        """The optimizer's step with the gradients that are there, unless they are not finite and it is to be left out."""
        skip = False
        if self._guards:
            if self._scaler is not None:
                self._scaler.unscale_(optimizer.optimizer)
            norm = clipped_norm(optimizer.parameters, self.settings.clip_norm, self.group.device)
            if self._logs_norm:
                self.meter.means.add(norm_name(optimizer.name), self._keep(norm))
            if self._skips and not math.isfinite(norm):
                skip = True
                put_back(self.wrapped.buffers(), self._before)
                self.meter.means.drop_last(loss_name(optimizer.name), rounds)
                self.meter.own.go_back()
                step = self.session.watch.step + 1
                self.session.console.say(
                    f"warning: an update of {optimizer.name} in step {step} is left out: its gradient is not finite"
                )
        if not skip:
            optimizer.take()
            if optimizer.stepped:
                self._moved[optimizer.name] = optimizer
        if self._scaler is not None:
            self._scaler.update()
        optimizer.optimizer.zero_grad(set_to_none=True)


def sum_of(counts: Sequence[Scalar], group: Group) -> torch.Tensor:
    """Return the sum over all ranks, on the device."""
    zero = torch.zeros((), dtype=torch.float64, device=group.device)
    return group.sum(sum((on_device(each, group.device) for each in counts), zero))


def average(parameters: Sequence[torch.nn.Parameter], group: Group, megabytes: float) -> None:
    """Average gradients over all ranks; a parameter without one counts as zero here, and gets the others' mean."""
    pieces: list[list[torch.nn.Parameter]] = []
    room: float = 0
    for each in parameters:
        if each.grad is not None and each.grad.layout is not torch.strided:
            raise TrainingError(
                "a gradient is sparse: processes share dense ones alone; leave out sparse=True"
            )
        size = each.numel() * each.element_size()
        if not pieces or size > room or each.dtype != pieces[-1][0].dtype:
            pieces.append([])
            room = megabytes * 2**20
        pieces[-1].append(each)
        room -= size
    flat = [torch.cat([_gradient(each).reshape(-1) for each in piece]) for piece in pieces]
    works = [dist.all_reduce(each, async_op=True) for each in flat]
    for piece, whole, work in zip(pieces, flat, works):
        work.wait()
        whole.div_(group.ranks.world_size)
        for each, mean in zip(piece, torch.split(whole, [each.numel() for each in piece])):
            each.grad = mean.view_as(each)


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
