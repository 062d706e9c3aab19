"""An interval of metrics: means of losses and of the task's own values, and times of steps; nothing waits for the GPU."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

import torch

from ..errors import TrainingError
from ..processes.group import Group
from ..task import Scalar
from .gauges import peak_memory

__all__ = ["Means", "Meter", "Reading", "on_device"]


def on_device(value: Scalar, device: torch.device) -> torch.Tensor:
    """Return the number as a tensor in double precision; filled in there, because copying a number to a GPU waits."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(device, torch.float64)
    return torch.full((), float(value), dtype=torch.float64, device=device)


class Means:
    """Values with weights under names that are known from the start, so that all ranks add up the same ones."""

    def __init__(
        self, names: Sequence[str] = (), finite: Sequence[str] = (), summed: Sequence[str] = ()
    ) -> None:
        """``finite``: names whose values count only where they are finite; ``summed``: those whose means add up to the loss."""
        self.names, self._finite, self.summed = tuple(names), frozenset(finite), tuple(summed)
        self._values: dict[str, list[Any]] = {name: [] for name in names}
        self._weights: dict[str, list[Any]] = {name: [] for name in names}
        self._marked: dict[str, int] = {}

    def add(self, name: str, value: Scalar, weight: Scalar = 1.0) -> None:
        """Add a mean with the weight that it has among the others: numbers on the CPU, tensors on a GPU."""
        self.add_sum(name, value if weight == 1 else value * weight, weight)

    def add_sum(self, name: str, value: Scalar, weight: Scalar) -> None:
        """Add a sum over so many things."""
        self._values[name].append(value)
        self._weights[name].append(weight)

    def learn(self, name: str) -> None:
        """Take a name that was not known at the start."""
        if name not in self._values:
            self.names = (*self.names, name)
            self._values[name], self._weights[name] = [], []

    def sort(self) -> None:
        """Bring the names into an order that does not depend on when they were learned."""
        self.names = tuple(sorted(self.names))

    def counts(self) -> dict[str, int]:
        """Return how many values there are by name."""
        return {name: len(values) for name, values in self._values.items()}

    def mark(self) -> None:
        """Remember which values there are."""
        self._marked = self.counts()

    def go_back(self, to: Optional[Mapping[str, int]] = None) -> None:
        """Forget the values since the mark, or beyond other counts."""
        marked = self._marked if to is None else to
        for name, values in self._values.items():
            there = marked.get(name, 0)
            del values[there:], self._weights[name][there:]

    def drop_last(self, name: str, count: int) -> None:
        """Forget the last values of a name."""
        if count:
            del self._values[name][-count:], self._weights[name][-count:]

    @property
    def any(self) -> bool:
        """True if there is a value."""
        return any(self._values.values())

    def clear(self) -> None:
        """Begin anew."""
        for each in (*self._values.values(), *self._weights.values()):
            each.clear()

    def totals(self, device: torch.device) -> Union[torch.Tensor, list[float]]:
        """Sum and weight of each name, one after the other, in double precision."""
        pairs = [self._pair(name, device) for name in self.names]
        if device.type == "cpu":
            return [number for pair in pairs for number in pair.tolist()]
        return torch.cat(pairs) if pairs else torch.zeros(0, dtype=torch.float64, device=device)

    def _pair(self, name: str, device: torch.device) -> torch.Tensor:
        if not self._values[name]:
            return torch.zeros(2, dtype=torch.float64, device=device)
        values, weights = (_stacked(each, device) for each in (self._values[name], self._weights[name]))
        if name in self._finite:
            counts = torch.isfinite(values)
            values, weights = torch.where(counts, values, 0.0), weights * counts
        return torch.stack([values.sum(), weights.sum()])

    def read(self, totals: Sequence[float]) -> dict[str, float]:
        """Return the mean of each name that has one, from totals, which may be sums over ranks."""
        pairs = zip(self.names, totals[::2], totals[1::2])
        return {name: total / weight for name, total, weight in pairs if weight}

    def state(self) -> dict[str, object]:
        """Return what is open, for a checkpoint."""
        return {name: [self._values[name], self._weights[name]] for name in self.names}

    def restore(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Put back what was open; a name that is not known any more is left out."""
        for name in self.names:
            for kept, saved in zip((self._values[name], self._weights[name]), state.get(name, ([], []))):
                kept += [each.to(device) if isinstance(each, torch.Tensor) else each for each in saved]


def _stacked(values: Sequence[Any], device: torch.device) -> torch.Tensor:
    """Return the values in double precision on the device; copying numbers to a GPU would wait, filling them in does not."""
    if device.type == "cpu":
        return torch.tensor([float(each) for each in values], dtype=torch.float64)
    return torch.stack([on_device(each, device) for each in values])


# What a line has of its own.
_TAKEN = frozenset((
    "loss", "epoch", "learning_rate", "gradient_norm", "samples_per_second", "step_seconds", "data_wait_seconds",
    "compute_seconds", "checkpoint_seconds", "peak_memory_bytes", "gpu_utilization", "achieved_flops_per_second", "mfu",
    "slowest_rank", "slowest_by",
))  # fmt: skip
_FAMILIES = ("loss.", "learning_rate.", "gradient_norm.")


class Reading:
    """A line of metrics on its way from the device; ``values`` waits for it.

    Nothing is worked out before it is asked for: on the CPU that is when the line is written, and not on a step's path.
    """

    def __init__(
        self,
        step: int,
        totals: Union[torch.Tensor, list[float]],
        taken: _Interval,
        means: Means,
        own: Means,
    ) -> None:
        self.step = step
        self.taken = taken
        self.more: dict[str, float] = {}
        self.own: dict[str, float] = {}
        self._means, self._own = means, own
        # Names that come later are not in these totals.
        self.plain = not (means.names or own.names)
        self._totals = totals
        self._event: Optional[torch.cuda.Event] = None
        if isinstance(totals, torch.Tensor):
            self._totals = torch.empty_like(totals, device="cpu", pin_memory=True)
            self._totals.copy_(totals, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call, unused-ignore]
            self._event.record()

    @property
    def on_its_way(self) -> bool:
        """True if ``values`` has to be asked at once, or waits for the device."""
        return self._event is not None or not self.plain

    @property
    def loss(self) -> float:
        """The mean loss, of a line that is there and has nothing else."""
        total, count = self._totals[0], self._totals[1]
        return float(total / count) if count else math.nan

    def values(self) -> dict[str, float]:
        """Return the mean loss over all ranks and the other means, this rank's times, and what was added to these."""
        if self._event is not None:
            self._event.synchronize()
        totals = self._totals.tolist() if isinstance(self._totals, torch.Tensor) else self._totals
        times = {**self.taken.times(), **self.more}
        if self.plain:
            times["loss"] = totals[0] / totals[1] if totals[1] else math.nan
            return times
        total, count = totals[:2]
        first_own = 2 + 2 * len(self._means.names)
        others = self._means.read(totals[2:first_own])
        if count or not self._means.summed:
            times["loss"] = total / count if count else math.nan
        else:
            losses = [others[name] for name in self._means.summed if name in others]
            if losses:  # there may have been no update
                times["loss"] = sum(losses)
        self.own = self._own.read(totals[first_own:])
        times.update(others, **self.own)
        return times


class _Interval(NamedTuple):
    """The time since the line before, as a line tells it."""

    facts: Mapping[str, float]
    seconds: float
    steps: int
    samples: int
    waited: float
    saving: float
    memory: float

    @property
    def step_seconds(self) -> float:
        return self.seconds / self.steps

    def times(self) -> dict[str, float]:
        """By the names that a line has for them."""
        seconds, steps = self.seconds, self.steps
        return {
            **self.facts,
            "samples_per_second": self.samples / seconds,
            "step_seconds": seconds / steps,
            "data_wait_seconds": self.waited / steps,
            "compute_seconds": max(0.0, seconds - self.waited - self.saving) / steps,
            "checkpoint_seconds": self.saving / steps,
            "peak_memory_bytes": self.memory,
        }


class Meter:
    """Collects without waiting for the device; the loop appends to it directly, on a step's path."""

    def __init__(self, group: Group, means: Means, say: Callable[[str], None] = lambda _text: None) -> None:
        self._group, self.means, self._say = group, means, say
        self.own = Means()  # what the task measures itself: its names are known once it has
        self._agreed = False
        self._left_out: set[str] = set()
        # On the CPU a plain number is quicker to keep than a tensor, and there is nothing to wait for.
        self.keep: Callable[[torch.Tensor], Scalar] = (
            torch.Tensor.item if group.device.type == "cpu" else torch.Tensor.detach
        )
        self.losses: list[Any] = []  # numbers on the CPU, tensors on a GPU
        self.counts: list[Scalar] = []  # as long as losses when the task counts, empty when it gives means
        self.sizes: list[int] = []
        self.waited = 0.0  # in all, so that other threads may look at it
        self.look()
        self.start()

    def look(self) -> None:
        """Read the memory in use; on the CPU from a background thread, because it is a system call."""
        self._memory = peak_memory(self._group.device)

    def start(self) -> None:
        """Begin anew, now."""
        self.losses.clear()
        self.counts.clear()
        self.sizes.clear()
        self.means.clear()
        self.own.clear()
        self.steps = 0
        self.samples = 0
        self.open = False  # whether a resume has brought losses that are to be logged, on any rank
        self.start_clock()

    def start_clock(self) -> None:
        """The times of this interval begin now; its losses stay."""
        self._waited_before = self.waited
        self.saving = 0.0
        self._started = time.perf_counter()

    @property
    def has_losses(self) -> bool:
        """True if there is a loss or another value that is not logged yet."""
        return bool(self.losses) or self.means.any

    def pause(self, seconds: float) -> None:
        """Leave out time that was spent on something else, such as an evaluation."""
        self._started += seconds

    def drop_last(self, count: int) -> None:
        """Forget the last losses: those of a step that was left out."""
        if count:
            del self.losses[-count:], self.counts[-count:], self.sizes[-count:]

    def mark(self) -> tuple[list[int], dict[str, int], dict[str, int]]:
        """Return what there is now, for ``go_back``."""
        lists = [len(each) for each in (self.losses, self.counts, self.sizes)]
        return lists, self.means.counts(), self.own.counts()

    def go_back(self, mark: tuple[list[int], dict[str, int], dict[str, int]]) -> None:
        """Forget what was added since the mark."""
        lists, means, own = mark
        every: tuple[list[Any], ...] = (self.losses, self.counts, self.sizes)
        for kept, count in zip(every, lists):
            del kept[count:]
        self.means.go_back(means)
        self.own.go_back(own)

    def add_own(self, values: Mapping[str, Any], samples: int) -> None:
        """Add a micro-batch's values of the task's own: means over its samples, or pairs (sum, count); of none, their names."""
        for name, value in values.items():
            if name not in self.own.names and not self._learn(name):
                continue
            if not samples:
                continue
            if isinstance(value, tuple):
                self.own.add_sum(name, self._kept(value[0]), self._kept(value[1]))
            else:
                self.own.add(name, self._kept(value), samples)

    def _kept(self, value: Scalar) -> Scalar:
        return self.keep(value) if isinstance(value, torch.Tensor) else value

    def _learn(self, name: str) -> bool:
        """Take a new name, if the ranks have not agreed on them yet: to ask them all again would take time in a step."""
        if name in _TAKEN or name.startswith(_FAMILIES):
            raise TrainingError(
                f"loss returns {name!r}, and metrics.jsonl has that already: give it another name"
            )
        if not self._agreed:
            self.own.learn(name)
        elif name not in self._left_out:
            self._left_out.add(name)
            self._say(
                f"warning: loss returns {name!r} for the first time: it is left out, because names count that were there "
                "before the first line of metrics; return the same ones in each step"
            )
        return not self._agreed

    def _agree(self) -> None:
        """Let all ranks know the same names, once in a start."""
        self._agreed = True
        if not self._group.all_alike(self.own.names):
            for names in self._group.gather(self.own.names):
                for name in names:
                    self.own.learn(name)
        self.own.sort()

    def totals(self) -> Union[torch.Tensor, list[float]]:
        """Sum of losses and count of what they are the mean of, then those of other means; in double precision.

        They are this rank's.
        """
        own, others = self._losses(), self.means.totals(self._group.device)
        if isinstance(own, torch.Tensor):
            return torch.cat([own, others]) if isinstance(others, torch.Tensor) else own
        return [*own, *others]

    def _with_own(self, totals: Union[torch.Tensor, list[float]]) -> Union[torch.Tensor, list[float]]:
        if not self.own.names:
            return totals
        own = self.own.totals(self._group.device)
        if isinstance(totals, torch.Tensor):
            return torch.cat([totals, own]) if isinstance(own, torch.Tensor) else totals
        return [*totals, *own]

    def _losses(self) -> Union[torch.Tensor, list[float]]:
        if self._group.device.type == "cpu":
            if self.counts:
                return [sum(self.losses), sum(map(float, self.counts))]
            return [sum(map(operator.mul, self.losses, self.sizes)), float(sum(self.sizes))]
        device = self._group.device
        if not self.losses:
            return torch.zeros(2, dtype=torch.float64, device=device)
        values = torch.stack(self.losses).double()
        if self.counts:
            counts = [on_device(each, device) for each in self.counts]
            return torch.stack([values.sum(), torch.stack(counts).sum()])
        if self.sizes[0] == self.sizes[-1]:
            count = self.sizes[0]
            return torch.stack([values.sum() * count, on_device(count * len(self.sizes), device)])
        sizes = torch.tensor(self.sizes, dtype=torch.float64, device=device)
        return torch.stack([(values * sizes).sum(), sizes.sum()])

    def read(self, step: int, facts: Mapping[str, float]) -> Reading:
        """End an interval: its mean loss over all ranks, this rank's times, and the facts given.

        Keys: ``loss``, ``samples_per_second`` (all ranks together), and of a mean step ``step_seconds``,
        ``data_wait_seconds``, ``checkpoint_seconds`` and ``compute_seconds``, which is what is left;
        ``peak_memory_bytes``, see ``gauges.peak_memory``.
        """
        if not self._agreed:
            self._agree()
        totals = self._with_own(self.totals())
        if isinstance(totals, torch.Tensor):
            totals = self._group.sum(totals)
        elif self._group.together:
            totals = self._group.sum(torch.tensor(totals, dtype=torch.float64)).tolist()
        seconds = time.perf_counter() - self._started
        if isinstance(totals, torch.Tensor):
            self.look()
        waited = self.waited - self._waited_before
        taken = _Interval(facts, seconds, max(1, self.steps), self.samples, waited, self.saving, self._memory)
        self.start()
        return Reading(step, totals, taken, self.means, self.own)

    def state(self) -> dict[str, object]:
        """Return the losses of the interval so far, so that a resumed run's next line has the same mean."""
        return {
            "losses": self.losses,
            "counts": self.counts,
            "sizes": self.sizes,
            "means": self.means.state(),
            "own": self.own.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put the losses of an interval back."""
        device = self._group.device
        self.start()
        for kept, saved in ((self.losses, state["losses"]), (self.counts, state["counts"])):
            kept += [each.to(device) if isinstance(each, torch.Tensor) else each for each in saved]
        self.sizes += state["sizes"]
        self.means.restore(state.get("means", {}), device)
        for name in state.get("own", {}):
            self.own.learn(name)
        self.own.restore(state.get("own", {}), device)
