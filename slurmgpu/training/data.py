"""Batches of each rank: from a position on for training, exact shares for the test split.

What a dataset draws at random depends on the seed, the epoch and the sample alone: before each sample the
generators of torch, Python and (where it is loaded) numpy are seeded, and those that the dataset keeps, in the worker or,
without workers, in the training process, whose own random state is put back afterwards. The seeding costs about 6
microseconds a sample, most of it Python's; torch's default generator is seeded itself, for ``torch.manual_seed`` takes 75
to 140.
"""

from __future__ import annotations

import atexit
import itertools
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.util import Finalize
from types import FrameType, ModuleType
from typing import Any, Generic, Optional, TypeVar, Union

import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate, get_worker_info

from . import batches as batch_kinds
from .errors import SettingsError, TrainingError
from .generators import Seed, digest, find, used_by
from .order import Order, Piece, Share, mix, sample_seed
from .processes.group import Group, own_cpus
from .task import Collate, Data, describe_value
from .watching.console import Console
from .watching.signals import SIGNALS

__all__ = [
    "UnlikeError",
    "ahead",
    "auto_workers",
    "collated",
    "count_workers",
    "eval_batches",
    "keeping_random_state",
    "same_length",
    "seed_sample",
    "start_loader",
    "train_batches",
]

T = TypeVar("T")

_NOTHING = object()

# A loader beyond this many workers a rank is rarely short of CPUs, but of disk or network.
_MOST_WORKERS = 8
# Batches out of tensors are gathered so many at a time, as long as they stay within the caches.
_MOST_AHEAD, _BLOCK = 32, 1 << 20
# How deep a data set is looked into for tensors on a GPU, and how many entries at each depth.
_DEPTH, _FIRST = 4, 32


class Fetch:
    """Turns pieces of the order into a batch; a dataset for torch's loader.

    A ``TensorDataset`` and a dataset with ``__getitems__`` are asked for a whole batch at once; the randomness of the
    latter is seeded by the batch's first sample. ``collate`` makes a batch of a list of samples; None: as torch does.
    A dataset that draws from where it cannot be seeded is noticed where ``notices``, which is on rank 0.
    """

    def __init__(
        self, dataset: Data, seed: int, collate: Optional[Collate] = None, *, notices: bool = False
    ) -> None:
        self.dataset: Any = dataset
        self._seed, self._collate, self._notices = seed, collate, notices
        plain = type(dataset) is TensorDataset and collate is None
        self._tensors = dataset.tensors if plain else None  # type: ignore[attr-defined]
        self._on_cpu = self._tensors is not None and not any(each.is_cuda for each in self._tensors)
        inner: object = dataset
        while isinstance(inner, Subset):
            inner = inner.dataset
        self._at_once = callable(getattr(inner, "__getitems__", None))
        self._own: Optional[list[Seed]] = None  # looked for in the process that draws

    def __getitem__(self, pieces: list[Piece]) -> object:
        """Return the samples of the pieces, collated."""
        if self._tensors is not None:
            return self._select(pieces)
        found: list[object] = []
        numpy = sys.modules.get("numpy")
        for epoch, indices, first in pieces:
            base = mix(self._seed, epoch)
            chosen = indices if isinstance(indices, list) else indices.tolist()
            # A sample that comes twice in an epoch is another one each time.
            drawn = chosen if first is None else range(first, first + len(chosen))
            if self._own is None:
                self._own = self._look(base, chosen[0])
            if self._at_once:
                self._seed_all(sample_seed(base, drawn[0]), numpy)
                found += self.dataset.__getitems__(chosen)
                continue
            for index, place in zip(chosen, drawn):
                self._seed_all(sample_seed(base, place), numpy)
                found.append(self.dataset[index])
        try:
            return collated(found, self._collate)
        except UnlikeError as error:
            indices = [int(index) for _, chosen, _ in pieces for index in chosen]
            raise TrainingError(error.text(f"sample {indices[error.number]}")) from error.__cause__

    def _seed_all(self, seed: int, numpy: Optional[ModuleType]) -> None:
        seed_sample(seed, numpy)
        for set_seed in self._own or ():
            set_seed(seed)

    def _look(self, base: int, index: int) -> list[Seed]:
        """Return what seeds the dataset's own generators, those too that it makes when it is first asked for a sample."""
        seed = sample_seed(base, index)
        drawing = [self.dataset, *([] if self._collate is None else used_by(self._collate))]
        self._own = find(*drawing)
        first = self._sample(seed, index)
        again = find(*drawing)
        if len(again) > len(self._own):
            self._own = again
            first = self._sample(seed, index)
        worker = get_worker_info()
        notices = self._notices and (worker is None or worker.id == 0)
        if notices and digest(first) != digest(self._sample(seed, index)):
            Console(True).say(_not_repeatable(index))
        return self._own

    def _sample(self, seed: int, index: int) -> object:
        self._seed_all(seed, sys.modules.get("numpy"))
        return self.dataset.__getitems__([index]) if self._at_once else self.dataset[index]

    def _select(self, pieces: list[Piece]) -> list[torch.Tensor]:
        assert self._tensors is not None
        chosen = pieces[0][1]
        if len(pieces) > 1 or isinstance(chosen, list):
            chosen = torch.cat([torch.as_tensor(indices) for _, indices, _ in pieces])
        if self._on_cpu:
            return [tensor.index_select(0, chosen) for tensor in self._tensors]
        chosen = chosen.pin_memory()  # from elsewhere the copy would wait for the GPU
        return [
            tensor.index_select(0, chosen.to(tensor.device, non_blocking=True)) for tensor in self._tensors
        ]

    def _selected(self, keys: Iterable[list[Piece]]) -> Iterator[list[torch.Tensor]]:
        """Yield the batches out of tensors, gathered several at a time and then cut: a few calls instead of many."""
        assert self._tensors is not None
        keys = iter(keys)
        sample = sum(tensor[:1].nbytes for tensor in self._tensors)
        ahead = 1
        while True:
            group = list(itertools.islice(keys, ahead))
            if not group:
                return
            sizes = [sum(map(len, (indices for _, indices, _ in pieces))) for pieces in group]
            block = self._select([piece for pieces in group for piece in pieces])
            yield from map(list, zip(*(torch.split(tensor, sizes) for tensor in block)))
            ahead = max(1, min(_MOST_AHEAD, _BLOCK // (sizes[0] * sample or 1)))

    def here(self, keys: Iterable[list[Piece]]) -> Iterator[object]:
        """Yield the batches fetched in this process, whose own random state stays as it is."""
        if self._tensors is not None:
            yield from self._selected(keys)
            return
        yield from keeping_random_state(map(self.__getitem__, keys))


def keeping_random_state(batches: Iterable[T]) -> Iterator[T]:
    """Yield the same batches; what is drawn for them in this process does not move its random state."""
    iterator = iter(batches)
    while True:
        numpy = sys.modules.get("numpy")
        before = torch.get_rng_state(), random.getstate(), numpy and numpy.random.get_state()
        batch = next(iterator, _NOTHING)
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        if numpy is not None:
            numpy.random.set_state(before[2])
        if batch is _NOTHING:
            return
        yield batch  # type: ignore[misc]


class UnlikeError(Exception):
    """Samples that make no batch, ``number`` being the first that is unlike most of them, which torch does not name."""

    def __init__(self, kinds: list[str], error: Exception) -> None:
        usual = max(kinds, key=kinds.count)
        self.number = next((number for number, kind in enumerate(kinds) if kind != usual), 0)
        others = f", most others are {usual}" if kinds[self.number] != usual else ""
        self._what = f"is {kinds[self.number]}{others}"
        self._error = error

    def text(self, name: str) -> str:
        """Return what is wrong, and what to do; with a name for the sample."""
        return (
            f"the dataset's samples do not make a batch: {name} {self._what} "
            f"(torch's default_collate says: {type(self._error).__name__}: {self._error}); "
            "return tensors, arrays, numbers or strings of one kind and shape, or tuples, lists or dicts of them; or write "
            "a method collate(samples) in the task, which makes a batch of a list of samples"
        )

    def __str__(self) -> str:
        return self.text(f"number {self.number} of the batch")


def collated(samples: list[object], collate: Optional[Collate]) -> object:
    """Return a batch of samples, made by the task or by torch.

    Raises:
        UnlikeError: torch's way does not fit the samples.
    """
    if collate is not None:
        return collate(samples)
    try:
        return default_collate(samples)
    except (TypeError, RuntimeError, KeyError, ValueError) as error:
        kinds = [describe_value(sample) for sample in samples]
        if len(set(kinds)) == 1 and not isinstance(error, TypeError):
            raise  # the samples are all of one kind: it is about something else, such as shared memory
        raise UnlikeError(kinds, error) from error


def _not_repeatable(index: int) -> str:
    return (
        f"warning: sample {index} is not the same when it is read twice with the same seeds: it draws from a generator "
        "that is made anew for it, or from the system or the clock, and a resumed training would see other samples. "
        "Draw from torch, random or numpy.random, or from a generator that the dataset keeps: these are seeded for "
        "each sample"
    )


def seed_sample(seed: int, numpy: Optional[ModuleType] = None) -> None:
    """Seed the global generators; ``numpy`` is looked up here if it is not given."""
    numpy = numpy or sys.modules.get("numpy")
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed(seed)


class _Again(Generic[T]):
    """An iterable that may be gone through again; torch's loader wants its sampler so."""

    def __init__(self, begin: Callable[[], Iterator[T]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[T]:
        return self._begin()


def train_batches(
    dataset: Data,
    order: Order,
    chosen: Iterable[Share],
    group: Group,
    *,
    seed: int,
    workers: int,
    collate: Optional[Collate] = None,
) -> Iterator[object]:
    """Return the batches of a rank's shares, on its device; on a GPU the next one is copied during the step."""
    keys = (order.pieces(start, stop) for start, stop, _ in chosen)
    fetch = Fetch(dataset, seed, collate, notices=group.ranks.first)
    batches = _batches(fetch, keys, group, workers, persistent=False)
    return ahead(iter(batches), group.device)


def eval_batches(
    dataset: Data,
    micro_batch: int,
    group: Group,
    *,
    seed: int,
    workers: int,
    collate: Optional[Collate] = None,
) -> tuple[Iterable[object], list[int]]:
    """Return the batches of this rank's share of the test split, and their sizes: every sample on exactly one rank."""
    own = torch.arange(min(group.data.rank, len(dataset)), len(dataset), group.data.world_size)
    parts = torch.split(own, micro_batch) if len(own) else ()
    keys: list[list[Piece]] = [[(0, part, None)] for part in parts]
    sizes = [len(part) for part in parts]
    fetch = Fetch(dataset, mix(seed, 1), collate)
    return _batches(fetch, keys, group, workers, persistent=True), sizes


def _batches(
    fetch: Fetch, keys: Iterable[list[Piece]], group: Group, workers: int, *, persistent: bool
) -> Iterable[object]:
    pin = group.device.type == "cuda"
    if not workers:
        return _Again(lambda: map(batch_kinds.pinned, fetch.here(keys)) if pin else fetch.here(keys))
    return start_loader(fetch, _Again(lambda: map(_as_lists, keys)), workers, pin=pin, persistent=persistent)


def start_loader(
    source: object, sampler: Optional[Iterable[object]], workers: int, *, pin: bool, persistent: bool
) -> Iterable[object]:
    """Torch's loader in some worker processes, which hands on batches as they are."""
    loader: DataLoader[object] = DataLoader(
        source,  # type: ignore[arg-type]  # all that a loader needs of a dataset
        batch_size=None,
        sampler=sampler,
        num_workers=workers,
        collate_fn=_as_it_is,
        pin_memory=pin,
        persistent_workers=persistent,
        worker_init_fn=_StartWorker(),
        # Its own generator, so that starting a loader does not move the random state that a resume restores.
        generator=torch.Generator().manual_seed(0),
    )
    return loader


def _as_lists(pieces: list[Piece]) -> list[Piece]:
    return [(epoch, torch.as_tensor(indices).tolist(), first) for epoch, indices, first in pieces]


def _as_it_is(batch: object) -> object:
    return batch


class _StartWorker:
    """Lets a worker ignore its rank's signals, which would end it during a save, until the rank exits and sends TERM.

    And lets it end where the rank was killed, whatever it has still to send: nobody reads that, and it would wait for ever.
    """

    def __init__(self) -> None:
        self._leaving = multiprocessing.RawValue("b", 0)
        atexit.register(self._leave)

    def _leave(self) -> None:
        self._leaving.value = 1

    def __call__(self, _worker: int) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._end)
        # Torch's loop ends with the rank; what a process waits for at its end comes at priorities below 0.
        Finalize(None, _end_without, (os.getppid(),), exitpriority=1)

    def _end(self, _number: int, _frame: Optional[FrameType]) -> None:
        if self._leaving.value:
            os._exit(0)


def _end_without(parent: int) -> None:
    if os.getppid() != parent:
        os._exit(1)


def same_length(group: Group, **sets: Data) -> None:
    """Refuse data sets that are longer on some ranks than on others: each rank would wait for batches that never come.

    Raises:
        TrainingError: on every rank, with the lengths.
    """
    own = {name: len(each) for name, each in sets.items()}
    if group.all_alike(own):
        return
    lengths = group.gather(own)
    for name in dict.fromkeys(name for each in lengths for name in each):
        found = [each.get(name) for each in lengths]
        if len(set(found)) > 1:
            told = ", ".join(f"{length} on rank {rank}" for rank, length in enumerate(found[:8]))
            raise TrainingError(
                f"the data set for {name} has not the same length on every rank: {told}"
                f"{' ...' if found[8:] else ''}; give each rank the whole set, it takes its own share of it "
                "(does one rank see other files, or does it split them itself?)"
            )


def count_workers(wanted: Union[int, str], group: Group, dataset: object = None) -> int:
    """Loader processes for this rank; ``auto``: its CPUs but one.

    None where the CPUs do the training, or for data on the GPU, which another process cannot read.

    Raises:
        SettingsError: workers are asked for, and the data lie on the GPU.
    """
    if wanted == 0 or (wanted == "auto" and group.device.type == "cpu"):
        return 0
    tensor = _gpu_tensor(dataset, _DEPTH)
    if tensor is not None and isinstance(wanted, int):
        raise SettingsError(
            f"workers is {wanted}, and the data set {type(dataset).__name__} holds a tensor on {tensor.device}, which "
            "another process cannot read: set workers: 0 (auto does), or keep the data on the CPU, from where each "
            "batch is copied during the step before it"
        )
    if isinstance(wanted, int):
        return wanted
    if tensor is not None:
        return 0
    return auto_workers(own_cpus(group.ranks))


def auto_workers(cpus: int) -> int:
    """Loader processes of a rank with so many CPUs, where nothing speaks against them: all but one."""
    return min(_MOST_WORKERS, cpus - 1)


def _gpu_tensor(value: object, depth: int) -> Optional[torch.Tensor]:
    """Return a tensor on a GPU in what a data set keeps: in its attributes, the data sets in it, the first of its lists."""
    if isinstance(value, torch.Tensor):
        return value if value.is_cuda else None
    inner: Iterable[object] = ()
    if isinstance(value, (list, tuple)):
        inner = value
    elif isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, Dataset) or depth == _DEPTH:
        inner = list(getattr(value, "__dict__", {}).values())
    if not depth:
        return None
    found = (_gpu_tensor(each, depth - 1) for each in itertools.islice(inner, _FIRST))
    return next((each for each in found if each is not None), None)


def ahead(batches: Iterator[object], device: torch.device) -> Iterator[object]:
    """Return the batches on the device; on a GPU the next one is copied during the step."""
    return _Ahead(batches, device) if device.type == "cuda" else batches


class _Ahead:
    """Copies the next batch to the GPU on a stream of its own while the step runs."""

    def __init__(self, batches: Iterator[object], device: torch.device) -> None:
        self._batches, self._device = batches, device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call, unused-ignore]
        self._next: object = None
        self._load()

    def __iter__(self) -> Iterator[object]:
        return self

    def __next__(self) -> object:
        batch = self._next
        if batch is None:
            raise StopIteration
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        batch_kinds.keep_for(batch, current)
        self._load()
        return batch

    def _load(self) -> None:
        batch = next(self._batches, None)
        if batch is not None:
            with torch.cuda.stream(self._stream):
                batch = batch_kinds.to_device(batch, self._device)
        self._next = batch
