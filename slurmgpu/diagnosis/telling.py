"""A verdict in words: what, where and when, the fix, and the lines that show it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import NamedTuple, Optional

from .ends import End, moment_in
from .facts import UNKNOWN, Cause, Facts, code_in_words
from .reading import Found, Reading, last_lines
from .row import filled
from .table import GENERIC, NODE_MATTERS

__all__ = ["Choice", "told", "unknown"]

_MOST_EVIDENCE, _MOST_LAST = 14, 30
_LONGEST = 300  # characters of a line
_READ = "read the last lines of the log; --debug writes more of them next time"
_SILENT = "the log is empty: run the command by hand, or let it print what it does (set -x in a shell script)"


class Choice(NamedTuple):
    """The choice of the first cause: a row that fits, the end of a process, or both; or words of its own."""

    found: Optional[Found]
    end: Optional[End]
    rank: Optional[int]
    certain: bool
    kind: str = ""
    what: str = ""
    fix: str = ""
    also: tuple[str, ...] = ()


def told(choice: Choice, seen: Reading, facts: Facts) -> Cause:
    """Return the cause in words, with its evidence."""
    found, end = choice.found, choice.end
    what = choice.what or (filled(found.row.what, found.values) if found else "")
    what = "; ".join((what, *choice.also))
    if found is not None and found.row.id == GENERIC and found.frame:
        what = f"{what} ({_short(found.frame)})"
    evidence = [*(found.evidence if found else ()), *(_said_of(end, seen) if end else ())]
    if found is None and choice.kind == "exit-code":
        evidence += last_lines(seen.pieces, 5, outside=True)  # sys.exit("words") prints no more
    shown = [line.strip() for line in evidence if line.strip()]
    host = (found.host if found else "") or (
        end.host if end and (end.rank == choice.rank or choice.rank is None) else ""
    )
    host = host or seen.host_of(choice.rank)
    kind = choice.kind or (found.row.id if found else UNKNOWN)
    if not _node(host) and (choice.rank is not None or kind in NODE_MATTERS):
        host = facts.host
    if found is not None and found.row.role == "job" and found.row.id not in NODE_MATTERS:
        host = ""  # slurmstepd names the node on which it speaks
    code, number = facts.exit_code, facts.signal
    if end is not None and end.rank == choice.rank:
        code, number = (end.code if end.code is not None else code), (end.signal or number)
    moment = (end.moment if end else None) or (
        moment_in(seen.line(found.at), datetime.now(timezone.utc)) if found else None
    )
    return Cause(
        kind=kind,
        what=what,
        fix=choice.fix or (filled(found.row.fix, found.values) if found else ""),
        rank=choice.rank,
        host=_node(host) or None,
        moment=moment.isoformat() if moment else None,
        evidence=_bounded(list(dict.fromkeys(shown))[:_MOST_EVIDENCE] or last_lines(seen.pieces, 5)),
        exit_code=code,
        signal=number,
        certain=choice.certain,
    )


def _bounded(lines: Sequence[str]) -> tuple[str, ...]:
    return tuple(line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..." for line in lines)


def _said_of(end: End, seen: Reading) -> tuple[str, ...]:
    """Return the launcher's lines about the end of a process."""
    number, at = end.at
    return tuple(
        seen.line((number, each)) for each in range(at - 1 if end.by == "torchrun" and at else at, at + 1)
    )


def _short(frame: str) -> str:
    """``train.py, line 12`` of a frame."""
    place = frame.partition(", in ")[0].replace('File "', "").replace('"', "")
    path, _, line = place.partition(", line ")
    return f"{path.rpartition('/')[2]}, line {line.partition(':')[0]}"


def _node(host: str) -> str:
    """Return a host without its domain, as Slurm names nodes; an address stays as it is."""
    if host.startswith(("localhost", "127.")):
        return ""  # what torchrun says where the machine does not know its own name
    return host if host.replace(".", "").isdigit() else host.partition(".")[0]


def unknown(seen: Reading, first: Optional[End], rank: Optional[int], facts: Facts) -> Cause:
    """Return a cause that is not known, with the process that launchers saw ending first and the last lines that matter."""
    words = code_in_words(facts.exit_code, facts.signal)
    what = f"not known{f' ({words})' if words else ''}: the logs show no failure that slurmgpu knows"
    if seen.lost:
        what += ", only that processes lost each other"
    host = first.host if first else ""
    last = last_lines(seen.pieces, _MOST_LAST)
    ending = last_lines(seen.pieces, 1, outside=True)
    if facts.exit_code and ending:
        what += f"; the last line is: {ending[0].strip()[:200]}"
    return Cause(
        UNKNOWN,
        what,
        _READ if last else _SILENT,
        rank=rank,
        host=_node(host) or None,
        evidence=_bounded(last),
        exit_code=facts.exit_code,
        signal=facts.signal,
    )
