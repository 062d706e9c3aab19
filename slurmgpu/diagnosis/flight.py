"""torch's flight recorder: which collective each rank had begun last, by the dumps that ranks leave when one does not end.

A dump is a pickle of plain values (torch/csrc/distributed/c10d/FlightRecorder.hpp, ``dump``; versions 2.3 to 2.10 were read):
``entries``, oldest first, with ``process_group`` (name, description), ``collective_seq_id``, ``profiling_name``, ``state``,
``input_sizes`` and ``frames``; ``pg_config``, the ranks of each group. gloo's entries never leave the state ``scheduled``.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, Optional

from .traces import is_own_code

__all__ = ["DUMP", "Dump", "Stuck", "dumps_in", "plain", "read_dumps", "stuck"]

DUMP = "flight-"
"""Prefix of the names of dumps in a run directory's ``debug``: ``flight-JOB.RESTART-rank-RANK``."""
_MOST_BYTES = 8 << 20  # the newest 2000 collectives take a quarter of a MiB
_MOST_DUMPS = 4096
_SECONDS = 3.0
_RANK = re.compile(r"(\d+)$")
_SAME_SIZES = ("all_reduce", "broadcast", "reduce", "allreduce_coalesced")


def _put_list(count: int, reader: Any) -> None:
    at = len(reader.stack) - count
    reader.stack[at:] = [reader.stack[at:]]


class _Plain(pickle._Unpickler):  # the one in C makes room for whatever number a file names
    """Reads containers, texts and numbers, and nothing that is found by its name: that could run anything."""

    # A tuple comes as a list, which is no key: the hash of tuples of tuples may take for ever.
    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        pickle.TUPLE[0]: pickle._Unpickler.dispatch[pickle.LIST[0]],
        **{code: partial(_put_list, count) for count, code in enumerate(b")\x85\x86\x87")},
    }

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"a dump holds plain values alone, and not {module}.{name}")

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("a dump refers to nothing outside")


def plain(data: bytes) -> object:
    """Return what a pickle of plain values holds; ValueError where it is none, or holds anything else."""
    try:
        return _Plain(io.BytesIO(data)).load()
    except Exception as error:  # whatever rubbish makes of it
        raise ValueError(f"no pickle of plain values: {error}") from None


class Entry(NamedTuple):
    """One collective of one rank."""

    number: int
    operation: str
    done: bool
    """True if it had ended; of gloo's it is never known."""
    sizes: str
    place: str
    """``train.py, line 12``, where the user's own code began it; empty where that is not told."""
    moment: int
    """Nanoseconds since 1970."""

    def words(self) -> str:
        """``all_reduce number 42 (train.py, line 12)``."""
        return f"{self.operation} number {self.number}{f' ({self.place})' if self.place else ''}"


class Dump(NamedTuple):
    """The collectives that one rank had begun, by group."""

    rank: int
    entries: Mapping[str, Mapping[int, Entry]]
    groups: Mapping[str, frozenset[int]]
    """The ranks of each group, where the dump knows them."""

    def last(self, group: str) -> int:
        """Return the number of the last collective that it has begun in a group; 0: none."""
        return max(self.entries.get(group, {}), default=0)

    def unfinished(self, group: str) -> Optional[int]:
        """Return the first one that it has begun and that has not ended; None of gloo, which does not tell."""
        waits = [one.number for one in self.entries.get(group, {}).values() if not one.done]
        told = any(one.done for one in self.entries.get(group, {}).values())
        return min(waits, default=None) if told else None


class Stuck(NamedTuple):
    """A collective that did not end, and why."""

    entry: Entry
    group: str
    missing: tuple[int, ...]
    came: tuple[int, ...]
    """The ranks that had begun it."""
    last: Optional[Entry]
    """The last collective of the first of those missing."""
    other: Mapping[str, tuple[int, ...]]
    """The collective that the ranks began in its place, where that is another."""
    absent: tuple[int, ...] = ()
    """Ranks of the group of which there is no dump."""

    @property
    def rank(self) -> Optional[int]:
        """The one that is to blame, where it is one."""
        if len(self.missing) == 1:
            return self.missing[0] if not self.absent else None
        alone = [ranks[0] for ranks in self.other.values() if len(ranks) == 1]
        return alone[0] if len(alone) == 1 and len(self.came) > 2 else None

    def words(self) -> str:
        """Return what the recorder tells, in one sentence."""
        if self.other:
            each = "; ".join(f"{_ranks(ranks)} began {what}" for what, ranks in self.other.items())
            return f"the ranks did not begin the same: {each}"
        what = self.entry.words()
        if not self.missing and self.absent:
            return f"all ranks that left a record came to {what}; {_ranks(self.absent)} left none"
        if not self.missing:
            return f"all {len(self.came)} ranks came to {what}, and it did not end: a GPU or the network"
        if len(self.came) == 1 and len(self.missing) > 1:
            return f"rank {self.came[0]} alone came to {what}"
        last = f"; its last was {self.last.words()}" if self.last and len(self.missing) == 1 else ""
        absent = f"; {_ranks(self.absent)} left no record" if self.absent else ""
        return f"{_ranks(self.missing)} did not come to {what}{last}{absent}"


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def dumps_in(run_dir: Path, job_id: str, restart: int) -> list[str]:
    """Return the dumps that a start of a job has left in its run directory."""
    return [str(path) for path in sorted((run_dir / "debug").glob(f"{DUMP}{job_id}.{restart}-rank-*"))]


def read_dumps(paths: Iterable[str], owner: Optional[int] = None) -> list[Dump]:
    """Return the dumps of an owner (default: this user) among some files, one of each rank; what is none is left out."""
    until = time.monotonic() + _SECONDS
    found: dict[int, Dump] = {}
    for path in list(dict.fromkeys(paths))[:_MOST_DUMPS]:
        named = _RANK.search(path)
        if named is None or time.monotonic() > until:
            continue
        try:
            found.setdefault(int(named[1]), _dump(int(named[1]), plain(_bytes(path, owner))))
        except (OSError, ValueError):
            continue
    return list(found.values())


def _bytes(path: str, owner: Optional[int]) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        there = os.fstat(descriptor)
        mine = os.getuid() if owner is None else owner
        if there.st_uid != mine or not stat.S_ISREG(there.st_mode) or there.st_size > _MOST_BYTES:
            raise ValueError("not a dump of this owner's")
        return file.read(_MOST_BYTES)


def _dump(rank: int, found: object) -> Dump:
    entries = found.get("entries") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(entries, (list, tuple)):
        raise ValueError("not a dump")
    by_group: dict[str, dict[int, Entry]] = {}
    for one in entries:
        name = _group(one) if isinstance(one, dict) else None
        if name is None or one.get("is_p2p") is True:
            continue
        entry = _entry(one)
        if entry is not None:
            by_group.setdefault(name, {})[entry.number] = entry
    groups: dict[str, frozenset[int]] = {}
    config = found.get("pg_config")
    for name, one in config.items() if isinstance(config, dict) else ():
        text = one.get("ranks") if isinstance(one, dict) else None
        ranks = re.findall(r"\d+", text[:100_000]) if isinstance(text, str) else []
        if ranks and isinstance(name, str):
            groups[name] = frozenset(int(rank[:9]) for rank in ranks)
    return Dump(rank, by_group, groups)


def _group(one: Mapping[str, Any]) -> Optional[str]:
    group = one.get("process_group")
    return group[0] if isinstance(group, (tuple, list)) and group and isinstance(group[0], str) else None


def _entry(one: Mapping[str, Any]) -> Optional[Entry]:
    number, name, moment = one.get("collective_seq_id"), one.get("profiling_name"), one.get("time_created_ns")
    if not isinstance(number, int) or not isinstance(name, str) or number < 1:
        return None
    return Entry(
        number,
        name.rpartition(":")[2][:80],
        one.get("state") == "completed",
        _sizes(one.get("input_sizes")),
        _place(one.get("frames")),
        moment if isinstance(moment, int) else 0,
    )


def _sizes(tensors: object) -> str:
    """Return the sizes of a collective's tensors, such as ``[8, 4]``; of the first few."""
    found = []
    for one in tensors[:4] if isinstance(tensors, list) else ():
        if isinstance(one, list) and all(isinstance(size, int) for size in one[:8]):
            found.append(f"[{', '.join(str(size)[:20] for size in one[:8])}]")
    return ", ".join(found)


def _place(frames: object) -> str:
    for frame in frames[:64] if isinstance(frames, list) else ():
        file, line = (frame.get("filename"), frame.get("line")) if isinstance(frame, dict) else (None, None)
        if isinstance(file, str) and isinstance(line, int) and is_own_code(file):
            return f"{file.rpartition('/')[2][:80]}, line {line}"
    return ""


def stuck(dumps: Sequence[Dump], world: Optional[int] = None) -> Optional[Stuck]:
    """Return the collective that did not end first, by the dumps of at least two ranks; None where they do not tell one.

    ``world``: how many processes there are in all, where that is known.
    """
    names = dict.fromkeys(name for dump in dumps for name in (*dump.entries, *dump.groups))
    found = [one for name in names if (one := _in_group(name, dumps, world)) is not None]
    # A rank that does not come to one group's collective may wait in another's: it is not where it began.
    free = [
        one
        for one in found
        if not any(set(one.missing) & set(other.came) for other in found if other is not one)
    ]
    return min(free or found, key=lambda one: one.entry.moment, default=None)


def _in_group(name: str, dumps: Sequence[Dump], world: Optional[int]) -> Optional[Stuck]:
    members = next((dump.groups[name] for dump in dumps if name in dump.groups), None)
    if (
        members is None and name != "0"
    ):  # gloo does not write down who belongs to a group; the first one is everybody's
        members = frozenset(dump.rank for dump in dumps if name in dump.entries)
    theirs = sorted(
        (dump for dump in dumps if members is None or dump.rank in members), key=lambda dump: dump.rank
    )
    if len(theirs) < 2:
        return None
    everyone = members or (frozenset(range(world)) if world and world <= 1 << 20 else frozenset())
    absent = tuple(sorted(everyone - {dump.rank for dump in theirs}))
    lasts = {dump.rank: dump.last(name) for dump in theirs}
    least, most = min(lasts.values()), max(lasts.values())
    waits = [number for dump in theirs if (number := dump.unfinished(name)) is not None]
    is_told = any(one.done for dump in theirs for one in dump.entries.get(name, {}).values())
    if is_told and not waits:
        return None  # everything that was begun has ended
    first = min(waits) if is_told else least
    if first <= least and (is_told or least == most):
        found = _differ(name, first, theirs, all_came=is_told or bool(absent))
        return found and found._replace(absent=absent)
    if least == most:
        return None
    at = least + 1
    came = tuple(rank for rank, last in lasts.items() if last >= at)
    begun = [one for dump in theirs if (one := dump.entries.get(name, {}).get(at)) is not None]
    if not begun or (is_told and all(one.done for one in begun)):
        return None
    missing = tuple(rank for rank, last in lasts.items() if last == least)
    last = next(dump.entries.get(name, {}).get(least) for dump in theirs if dump.rank == missing[0])
    return Stuck(begun[0], name, missing, came, last, {}, absent)


def _differ(name: str, at: int, theirs: Sequence[Dump], *, all_came: bool) -> Optional[Stuck]:
    """Return a collective that all have begun: whether it was the same one, and else only that it did not end."""
    begun = {dump.rank: dump.entries[name][at] for dump in theirs if at in dump.entries.get(name, {})}
    if len(begun) < 2:
        return None
    first = next(iter(begun.values()))
    by_what: dict[str, list[int]] = {}
    for rank, one in begun.items():
        by_what.setdefault(one.words(), []).append(rank)
    if len({one.operation for one in begun.values()}) == 1:
        by_what = {}
        for rank, one in begun.items() if first.operation in _SAME_SIZES else ():
            by_what.setdefault(f"{one.words()} of {one.sizes}", []).append(rank)
        if len({one.sizes for one in begun.values()}) == 1:
            by_what = {}
    if len(by_what) > 1:
        return Stuck(
            first, name, (), tuple(begun), None, {what: tuple(ranks) for what, ranks in by_what.items()}
        )
    return Stuck(first, name, (), tuple(begun), None, {}) if all_came else None
