"""Data that are iterated over instead of read by number, and how a resume goes on in the middle of them.

Each rank, and each of its workers, reads a stream of its own, again and again until the training ends. With a batch comes
the state in which its reader was behind it, so that a checkpoint holds the states that belong to the batches trained on,
whatever the workers have read ahead. The state is that of the iterator or of the data set (``state_dict`` and
``load_state_dict``, as torchdata's StatefulDataLoader asks for); without one, a resume reads up to where it was. Beside the
state of a data set goes a checksum of the sample that was next: so a state that does not lead there is noticed.
"""

from __future__ import annotations

import itertools
import marshal
import pickle
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import torch
from torch.utils.data import IterableDataset, get_worker_info

from .data import UnlikeError, ahead, collated, keeping_random_state, seed_sample, start_loader
from .errors import TrainingError
from .generators import capture_random_state, digest, restore_random_state
from .order import mix, sample_seed
from .processes.group import Group
from .saving.snapshot import Trial
from .task import Collate
from .watching.console import Console, duration

__all__ = ["Stream"]


# A state of more bytes than this is not sent with every batch, but with every second, fourth ... 64th.
_LARGE, _SELDOM = 1 << 16, 64
_COMPARED = 4  # samples by which two readers are taken for the same


class _Note(NamedTuple):
    """A note with a batch: its worker, its samples, the state after it, and checksums.

    ``next`` is of the sample behind that state, ``mark`` of the reader's first samples; ``strays``: its state has led it
    elsewhere.
    """

    worker: int
    samples: int
    state: Optional[bytes]
    next: Optional[int]
    mark: Optional[int]
    strays: bool


@dataclass
class _Place:
    """Where one reader is: a state, the samples since, and a checksum of the first of these, if it is known."""

    state: Optional[bytes] = None
    since: int = 0
    next: Optional[int] = None


class Stream:
    """One rank's training data; ``restore`` before ``begin``, and ``state`` whenever a step is through."""

    def __init__(
        self,
        dataset: object,
        group: Group,
        *,
        seed: int,
        workers: int,
        micro_batch: int,
        collate: Optional[Collate],
    ) -> None:
        self._dataset, self._group, self._workers = dataset, group, workers
        self._seed, self._micro, self._collate = seed, micro_batch, collate
        self._places = [_Place() for _ in range(max(1, workers))]
        self._next = 0  # the worker whose batch comes next
        self._again = 0
        self._console = Console(group.ranks.first)

    def state(self) -> dict[str, object]:
        """Return where all readers are, as plain values; behind the batch last handed out."""
        readers = [
            {
                **(_fresh() if each.state is None else pickle.loads(each.state)),
                "since": each.since,
                "next": each.next,
            }
            for each in self._places
        ]
        return {"workers": self._workers, "next": self._next, "readers": readers}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a state; with as many workers as it has, whatever the settings say."""
        if saved["workers"] != self._workers:
            self._console.say(
                f"note: {saved['workers']} workers, as in the checkpoint, and not {self._workers}: "
                "each of them has its place in the stream"
            )
        self._workers, self._next = int(saved["workers"]), int(saved["next"])
        self._places = []
        for reader in saved["readers"]:
            state = {name: value for name, value in reader.items() if name not in ("since", "next")}
            # Earlier versions did not note which sample was next.
            self._places.append(_Place(pickle.dumps(state), int(reader["since"]), reader.get("next")))
            self._again += int(reader["since"]) if state["of"] else _to_skip(state, self._dataset)

    def begin(self) -> Iterator[object]:
        """Return the batches from here on, on the device; the first of each worker is waited for.

        Raises:
            TrainingError: a reader has no samples, or a state that a checkpoint cannot hold.
        """
        began = time.perf_counter()
        ranks = self._group.ranks
        reader = _Reader(self._dataset, self._places, self._next, self._seed, ranks.rank, ranks.world_size)
        reader.micro_batch, reader.collate = self._micro, self._collate
        pin = self._group.device.type == "cuda"
        items: Iterator[Any]
        if self._workers:
            loader = start_loader(reader, None, self._workers, pin=pin, persistent=False)
            items = (item for item in loader if item is not None)
        else:
            items = keeping_random_state(item for item in reader if item is not None)
        first = list(itertools.islice(items, max(1, self._workers)))
        notes = [_Note(*note) for _, note in first]
        states = [pickle.loads(note.state) for note in notes if note.state is not None]
        for state in states:
            Trial().take(state["data"], "the state of the stream")
        if self._again:
            keeps_none = any(state["of"] is None for state in states)
            self._console.say(
                f"note: the stream is read again up to where it was: {self._again} samples on each rank, "
                f"{duration(time.perf_counter() - began)}{_NO_STATE if keeps_none else ''}"
            )
        if self._group.any(any(note.strays for note in notes)):
            self._console.say(_strays(self._dataset))
        self._compare(notes)
        return self._handed(ahead(itertools.chain(first, items), self._group.device))

    def _handed(self, items: Iterator[Any]) -> Iterator[object]:
        for batch, note in items:
            worker, samples, state, following, _, _ = note
            place = self._places[worker]
            if state is None:
                place.since += samples
            else:
                place.state, place.since, place.next = state, 0, following
            self._next = (worker + 1) % max(1, self._workers)
            yield batch

    def _compare(self, notes: list[_Note]) -> None:
        """Say where two readers begin alike: then each of them reads all, and all is trained on twice."""
        marks = self._group.gather([(note.worker, note.mark) for note in notes])
        seen: dict[int, str] = {}
        for rank, each in enumerate(marks):
            for worker, mark in each:
                name = f"rank {rank}" + (f", worker {worker}" if self._workers else "")
                if mark is not None and seen.setdefault(mark, name) != name:
                    self._console.say(
                        f"warning: {seen[mark]} and {name} begin with the same samples: every reader has to take its own "
                        "share of the stream; give the data set attributes shard and shards, which are set for each "
                        "reader, or use torch.distributed.get_rank and torch.utils.data.get_worker_info"
                    )
                    return


_NO_STATE = (
    "; with a state_dict and a load_state_dict of the data set this takes no time. It is exact if the stream gives the same "
    "samples each time"
)


def _strays(dataset: object) -> str:
    return (
        f"warning: the stream {type(dataset).__name__} does not go on with the sample that was next when the checkpoint was "
        "written: samples may come again or never, and a resumed training differs from an uninterrupted one. What its "
        "state_dict() returns must be all that the next sample depends on: an order that is drawn at the beginning of "
        "__iter__ too, and a place that moves on before the yield, not after it"
    )


class _Reader(IterableDataset[Any]):
    """The dataset that torch's loader iterates over in each worker: batches with notes, and None where another one is first."""

    def __init__(
        self,
        dataset: object,
        places: list[_Place],
        first: int,
        seed: int,
        rank: int,
        world_size: int,
    ) -> None:
        self._dataset: Any = dataset
        self._places, self._first, self._seed = places, first, seed
        self._rank, self._world_size = rank, world_size
        self.micro_batch = 1
        self.collate: Optional[Collate] = None

    def __iter__(self) -> Iterator[Optional[tuple[object, _Note]]]:
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        if number < self._first:
            yield None  # the loader asks its workers in turn, from the first one on
        _give_shard(self._dataset, self._rank * workers + number, self._world_size * workers)
        source = _Source(self._dataset, self._seed, f"rank {self._rank}, worker {number}")
        source.own_seed = mix(self._seed, self._rank, number)
        source.restore(self._places[number])
        every, batches = 1, 0
        mark: Optional[int] = None
        while True:
            samples = [source.take() for _ in range(self.micro_batch)]
            if not batches:
                mark = _checksum(samples[:_COMPARED])
            batches += 1
            state, following = source.state() if batches % every == 0 else (None, None)
            if state is not None and len(state) > _LARGE:
                every = min(every * 2, _SELDOM)
            try:
                batch = collated(samples, self.collate)
            except UnlikeError as error:  # it would not come whole out of a worker
                raise TrainingError(str(error)) from error.__cause__
            yield batch, _Note(number, len(samples), state, following, mark, source.strays)
            mark = None


def _give_shard(dataset: Any, number: int, of: int) -> None:
    """Tell a data set that has attributes for it which share of the stream is this reader's."""
    if all(hasattr(dataset, name) and not callable(getattr(dataset, name)) for name in ("shard", "shards")):
        dataset.shard, dataset.shards = number, of


def _checksum(samples: list[object]) -> int:
    """Return the same for the same samples, in any process."""
    told: Any = digest(samples)
    return zlib.crc32(marshal.dumps(told, 2))  # from 3 on it depends on which objects are the same


def _fresh() -> dict[str, Any]:
    return {"given": 0, "pass": 0, "in_pass": 0, "of": None, "data": None}


def _to_skip(state: Mapping[str, Any], dataset: object) -> int:
    """Samples to read again where the stream has no state."""
    return int(state["in_pass"] if callable(getattr(dataset, "set_epoch", None)) else state["given"])


class _Source:
    """One reader's samples, pass after pass.

    Before each sample, the global random generators are seeded: by the pass for its first one, the same for all readers,
    which may have to agree on a shuffle there; by the reader and the number of the sample for the others.
    """

    own_seed = 0
    strays = False  # whether the sample that it went on with is not the one that was next

    def __init__(self, dataset: Any, seed: int, name: str) -> None:
        self._dataset, self._seed, self._name = dataset, seed, name
        self._given = self._pass = self._in_pass = 0
        self._iterator: Iterator[object] = iter(())
        self._looked_at: list[object] = []

    def restore(self, place: _Place) -> None:
        """Begin where a reader was."""
        saved: dict[str, Any] = _fresh() if place.state is None else pickle.loads(place.state)
        skipped = place.since
        if saved["of"] is None:
            skipped += _to_skip(saved, self._dataset)
            with_epochs = callable(getattr(self._dataset, "set_epoch", None))
            self._pass = saved["pass"] if with_epochs else 0
            self._given = saved["given"] - saved["in_pass"] if with_epochs else 0
        else:
            self._given, self._pass = saved["given"], saved["pass"]
            if saved["of"] == "dataset":
                self._dataset.load_state_dict(saved["data"])
        self._begin()
        if saved["of"] is not None:
            self._in_pass = saved["in_pass"]
            if saved["of"] == "iterator":
                iterator: Any = self._iterator
                iterator.load_state_dict(saved["data"])
        if saved["of"] == "dataset" and place.next is not None and place.state is not None:
            self._go_on(place.state, place.next)
        for _ in range(skipped):
            self.take()

    def _go_on(self, state: bytes, mark: int) -> None:
        """Find the sample that is next: it tells whether the data set's state is all that it depends on.

        The beginning of a generator, where readers may agree on a shuffle, runs when its first sample is asked for. In the
        pass that was the first of all, and here it is another one: where its seed leads elsewhere, the pass's leads there.
        """
        if self._has_more() and _checksum(self._looked_at) == mark:
            return
        in_pass = self._in_pass
        self._looked_at = []
        self._iterator = iter(())  # a generator ends before the state is put back once more
        self._dataset.load_state_dict(pickle.loads(state)["data"])
        self._begin()
        self._in_pass = in_pass
        seed_sample(mix(self._seed, self._pass) >> 32)
        self._looked_at = list(itertools.islice(self._iterator, 1))
        self.strays = _checksum(self._looked_at) != mark

    def _begin(self) -> None:
        """Begin a pass."""
        self._in_pass = 0
        if callable(getattr(self._dataset, "set_epoch", None)):
            self._dataset.set_epoch(self._pass)
        seed_sample(mix(self._seed, self._pass) >> 32)
        self._iterator = iter(self._dataset)

    def take(self) -> object:
        """Return the next sample; after the last one the stream is read again."""
        while True:
            if self._looked_at:
                self._given += 1
                self._in_pass += 1
                return self._looked_at.pop()
            if self._in_pass:
                seed_sample(sample_seed(self.own_seed, self._given))
            else:
                seed_sample(mix(self._seed, self._pass) >> 32)
            try:
                sample = next(self._iterator)
            except StopIteration:
                if not self._in_pass:
                    name = type(self._dataset).__name__
                    raise TrainingError(
                        f"the stream {name} gave {self._given} sample(s) to {self._name}, and none in its next pass: "
                        "its __iter__ has to return a new iterator each time, and not one that is used up"
                        if self._given
                        else f"the stream {name} has no sample for {self._name}: lower workers, or "
                        "split it into at least as many parts as there are ranks times workers"
                    ) from None
                self._pass += 1
                self._begin()
                continue
            self._given += 1
            self._in_pass += 1
            return sample

    def state(self) -> tuple[bytes, Optional[int]]:
        """Return where it is, and the state of what it reads; in bytes, because that goes on changing.

        With the state of a data set comes a checksum of the sample behind it, unless the next pass begins there.
        """
        place: dict[str, Any] = {
            "given": self._given,
            "pass": self._pass,
            "in_pass": self._in_pass,
            "of": None,
            "data": None,
        }
        for name, part in (("iterator", self._iterator), ("dataset", self._dataset)):
            if all(callable(getattr(part, each, None)) for each in ("state_dict", "load_state_dict")):
                holder: Any = part
                place.update(of=name, data=holder.state_dict())
                break
        try:
            packed = pickle.dumps(place)  # now: what it is made of goes on changing
        except Exception as error:  # whatever the parts of a state say when they cannot be copied
            raise TrainingError(
                f"the state of the stream {type(self._dataset).__name__} cannot be kept ({error}): state_dict() must return "
                "numbers, strings, tensors, lists, tuples and mappings of these"
            ) from None
        if place["of"] != "dataset":
            return packed, None
        if self._has_more():
            return packed, _checksum(self._looked_at)
        # With such a state the data set begins its next pass by itself: so that is where it is.
        place.update({"pass": self._pass + 1, "in_pass": 0, "data": self._dataset.state_dict()})
        return pickle.dumps(place), None

    def _has_more(self) -> bool:
        """Return True if this pass has another sample, which is then the next one; random states are as before."""
        if not self._looked_at:
            before = capture_random_state(torch.device("cpu"))
            seed_sample(sample_seed(self.own_seed, self._given))
            self._looked_at = list(itertools.islice(self._iterator, 1))
            restore_random_state(before, torch.device("cpu"))
        return bool(self._looked_at)
