"""Which failure came first: causes before consequences, a rank's own words before what others say of it.

Where several things went wrong at once, the order is: what Slurm did to the whole job, unless a process had failed before;
what the node did to a process; exceptions and messages of programs, by the first rank that has a cause of its own;
ends without a word; ranks that waited. What is left after that is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import NamedTuple, Optional

from .ends import End, ends, moment_in
from .facts import UNKNOWN, Cause, Facts, code_in_words, signal_name
from .reading import Found, Reading, last_lines, read_logs
from .row import filled
from .table import GENERIC, row_of
from .text import Piece
from .waiting import flight_recorder, missing_rank

__all__ = ["diagnose", "first_cause"]

_MOST_EVIDENCE = 14


def diagnose(paths: Iterable[str], facts: Facts = Facts(), seconds: float = 0.7) -> Optional[Cause]:  # noqa: B008
    """The first cause by some log files; None where nothing failed.

    ``seconds`` bounds the search in the middle of large logs.
    """
    return first_cause(read_logs(paths, facts, seconds), facts)


def first_cause(pieces: Sequence[Piece], facts: Facts) -> Optional[Cause]:
    """The first cause by what was read of the logs; None where nothing failed."""
    if facts.went_well:
        return None
    seen = Reading(pieces, facts)
    told = ends(pieces)
    if (
        not facts.exit_code
        and not facts.signal
        and facts.state in ("", "COMPLETED")
        and not _failed(seen, told)
    ):
        return None
    chosen = _choose(seen, told, facts)
    cause = _told(chosen, seen, facts) if chosen else _unknown(seen, told, facts)
    return cause._replace(
        evidence=tuple(line[:300] for line in cause.evidence[: 30 if not cause.known else _MOST_EVIDENCE])
    )


def _failed(seen: Reading, told: Sequence[End]) -> bool:
    """Whether logs alone show that something failed: of a job that went well nothing is said."""
    return (
        bool(told)
        or bool(seen.job)
        or bool(seen.host)
        or any(not one.trace or one.final for one in seen.causes + seen.waiting)
    )


class _Choice(NamedTuple):
    found: Optional[Found]
    end: Optional[End]
    rank: Optional[int]
    certain: bool
    kind: str = ""
    what: str = ""
    fix: str = ""
    also: tuple[str, ...] = ()


def _choose(seen: Reading, told: Sequence[End], facts: Facts) -> Optional[_Choice]:
    first = _first_end(told)
    event = _event(seen, facts)
    if event is not None and not _failed_before(event, first, seen):
        return event
    memory = next((one for one in seen.host if one.row.id == "host-memory"), None)
    killed = _killed(told)
    cause = _cause(seen, first, told, facts)
    if memory and (cause is None or _by_memory(cause)):
        return _of_memory(memory, killed or first, cause)
    if killed is not None and (cause is None or _before(killed, cause, first)):
        return _of_end(killed, seen, memory)
    if cause is not None:
        return cause
    for one in seen.host:
        return _Choice(one, first, one.rank if one.rank is not None else _rank(first, told), True)
    if seen.waiting:
        return _waited(seen, first, told, facts)
    silent = _silent(told, seen)
    if silent is not None:
        return _of_end(silent, seen, None)
    return _by_facts(first, seen, facts)


def _first_end(told: Sequence[End]) -> Optional[End]:
    """The process that launchers saw failing first. A task of srun that runs torchrun is no rank: torchrun knows better."""
    by_torchrun = [end for end in told if end.by == "torchrun" and not end.told_to]
    own = [end for end in by_torchrun if end.root] or by_torchrun
    if own:
        latest = datetime.max.replace(tzinfo=timezone.utc)
        # An abort is what a watchdog does to a process that waited for the first one.
        return min(own, key=lambda end: (end.moment or latest, end.signal == 6, end.at))
    others = [end for end in told if end.by != "torchrun"]
    return next((end for end in others if not end.told_to), None)


def _silent(told: Sequence[End], seen: Reading) -> Optional[End]:
    """The one process that ended badly without a word, where all others that did so say that they had lost another."""
    first = _first_end(told)
    if first is None or not any(one.trace and one.row.id != "launcher" for one in seen.lost):
        return first
    spoke = {one.rank for one in seen.lost if one.trace and one.row.id != "launcher"}
    if first.by == "srun" and any(end.by == "torchrun" for end in told):
        return None
    silent = [
        end
        for end in told
        if end.by == first.by and not end.told_to and end.together == 1 and end.rank not in spoke
    ]
    return silent[0] if len(silent) == 1 and None not in spoke else None


def _killed(told: Sequence[End]) -> Optional[End]:
    """The first process that was ended before it could say a word."""
    first = _first_end(told)
    if first is not None and first.hard:
        return first
    hard = [
        end
        for end in told
        if end.hard and (end.by != "torchrun" or end.root or not any(e.root for e in told))
    ]
    return hard[0] if hard and (first is None or first.by != "torchrun" or first.signal == 6) else None


def _event(seen: Reading, facts: Facts) -> Optional[_Choice]:
    if seen.job:
        one = seen.job[0]
        if one.row.id != "cancelled" or facts.state in ("", "CANCELLED") or facts.state not in _STATES:
            values = {**one.values, "by": facts.cancelled_by}
            return _Choice(one._replace(values=values), None, None, True)
    kind = _STATES.get(facts.state)
    if kind is None:
        return None
    what, fix = _WORDS.get(kind, ("", row_of(kind).fix))
    if facts.state == "CANCELLED" and facts.cancelled_by:
        what = f"the job was cancelled by {facts.cancelled_by}"
    return _Choice(None, None, None, True, kind, what, fix)


_STATES = {
    "TIMEOUT": "time-limit",
    "CANCELLED": "cancelled",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node-failure",
    "DEADLINE": "deadline",
    "BOOT_FAIL": "boot-failure",
}
_WORDS = {
    "time-limit": ("the job ran into its time limit", row_of("time-limit").fix),
    "cancelled": ("the job was cancelled", row_of("cancelled").fix),
    "preempted": ("Slurm took the nodes for a job that comes first", row_of("preempted").fix),
    "node-failure": ("a node of the job failed; nothing in the program did", row_of("node-failure").fix),
    "deadline": ("the job could not end before its deadline", "ask for less time, or a later deadline"),
    "boot-failure": ("the nodes did not boot", "start it again; tell the site, should it come back"),
}


def _failed_before(event: _Choice, first: Optional[End], seen: Reading) -> bool:
    """Whether a process had ended badly, by a launcher's word, before Slurm acted on the job."""
    if first is None or first.told_to or (event.found is None and seen.job):
        return False
    if event.found is not None:
        return first.at < event.found.at
    return any(one.trace and one.final for one in seen.causes)


def _cause(seen: Reading, first: Optional[End], told: Sequence[End], facts: Facts) -> Optional[_Choice]:
    """An error that a process has told itself."""
    ranked = [one for one in seen.causes if one.rank is not None]
    final = [one for one in seen.causes if one.trace and one.final]
    others = final or [one for one in seen.causes if not one.trace]
    if ranked:
        roots = [one for one in ranked if first is not None and first.by != "srun" and one.rank == first.rank]
        tasks = [one for one in ranked if first is not None and first.by == "srun" and one.rank == first.rank]
        earliest = min(ranked, key=lambda one: one.at)
        chosen = (roots or (tasks if not any(end.by == "torchrun" for end in told) else []) or [earliest])[0]
        if (
            others
            and others[0].rank is None
            and others[0].specific
            and not chosen.specific
            and others[0].at < chosen.at
        ):
            chosen = others[0]
    elif others:
        chosen = min(others, key=lambda one: (not one.trace, one.at))
        if chosen.row.id == "command-missing" and 127 not in (
            facts.exit_code or 127,
            *(end.code for end in told),
        ):
            return None  # it was missing, and the script went on
    else:
        return None
    rank = chosen.rank if chosen.rank is not None else _rank(first, told)
    same = {one.rank for one in ranked if one.row.id == chosen.row.id and one.rank not in (None, rank)}
    also = (f"the same on {len(same)} other {'rank' if len(same) == 1 else 'ranks'}",) if same else ()
    # Python ends with 1 after an exception; with another code something else may have ended it.
    certain = chosen.rank is not None or bool(told) or not chosen.trace or facts.exit_code in (None, 0, 1)
    return _Choice(chosen, first, rank, certain, also=also)


def _rank(first: Optional[End], told: Sequence[End]) -> Optional[int]:
    """The rank of the process that ended first; tasks that run torchrun are no ranks."""
    if first is None or (first.by == "srun" and any(end.by == "torchrun" for end in told)):
        return None
    return first.rank


def _by_memory(cause: _Choice) -> bool:
    """Whether a cause is one that the OOM killer explains."""
    found = cause.found
    return (
        found is None
        or found.row.id in ("loader-killed", "loader-exited", "aborted", "segfault")
        or not found.specific
    )


def _before(killed: End, cause: _Choice, first: Optional[End]) -> bool:
    """Whether a process that was killed came before the one with an exception."""
    found = cause.found
    if found is None or found.rank is None or found.rank == killed.rank:
        return (
            found is not None and not found.trace and found.row.role == "cause" and found.row.where == "last"
        )
    if killed.by == "torchrun":
        return killed.root and first is killed and not found.specific
    return first is killed and not found.specific


def _of_memory(memory: Found, end: Optional[End], cause: Optional[_Choice]) -> _Choice:
    """The OOM killer, and whom it met: as a launcher says, else as the process whose worker is gone."""
    ranks = (memory.rank, end.rank if end else None, cause.rank if cause else None)
    return _Choice(memory, end, next((rank for rank in ranks if rank is not None), None), True)


def _of_end(end: End, seen: Reading, memory: Optional[Found]) -> _Choice:
    """A process that ended without a word of its own."""
    if end.memory or (memory is not None and end.signal == 9):
        return _Choice(
            memory,
            end,
            end.rank,
            True,
            "host-memory",
            "the memory that the job asked for was full",
            row_of("host-memory").fix,
        )
    if end.signal == 9:
        what = "the process was killed (SIGKILL), and nothing in the logs says by whom: most often it is the system's OOM killer"
        fix = "compare its memory with what was asked for (slurmgpu status): memory: asks for more; dmesg on the node tells"
        return _Choice(None, end, end.rank, False, "killed", what, fix)
    if end.signal:
        kind = {11: "segfault", 7: "bus-error", 4: "illegal-instruction"}.get(end.signal)
        found = next((one for one in seen.host if one.row.id == kind), None)
        if kind is not None:
            row = row_of(kind)
            return _Choice(found, end, end.rank, True, kind, filled(row.what, {}), row.fix)
        what = f"the process was ended by {signal_name(end.signal)}"
        return _Choice(None, end, end.rank, False, "signal", what, "look at the last lines of that process")
    what = f"the process ended itself with exit code {end.code}, and nothing in the logs says why"
    return _Choice(
        None,
        end,
        end.rank,
        False,
        "exit-code",
        what,
        "look for where the program exits with this code: sys.exit, os._exit",
    )


_COLLECTIVE = ("nccl-timeout", "gloo-timeout", "store-timeout", "rendezvous-timeout")


def _waited(seen: Reading, first: Optional[End], told: Sequence[End], facts: Facts) -> _Choice:
    """Ranks that waited for one that did not come."""
    one = seen.waiting[0]
    missing = missing_rank(seen, told, facts)
    waited = sorted({each.rank for each in seen.waiting if each.rank is not None})
    also = []
    if one.row.id in _COLLECTIVE:
        also.append(
            "which rank did not come is not told" if missing is None else f"rank {missing} did not come"
        )
    recorded = flight_recorder(seen)
    if recorded:
        also.append(f"the flight recorder wrote {recorded}")
    if missing is not None and waited:
        also.append(f"{len(waited)} other {'rank' if len(waited) == 1 else 'ranks'} waited")
    end = next((each for each in told if each.rank == missing and missing is not None), None)
    return _Choice(
        one, end or (first if missing is None else None), missing, missing is not None, also=tuple(also)
    )


def _by_facts(first: Optional[End], seen: Reading, facts: Facts) -> Optional[_Choice]:
    """What the exit code alone says."""
    code = facts.exit_code
    if facts.state == "OUT_OF_MEMORY":
        return _Choice(
            None,
            first,
            None,
            True,
            "host-memory",
            "the memory that the job asked for was full",
            row_of("host-memory").fix,
        )
    if seen.lost or first is not None:
        return None
    if code == 127:
        row = row_of("command-missing")
        return _Choice(None, None, None, False, row.id, "a command was not found", row.fix)
    if code == 126:
        row = row_of("not-executable")
        return _Choice(None, None, None, False, row.id, "a program could not be executed", row.fix)
    return None


def _told(choice: _Choice, seen: Reading, facts: Facts) -> Cause:
    """The cause in words, with its evidence."""
    found, end = choice.found, choice.end
    what = choice.what or (filled(found.row.what, found.values) if found else "")
    what = "; ".join((what, *choice.also))
    if found is not None and found.row.id == GENERIC and found.frame:
        what = f"{what} ({_short(found.frame)})"
    evidence = [*(found.evidence if found else ()), *(_said_of(end, seen) if end else ())]
    shown = [line.strip() for line in evidence if line.strip()]
    host = (found.host if found else "") or (
        end.host if end and (end.rank == choice.rank or choice.rank is None) else ""
    )
    host = host or seen.host_of(choice.rank)
    code, number = facts.exit_code, facts.signal
    if end is not None and end.rank == choice.rank:
        code, number = (end.code if end.code is not None else code), (end.signal or number)
    moment = (end.moment if end else None) or (
        moment_in(seen.line(found.at), datetime.now(timezone.utc)) if found else None
    )
    return Cause(
        kind=choice.kind or (found.row.id if found else UNKNOWN),
        what=what,
        fix=choice.fix or (filled(found.row.fix, found.values) if found else ""),
        rank=choice.rank,
        host=_node(host) or None,
        moment=moment.isoformat() if moment else None,
        evidence=tuple(dict.fromkeys(shown)) if shown else tuple(last_lines(seen.pieces, 5)),
        exit_code=code,
        signal=number,
        certain=choice.certain,
    )


def _said_of(end: End, seen: Reading) -> tuple[str, ...]:
    """The launcher's lines about the end of a process."""
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
    """A host without its domain, as Slurm names nodes; an address stays as it is."""
    if host.startswith(("localhost", "127.")):
        return ""  # what torchrun says where the machine does not know its own name
    return host if host.replace(".", "").isdigit() else host.partition(".")[0]


def _unknown(seen: Reading, told: Sequence[End], facts: Facts) -> Cause:
    first = _first_end(told)
    words = code_in_words(facts.exit_code, facts.signal)
    what = f"not known{f' ({words})' if words else ''}: nothing in the logs tells what failed first"
    if seen.lost:
        what += ", only that processes lost each other"
    rank = _rank(first, told)
    host = first.host if first else ""
    return Cause(
        UNKNOWN,
        what,
        "read the last lines of the log; --debug writes more of them next time",
        rank=rank,
        host=_node(host) or None,
        evidence=tuple(last_lines(seen.pieces, 30)),
        exit_code=facts.exit_code,
        signal=facts.signal,
    )
