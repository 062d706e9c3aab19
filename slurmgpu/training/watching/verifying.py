"""Takes a step again from what was kept before it, and compares: a device that computes wrong does not say so.

With ``verify_steps``. Where the two differ, the step is taken a third time: what two of the three agree on counts, and the
training is there then. So nothing is lost to a step that was wrong, and it goes on, or stops, with what is right.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import torch

from ..build import Training
from ..errors import Mismatch, TrainingError
from ..generators import put_back as put_generators_back
from ..generators import states_of
from ..optimizers import by_name
from ..saving import randomness
from ..saving.snapshot import plain_state
from ..sharding.local import is_sharded, local
from .metrics import Metrics

__all__ = ["Verifier", "first_wrong"]

_ORDER = ("losses", "gradients", "weights", "optimizer")
# What is a process's own where several work on one model.
_OWN = {"fsdp2": (), "pipeline": ("weights", "optimizer")}


def first_wrong(
    one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], strategy: str
) -> Optional[tuple[str, Optional[list[int]]]]:
    """Return what differs first of a step's checksums by rank, and on which ranks; None instead of these: that cannot be told."""
    for what in _ORDER:
        wrong = [rank for rank, pair in enumerate(zip(one, other)) if pair[0][what] != pair[1][what]]
        if wrong:
            alone = len(one) == 1
            own = what in _OWN.get(strategy, _ORDER) and len(wrong) < len(one)
            return what, wrong if alone or own else None
    return None


class _Piece(NamedTuple):
    """A tensor on the CPU, and where it belongs; of a sharded one this process's piece."""

    kept: torch.Tensor
    like: torch.Tensor

    def again(self) -> torch.Tensor:
        """Return the tensor, where it was."""
        if not is_sharded(self.like):
            return self.kept.to(self.like.device, copy=True)
        from torch.distributed.tensor import DTensor

        like: Any = self.like
        piece = self.kept.to(local(like).device, copy=True)
        return DTensor.from_local(
            piece,
            like.device_mesh,
            like.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )


def _kept(value: Any) -> Any:
    """Return a copy of a value, its tensors in pieces on the CPU."""
    if isinstance(value, torch.Tensor):
        return _Piece(local(value).detach().to("cpu", copy=True), value)
    if isinstance(value, dict):
        return {key: _kept(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_kept(each) for each in value)
    return copy.deepcopy(value)


def _again(kept: Any) -> Any:
    """Return a value of which ``_kept`` has made a copy; that stays as it is."""
    if isinstance(kept, _Piece):
        return kept.again()
    if isinstance(kept, dict):
        return {key: _again(each) for key, each in kept.items()}
    if type(kept) in (list, tuple):
        return type(kept)(_again(each) for each in kept)
    return copy.deepcopy(kept)


class _State:
    """All that a step changes, as it was before it; in memory of the CPU.

    It is put back in place, and not by ``load_state_dict``: an optimizer's would give a state the precision of its parameter.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._random = randomness.capture(training.group.device)
        self._generators = training.generators()
        self._states = states_of(self._generators)
        self._tensors = [(each, _kept(each)) for each in self._of_model()]
        self._optimizers = [
            (
                each,
                [(parameter, _kept(state)) for parameter, state in getattr(each, "state", {}).items()],
                [
                    _kept({name: value for name, value in group.items() if name != "params"})
                    for group in each.param_groups
                ],
            )
            for each in by_name(training.optimizer).values()
        ]
        self._others = [
            (part, _kept(plain_state(part)))
            for part in (training.schedule, training.precision.scaler, training.average)
            if part is not None
        ]
        self._task = None if training.task.own is None else _kept(training.task.state())
        self._meter = training.meter.mark()

    def _of_model(self) -> Iterator[torch.Tensor]:
        model = self._training.model
        yield from (each for each in (*model.parameters(), *model.buffers()) if not each.is_meta)

    @torch.no_grad()
    def put_back(self) -> None:
        """Let everything be as it was."""
        training = self._training
        for tensor, piece in self._tensors:
            now = local(tensor).detach()
            was = piece.kept.to(now.device)
            # One that never changes may not be writable: an expanded one.
            if now.layout is not torch.strided or not torch.equal(now, was):
                now.copy_(was)
        for optimizer, states, groups in self._optimizers:
            if hasattr(optimizer, "state"):
                optimizer.state.clear()
                for parameter, state in states:
                    optimizer.state[parameter] = _again(state)
            for group, kept in zip(optimizer.param_groups, groups):
                for name, value in kept.items():
                    if isinstance(group[name], torch.Tensor):
                        group[name].copy_(value.kept)
                    else:
                        group[name] = _again(value)
        for part, kept in self._others:
            part.load_state_dict(_again(kept))
        if self._task is not None:
            training.task.own.load_state_dict(_again(self._task))
        training.meter.go_back(self._meter)
        put_generators_back(self._generators, self._states)
        randomness.restore(self._random, training.group.device)  # last: what comes before may draw


class Verifier:
    """Takes steps twice, on all ranks together; ``record`` takes one and returns its checksums.

    ``mismatch`` is the error to stop with, after a step that was wrong.
    """

    def __init__(self, training: Training, metrics: Metrics, record: Callable[[int], dict[str, Any]]) -> None:
        self._training, self._metrics, self._record = training, metrics, record
        self._through = False
        self.mismatch: Optional[Mismatch] = None

    def take(self, size: int) -> dict[str, Any]:
        """Return a step, verified; its checksums."""
        if self._through:
            return self._record(size)
        training, step = self._training, self._training.step
        state, batches = _State(training), step.batches
        copies: list[object] = []
        try:
            step.batches = _copied(batches, copies)
            found = [self._record(size)]
            began = time.perf_counter()
            for _ in range(2):
                state.put_back()
                step.batches = iter(copy.deepcopy(copies))
                found.append(self._record(size))
                if len(found) == 2 and not any(training.group.gather(_marks(found[0]) != _marks(found[1]))):
                    break
        finally:
            step.batches = batches
        if len(found) > 2:
            self._judge(training.position.step + 1, found)
        seconds = time.perf_counter() - began
        training.meter.pause(seconds)
        training.watch.paused += seconds
        return found[-1]

    def _judge(self, step: int, found: list[dict[str, Any]]) -> None:
        """Say which of three was wrong, or that they say nothing."""
        training = self._training
        everyone = training.group.gather((training.group.ranks.host, [_marks(each) for each in found]))
        first, second, third = zip(*(marks for _, marks in everyone))
        strategy = training.settings.strategy
        if second != third and first != third:
            self._through = True
            training.console.say(
                f"warning: step {step} was taken three times from the same state, and is another one each time: the training "
                "does not repeat itself bit for bit, or a device computes at random; no more steps are verified. On a GPU "
                "set deterministic: true; what the task keeps beside the model belongs into its state_dict()"
            )
            return
        wrong = first_wrong(first if second == third else second, third, strategy)
        assert wrong is not None
        what, ranks = wrong
        who = "on a rank that cannot be told"
        if ranks is not None:
            who = "on " + ", ".join(f"rank {rank} ({everyone[rank][0]})" for rank in ranks)
        text = f"step {step} was computed wrong {who}: of three times, once its {what} were others"
        self._metrics.write("mismatch", step, {"what": what, "ranks": ranks})
        on_gpu = training.group.device.type == "cuda"
        if training.settings.mismatch == "stop" and (training.settings.deterministic or not on_gpu):
            self.mismatch = Mismatch(text, step)
            return
        noise = " (without deterministic: true, a GPU may do so and be sound)" if on_gpu else ""
        training.console.say(
            f"warning: {text}{noise}; the training goes on with what two of the three agree on"
        )


def _marks(values: Mapping[str, Any]) -> dict[str, str]:
    """Checksums as texts: a NaN is equal to itself, and 0 is not -0."""
    return {name: repr(value) for name, value in values.items()}


def _copied(batches: Iterator[object], copies: list[object]) -> Iterator[object]:
    """Yield the batches; a copy of each, for a loss may change its own."""
    for batch in batches:
        try:
            copies.append(copy.deepcopy(batch))
        except Exception as error:
            raise TrainingError(
                f"verify_steps takes a step twice with the same batch, and a {type(batch).__name__} cannot be copied "
                f"({type(error).__name__}: {error}); leave out verify_steps"
            ) from error
        yield batch
