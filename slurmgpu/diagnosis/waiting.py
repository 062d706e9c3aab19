"""The rank that did not come to a collective in which others waited."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Optional

from .ends import End
from .facts import Facts
from .flight import Stuck, read_dumps, stuck
from .reading import Reading

__all__ = ["missing_rank", "rank_apart", "recorded", "recorder_files", "world_size"]

_ENQUEUED = re.compile(r"[Rr]ank (?P<rank>\d+)\].*last enqueued (?:NCCL )?work: (?P<last>-?\d+)")


_RECORDED = re.compile(r"[Ff]light [Rr]ecorder debug info to (?:file:? )?(?P<file>/\S+)")


_WRITTEN_LATER = 60  # seconds after the log's last line in which a dump may still be written


def recorded(seen: Reading, facts: Facts) -> Optional[Stuck]:
    """Return which collective did not end, and who did not come, by torch's flight recorder; None where it does not tell."""
    return stuck(read_dumps(facts.dumps or recorder_files(seen), facts.owner), facts.processes)


def recorder_files(seen: Reading) -> list[str]:
    """Return the files into which, by the logs, torch's flight recorder wrote what each rank had begun.

    Without those that were written after the log: another job's, where all write to the same name.
    """
    files: list[str] = []
    for piece in seen.pieces:
        for at in piece.where(b"light Recorder debug info to", 2000):
            match = _RECORDED.search(piece[at].text)
            if match and _is_as_old(match["file"], piece.path):
                files.append(match["file"])
    return list(dict.fromkeys(files))


def _is_as_old(file: str, log: str) -> bool:
    try:
        return os.stat(file).st_mtime <= os.stat(log).st_mtime + _WRITTEN_LATER  # noqa: PTH116
    except OSError:
        return True  # it lies on a node, and its name is told


def missing_rank(seen: Reading, told: Sequence[End], facts: Facts) -> Optional[int]:
    """Return the one rank that the others waited for; None where it cannot be told, or where there are several."""
    named = _named(seen)
    if named is not None:
        return named
    behind = _behind(seen)
    behind = rank_apart(seen) if behind is None else behind
    if behind is not None:
        return behind
    complained = {one.rank for one in (*seen.waiting, *seen.lost) if one.rank is not None}
    everyone = _everyone(seen, told, facts)
    missing = everyone - complained
    return missing.pop() if len(missing) == 1 and len(complained) > 0 else None


def _named(seen: Reading) -> Optional[int]:
    """Return the rank that a message names: a monitored barrier's."""
    for one in seen.waiting:
        text = one.values.get("missing") or one.values.get("waited")
        numbers = re.findall(r"\d+", text or "")
        if len(numbers) == 1:
            return int(numbers[0])
    return None


def _behind(seen: Reading) -> Optional[int]:
    """Return the rank that has begun fewer collectives than all others, as NCCL's watchdogs count them."""
    last: dict[int, int] = {}
    for piece in seen.pieces:
        for at in piece.where(b"last enqueued", 2000):
            line = piece[at]
            match = _ENQUEUED.search(line.stream + line.text)
            if match:
                rank = line.rank if line.rank is not None else int(match["rank"])
                last[rank] = int(match["last"])
    if len(last) < 2:
        return None
    least = min(last.values())
    slow = [rank for rank, number in last.items() if number == least]
    return slow[0] if len(slow) == 1 and len(last) > 2 else None


_COLLECTIVE = re.compile(
    r"[Rr]ank (?P<rank>\d+)\].* timeout: WorkNCCL\((?P<what>SeqNum=\d+, OpType=\w+, NumelIn=\d+)"
)


def rank_apart(seen: Reading) -> Optional[int]:
    """Return the one rank that began another collective than all others."""
    begun: dict[str, set[int]] = {}
    for piece in seen.pieces:
        for at in piece.where(b"OpType=", 2000):
            if match := _COLLECTIVE.search(piece[at].stream + piece[at].text):
                begun.setdefault(match["what"], set()).add(int(match["rank"]))
    alone = [ranks for ranks in begun.values() if len(ranks) == 1]
    return alone[0].pop() if len(begun) == 2 and len(alone) == 1 else None


def _everyone(seen: Reading, told: Sequence[End], facts: Facts) -> set[int]:
    """Return all ranks of the job, as far as facts and logs know them."""
    known = {
        end.rank
        for end in told
        if end.rank is not None and (end.by == "torchrun" or not _under_torchrun(told))
    }
    known |= {one.rank for one in (*seen.waiting, *seen.lost, *seen.causes) if one.rank is not None}
    count = world_size(told, facts)
    if count and count > max(known, default=0):
        return set(range(count))
    return set(range(max(known) + 1)) if known else set()


def world_size(told: Sequence[End], facts: Facts) -> Optional[int]:
    """Return how many ranks there are, as far as the job knows: tasks that run torchrun are none."""
    return facts.processes or (None if _under_torchrun(told) else facts.tasks)


def _under_torchrun(told: Sequence[End]) -> bool:
    return any(end.by == "torchrun" for end in told)
