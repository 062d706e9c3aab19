"""Checksums of each rank's step, and steps taken twice to find a computer that computes wrong."""

from __future__ import annotations

import copy
import functools
import itertools
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch

from ..build import Training
from ..errors import Mismatch, TrainingError
from ..generators import capture_random_state, restore_random_state, states_of
from ..generators import put_back as put_generators_back
from ..optimizers import by_name
from ..saving.snapshot import plain_state
from ..sharding.local import is_sharded, local
from .metrics import Metrics

__all__ = ["Checksums", "Sums", "Verifier", "checksum", "first_wrong"]


_AS_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


_COLUMNS = 4096
_MASK = 2**64 - 1
# splitmix64's, by which neighbours become numbers that have nothing to do with each other.
_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of a tensor's bit patterns, each times an odd number for its place, modulo 2**64, on its device.

    Of a sharded one this process's piece. The place's number is that of its column and of its row, with the tensor laid out in
    rows of some thousand values: so they need not be worked out for each of them.
    """
    piece = local(tensor).detach()
    if piece.layout is not torch.strided:
        piece = piece.coalesce()._values() if piece.is_sparse else piece.to_dense()
    if piece.element_size() > 8:
        piece = torch.view_as_real(piece)
    flat = piece.contiguous().reshape(-1)
    whole = flat.view(_AS_WHOLE[flat.element_size()]).to(torch.int64)
    rows, along = len(whole) // _COLUMNS, _along(whole.device)
    rest = whole[rows * _COLUMNS :]
    found = (rest * along[: len(rest)]).sum()
    if rows:
        table = whole[: rows * _COLUMNS].view(rows, _COLUMNS)
        found = (
            found + (table.sum(0) * along).sum() + (table.sum(1) * (_mixed(rows, whole.device) << 1)).sum()
        )
    return found


@functools.cache
def _along(device: torch.device) -> torch.Tensor:
    """Return the number of each column: odd, so that no bit of a value is lost; those of rows are even, for the same reason."""
    return _mixed(_COLUMNS, device) | 1


def _mixed(count: int, device: torch.device) -> torch.Tensor:
    first, second, third = (each - 2**64 if each >= 2**63 else each for each in _MIX)
    found = torch.arange(1, count + 1, device=device) * first
    found = (found ^ (found >> 30)) * second
    found = (found ^ (found >> 27)) * third
    return found ^ (found >> 31)


@functools.cache
def _of(number: int, name: str = "") -> int:
    """Return the odd number of a tensor, by that of its parameter and its name beside it; as torch takes it, with a sign."""
    found = number * _MIX[0] + zlib.crc32(name.encode()) & _MASK
    for shift, factor in ((30, _MIX[1]), (27, _MIX[2])):
        found = (found ^ (found >> shift)) * factor & _MASK
    found |= 1
    return found - 2**64 if found >= 2**63 else found


class Sums:
    """Works out the checksums of a step while it is taken; ``losses`` gives the list that the step adds to."""

    def __init__(
        self, model: torch.nn.Module, optimizers: Iterable[Any], losses: Callable[[], list[Any]]
    ) -> None:
        self._model, self._optimizers, self._losses = model, list(optimizers), losses
        self._gradients: Optional[dict[torch.device, torch.Tensor]] = None
        for number, parameter in enumerate(model.parameters(), 1):
            if parameter.requires_grad:
                # Of a leaf it is called with what is about to be added to its gradient, before DDP averages that.
                hook = functools.partial(self._take_gradient, number)
                parameter.register_hook(hook)  # type: ignore[no-untyped-call, unused-ignore]

    def of(self, take: Callable[[int], None], size: int) -> dict[str, Any]:
        """Take a step; what it has worked out, by name."""
        self._gradients, known = {}, len(self._losses())
        try:
            take(size)
            return {
                "losses": [float(each) for each in self._losses()[known:]],
                "gradients": _hex(self._gradients),
                "weights": _hex(self._weights()),
                "optimizer": _hex(self._states()),
            }
        finally:
            self._gradients = None

    def _take_gradient(self, number: int, gradient: torch.Tensor) -> None:
        if self._gradients is not None:
            # Times a number of the parameter's own, or two gradients changed places unseen.
            _add(self._gradients, checksum(gradient) * _of(number))

    def _weights(self) -> dict[torch.device, torch.Tensor]:
        sums: dict[torch.device, torch.Tensor] = {}
        for number, each in enumerate((*self._model.parameters(), *self._model.buffers()), 1):
            if not each.is_meta:  # another stage's
                _add(sums, checksum(each) * _of(number))
        return sums

    def _states(self) -> dict[torch.device, torch.Tensor]:
        """By parameter and name: the order of an optimizer's states is that of its first steps, and after a resume another."""
        sums: dict[torch.device, torch.Tensor] = {}
        for optimizer in self._optimizers:
            groups = getattr(optimizer, "param_groups", [])
            parameters = itertools.chain.from_iterable(group["params"] for group in groups)
            numbers = {id(parameter): number for number, parameter in enumerate(parameters, 1)}
            for parameter, state in list(getattr(optimizer, "state", {}).items()):
                for name, each in state.items() if isinstance(state, dict) else ():
                    if isinstance(each, torch.Tensor):
                        _add(sums, checksum(each) * _of(numbers.get(id(parameter), 0), str(name)))
        return sums


class Checksums:
    """Writes a rank's checksums into ``checksums`` in the run directory.

    Raises:
        TrainingError: there is no writing there.
    """

    def __init__(self, folder: Path, rank: int, restart: int) -> None:
        try:
            folder.mkdir(exist_ok=True)
            self._lines = Metrics(folder / f"rank-{rank}.jsonl", restart, rank=rank)
        except OSError as error:
            raise TrainingError(f"{folder} cannot be written: {error.strerror}") from error

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Write those of a step."""
        self._lines.write("checksums", step, values)


def _add(sums: dict[torch.device, torch.Tensor], value: torch.Tensor) -> None:
    before = sums.get(value.device)
    sums[value.device] = value if before is None else before + value


def _hex(sums: dict[torch.device, torch.Tensor]) -> str:
    """One number of the sums of all devices; asking for it waits for these."""
    return f"{sum(int(each) for each in sums.values()) % 2**64:016x}"


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
        self._random = capture_random_state(training.group.device)
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
        restore_random_state(self._random, training.group.device)  # last: what comes before may draw


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
