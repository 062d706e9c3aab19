"""Evaluation on the test sets, exact over all ranks: every sample counts once, sums and counts are added up.

What is not a sum (an area under a curve, say) is computed by the task's ``finish`` on rank 0, from the outputs of all samples in
the order of the set.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, TypeVar, Union, cast

import torch

from .batches import own_copy, to_device
from .data import count_workers, eval_batches, same_length
from .errors import EvaluationFailed, Handed, TrainingError
from .generators import capture_random_state, restore_random_state, seed_all
from .order import mix
from .precision import Precision
from .processes.group import Group
from .processes.ranks import Ranks
from .session import Session
from .settings import Config, Settings
from .sharding.local import local, settle
from .task import Data, Scalar, Task, describe_value
from .watching.watch import Watch

if TYPE_CHECKING:
    from .sharding.pipeline import Staged

__all__ = ["Evaluation", "Outputs", "Results", "Rows", "in_order", "trained_sums"]


Rows = dict[str, Union[torch.Tensor, list[Any]]]
"""By name a tensor with a row for each sample, or a list with an entry for each."""


class Outputs:
    """Collects a rank's outputs on the CPU, batch by batch."""

    def __init__(self) -> None:
        self._batches: dict[str, list[Any]] = {}
        self._fresh: Mapping[str, Any] = {}

    def add(self, rows: Mapping[str, Any]) -> None:
        """Take those of a batch; they leave the GPU when the next batch has been started, so that it has work."""
        self._settle()
        self._fresh = rows

    def _settle(self) -> None:
        for name, value in self._fresh.items():
            if not isinstance(value, (torch.Tensor, list)):
                value = torch.as_tensor(value)  # an array of numpy
            self._batches.setdefault(name, []).append(own_copy(value))
        self._fresh = {}

    def whole(self) -> Rows:
        """Return all rows, in the order they came; nothing is kept."""
        self._settle()
        return {name: _joined(name, self._batches.pop(name)) for name in list(self._batches)}


def _joined(name: str, batches: list[Any]) -> Union[torch.Tensor, list[Any]]:
    if all(isinstance(each, list) for each in batches):
        return [row for batch in batches for row in batch]
    try:
        return torch.cat(batches)
    except (RuntimeError, TypeError) as error:
        raise _misfit(name, batches) from error


def in_order(name: str, parts: Sequence[Any], samples: int) -> Union[torch.Tensor, list[Any]]:
    """Return the rows of all ranks as the samples lie in the test set: the ranks take turns, sample by sample."""
    there = parts[:samples]  # further ranks have no sample
    first = there[0]
    if isinstance(first, list) and all(isinstance(part, list) for part in there):
        listed: list[Any] = [None] * samples
        for rank, part in enumerate(there):
            listed[rank :: len(parts)] = part
        return listed
    if not isinstance(first, torch.Tensor) or any(_kind(part) != _kind(first) for part in there):
        raise _misfit(name, there)
    whole = first.new_empty((samples, *first.shape[1:]))
    for rank, part in enumerate(there):
        whole[rank :: len(parts)] = part
    return whole


def _kind(part: object) -> Optional[tuple[object, ...]]:
    return (part.dtype, part.shape[1:]) if isinstance(part, torch.Tensor) else None


def _misfit(name: str, parts: Sequence[object]) -> TrainingError:
    kinds = list(dict.fromkeys(map(describe_value, parts)))
    return TrainingError(
        f"the outputs {name!r} of evaluate do not fit together: {', '.join(kinds[:3])}; "
        "give all batches tensors that differ in their first dimension alone, or a list with an entry for each sample"
    )


T = TypeVar("T")

_PATIENCE = 60.0  # seconds in which the other ranks end their batch


class Results(NamedTuple):
    """Results of an evaluation, the same on every rank; texts are rank 0's alone."""

    values: dict[str, float]
    texts: dict[str, str]


class _Set(NamedTuple):
    """A test set as this rank sees it: its own batches with their sizes, and the samples of all ranks, as data."""

    name: str
    batches: Iterable[object]
    sizes: list[int]
    data: Data
    rounds: int = 0
    """Batches of the rank that has the most: on a sharded model all ranks make as many forward passes."""

    def called(self, measure: str) -> str:
        """Return the name of a measure; with one set alone its own."""
        return f"{self.name}/{measure}" if self.name else measure


class _Part(NamedTuple):
    """Findings of one rank: sums and counts by name, the outputs of each set by name, and how it ended."""

    sums: dict[str, tuple[float, float]]
    outputs: list[list[str]]
    broken_off: bool
    failed: bool = False
    changed: bool = False


class Evaluation:
    """Evaluates a model on the task's test sets; ``len`` is how many things there are to do."""

    def __init__(self, task: Task, cfg: Config, precision: Precision, session: Session) -> None:
        self._task, self._cfg, self._precision = task, cfg, precision
        self._group: Group = session.group
        self._watch: Watch = session.watch
        self._sets: list[_Set] = []
        self._sharded = session.sharded

    def load(self, train: Optional[Data], settings: Settings, micro: int) -> None:
        """Load the test sets, and compare the lengths of all data among the ranks; a stream has none (None)."""
        tests, group = self._task.tests(self._cfg), self._group
        named = {f"test ({name})" if name else "test": each for name, each in tests.items()}
        same_length(group, **({} if train is None else {"train": train}), **named)
        for name, data in tests.items():
            workers = count_workers(settings.workers, group, data)
            batches, sizes = eval_batches(
                data, micro, group, seed=settings.seed, workers=workers, collate=self._task.collate
            )
            most = -(-len(range(0, len(data), group.data.world_size)) // micro)
            self._sets.append(_Set(name, batches, sizes, data, most))

    def try_out(self, model: torch.nn.Module, size: int) -> None:
        """Evaluate the first batch of each set, of so many samples; nothing is kept of it, and no other rank is asked."""
        model.eval()
        for each in self._sets:
            batches, sizes = eval_batches(
                each.data, size, self._group, seed=0, workers=0, collate=self._task.collate
            )
            self._sums(model, itertools.islice(zip(batches, sizes), 1), Outputs())
        model.train()

    def __len__(self) -> int:
        return len(self._sets) + self._task.has("sample")

    def close(self) -> None:
        """End the data-loader workers."""
        self._sets = [each._replace(batches=()) for each in self._sets]

    def measures(self, model: torch.nn.Module, batches: Optional[int] = None) -> Optional[list[str]]:
        """Evaluate so many batches of each test set (None: all), as ``run`` does; the names of what is measured.

        None if it is broken off. What needs all outputs at once (``finish``) may fail on few, and is not tried.
        """
        whole = self._sets
        self._sets = [
            each._replace(
                batches=itertools.islice(each.batches, batches),
                sizes=each.sizes[:batches],
                rounds=each.rounds if batches is None else min(batches, each.rounds),
            )
            for each in whole
        ]
        try:
            found = self._measured(model)
        finally:
            self._sets = whole
        return None if found is None else list(found[0])

    def run(self, model: torch.nn.Module) -> Optional[Results]:
        """Return the task's measures over all test sets.

        None when the run is about to stop: then it is broken off, on all ranks, and done after the resume.
        ``model`` is the bare one: a wrapper's forward may talk to other ranks, which can have fewer batches.

        Raises:
            EvaluationFailed: on every rank, when it has failed on any; the random state is as before, and so is the
                model, or the error says that it is not.
        """
        found = self._measured(model)
        return None if found is None else self._conclude(model, *found)

    def _measured(
        self, model: torch.nn.Module
    ) -> Optional[tuple[dict[str, float], list[list[list[str]]], list[Rows]]]:
        """Return what ``_conclude`` needs: the measures of all ranks, the names of their outputs, and this rank's outputs."""
        group, watch = self._group, self._watch
        group.share_buffers(model)
        # What is saved is rank 0's, or of a sharded model each rank's.
        before = trained_sums(model) if group.ranks.first or self._sharded else []
        random_state = capture_random_state(
            group.device
        )  # when and how one tests must not change what is learned
        model.eval()
        own = _Part({}, [], False)
        outputs: list[Rows] = []
        failure: Optional[Exception] = None
        broken = changed = False
        try:
            own = self._measure(model, outputs)
        except Exception as error:
            failure = error
        try:
            model.train()
            restore_random_state(random_state, group.device)
            changed = failure is not None and _differ(before, trained_sums(model) if before else [])
        except Exception:
            if failure is None:
                raise
            broken = True
        if failure is not None and broken:
            raise failure  # some errors leave a GPU unusable: the first says why
        if failure is None:
            everyone = group.gather(own)
        else:
            watch.want("error")  # so that the others break off, too
            part = _Part({}, [], True, failed=True, changed=changed)
            everyone = _gather_in_time(group, part, failure, watch.hang_timeout)
        failed = [rank for rank, each in enumerate(everyone) if each.failed]
        if failed:
            raise EvaluationFailed(failed, failure, any(each.changed for each in everyone))
        if any(each.broken_off for each in everyone):
            return None
        everyone = [everyone[rank] for rank in group.heads]
        names = dict.fromkeys(name for each in everyone for name in each.sums)
        values = {name: _mean([each.sums[name] for each in everyone if name in each.sums]) for name in names}
        return values, [each.outputs for each in everyone], outputs

    def _measure(self, model: torch.nn.Module, outputs: list[Rows]) -> _Part:
        """This rank's sums over all sets, up to where a stop is wanted; its ``outputs`` of each are appended."""
        sums: dict[str, tuple[float, float]] = {}
        for each in self._sets:
            rows = Outputs()
            found = self._sums(model, self._rounds_of(each), rows)
            sums.update({each.called(name): pair for name, pair in found.items()})
            outputs.append(rows.whole())
        return _Part(sums, [list(each) for each in outputs], self._watch.wanted)

    def _rounds_of(self, which: _Set) -> Iterator[tuple[object, int]]:
        """This rank's batches with their sizes, up to where a stop is wanted.

        On a sharded model each forward pass needs all ranks: who has fewer batches takes a stand-in, of size 0, and all break
        off together.
        """
        given = 0
        for batch, size in zip(which.batches, which.sizes):
            if self._stops():
                return
            given += 1
            yield batch, size
        while self._sharded and given < which.rounds and not self._stops():
            given += 1
            yield self._stand_in(which.data), 0

    def _stops(self) -> bool:
        if not self._sharded:
            return self._watch.wanted
        wanted = torch.tensor(float(self._watch.wanted), device=self._group.device)
        return bool(self._group.sum(wanted) > 0)

    def _stand_in(self, data: Data) -> object:
        """Return a batch of the first sample."""
        alone = Group(Ranks(), self._group.device)
        batches, _ = eval_batches(data, 1, alone, seed=0, workers=0, collate=self._task.collate)
        return next(iter(batches))

    def _sums(
        self, model: torch.nn.Module, batches: Iterable[tuple[object, int]], outputs: Outputs
    ) -> dict[str, tuple[float, float]]:
        """Sums and counts by name over this rank's batches of a set."""
        sums: dict[str, list[Scalar]] = {}
        with torch.no_grad():
            for batch, size in batches:
                try:
                    with self._precision.autocast():
                        answer = self._task.evaluate(model, to_device(batch, self._group.device), size or 1)
                except Handed:
                    continue  # the last stage has the answer
                finally:
                    if self._group.apart:
                        cast("Staged", model).finish()
                self._watch.beats += 1
                if not size:
                    continue
                rows = {}
                for name, value in answer.items():
                    if not isinstance(value, tuple):
                        rows[name] = value
                        continue
                    entry = sums.setdefault(name, [0.0, 0.0])
                    entry[0] = entry[0] + _wide(value[0])
                    entry[1] = entry[1] + _wide(value[1])
                if rows:
                    outputs.add(rows)
        return {name: (float(total), float(count)) for name, (total, count) in sums.items()}

    def _conclude(
        self,
        model: torch.nn.Module,
        values: dict[str, float],
        names: list[list[list[str]]],
        outputs: list[Rows],
    ) -> Results:
        """Add what rank 0 finds alone: ``finish`` over the outputs of all ranks, and ``sample``."""
        if not (self._task.has("sample") or any(any(part) for part in names)):
            return Results(values, {})
        gathered = [self._gather([part[n] for part in names], own) for n, own in enumerate(outputs)]
        found, failure, changed = Results({}, {}), None, False
        if self._group.ranks.first or (self._sharded and self._task.has("sample")):
            before, random_state = trained_sums(model), capture_random_state(self._group.device)
            model.eval()
            try:
                if self._sharded:
                    found = self._drawn_together(model)
                if self._group.ranks.first:
                    found = self._alone(model, gathered, values, found)
            except Exception as error:
                failure = error
            model.train()
            restore_random_state(random_state, self._group.device)
            changed = failure is not None and _differ(before, trained_sums(model))
        everyone = self._group.gather((found.values, failure is not None, changed))
        failed = [rank for rank, (_, has_failed, _) in enumerate(everyone) if has_failed]
        if failed:
            raise EvaluationFailed(failed, failure, any(changed for _, _, changed in everyone))
        more = everyone[0][0]
        return Results({**values, **more}, found.texts)

    def _gather(self, names: list[list[str]], own: Rows) -> dict[str, list[Any]]:
        """Return a set's outputs of each rank by name, on rank 0; one after the other, because they may be large."""
        wanted = dict.fromkeys(name for part in names for name in part)
        found = {name: self._group.collect(own.pop(name, None)) for name in wanted}
        return {
            name: [each[rank] for rank in self._group.heads] if each else each for name, each in found.items()
        }

    def _drawn_together(self, model: torch.nn.Module) -> Results:
        """Return what the task generates, by all ranks at once: a sharded model's forward pass needs all of them.

        They draw the same, so that they go the same way.
        """
        if not self._task.has("sample"):
            return Results({}, {})
        seed_all(mix(self._cfg.seed, 2) >> 1)
        with torch.no_grad(), self._precision.autocast():
            texts, numbers = self._task.sample(model, self._cfg)
        return Results(numbers, texts)

    def _alone(
        self,
        model: torch.nn.Module,
        gathered: list[dict[str, list[Any]]],
        values: Mapping[str, float],
        drawn: Results,
    ) -> Results:
        """Return what rank 0 finds, beside what was ``drawn`` already."""
        found: dict[str, float] = {}
        for each, outputs in zip(self._sets, gathered):
            if outputs:
                rows = {name: in_order(name, outputs.pop(name), len(each.data)) for name in list(outputs)}
                answer = self._task.finish(rows)
                found.update({each.called(name): value for name, value in answer.items()})
        texts = drawn.texts
        if self._sharded:
            found.update(drawn.values)
        elif self._task.has("sample"):
            with torch.no_grad(), self._precision.autocast():
                texts, numbers = self._task.sample(model, self._cfg)
            found.update(numbers)
        self._task.refuse_double(found, values)
        return Results(found, texts)


def trained_sums(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the sum of each parameter that is trained: a fraction of what it costs to look at each value."""
    settle(model)
    trained = [each.detach() for each in model.parameters() if each.requires_grad]
    # Those of fp16 would overflow in fp16. Of sharded ones it is this rank's piece.
    trained = [local(each) for each in trained if not each.is_meta]
    return [each.sum(dtype=torch.float32 if each.dtype == torch.float16 else None) for each in trained]


def _differ(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Return True if two lists of sums differ; with sums of NaN they do."""
    return len(some) != len(others) or not all(map(torch.equal, some, others))


def _gather_in_time(group: Group, value: T, failure: Exception, hang_timeout: Optional[float]) -> list[T]:
    """Gather after this rank's failure; raise the failure if the others do not come.

    They may be waiting for this rank in a collective of the task, which only its end releases. It has to end before the
    hang watch ends it, or the failure is never shown.
    """
    found: list[list[T]] = []

    def gather() -> None:
        if group.device.type == "cuda":
            torch.cuda.set_device(group.device)  # a thread begins with device 0
        with contextlib.suppress(Exception):
            found.append(group.gather(value))

    thread = threading.Thread(target=gather, daemon=True)
    thread.start()
    thread.join(_PATIENCE if hang_timeout is None else min(_PATIENCE, hang_timeout / 2))
    if not found:
        raise failure
    return found[0]


def _wide(value: Scalar) -> Scalar:
    """Sums run in double precision and stay on the device until all batches are through."""
    return value.detach().double() if isinstance(value, torch.Tensor) else float(value)


def _mean(pairs: list[tuple[float, float]]) -> float:
    count = sum(count for _, count in pairs)
    return sum(total for total, _ in pairs) / count if count else float("nan")
