"""The choice of the first failure: causes before consequences, a rank's own words before what others say of it.

Where several things went wrong at once, the order is: what Slurm did to the whole job, unless a process had failed before;
what the node did to a process; exceptions and messages of programs, by the first rank that has a cause of its own;
ends without a word; ranks that waited. What is left after that is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Optional

from .doubts import complaints, weigh
from .endings import by_facts, of_end, of_memory, of_row
from .ends import End, ends
from .facts import BY_SLURM, Cause, Facts
from .reading import Found, Reading, read_logs
from .table import GENERIC, NEEDS_SETUP, OF_GPU, XIDS_OF_HARDWARE
from .telling import Choice, told, unknown
from .text import Piece
from .waiting import missing_rank, rank_apart, recorded, recorder_files, world_size

__all__ = ["diagnose", "first_cause"]


def diagnose(paths: Iterable[str], facts: Facts = Facts(), seconds: float = 0.7) -> Optional[Cause]:  # noqa: B008
    """Return the first cause by some log files; None where nothing failed.

    ``seconds`` bounds the search in the middle of large logs.
    """
    return first_cause(read_logs(paths, facts, seconds), facts)


def first_cause(pieces: Sequence[Piece], facts: Facts) -> Optional[Cause]:
    """Return the first cause by what was read of the logs; None where nothing failed."""
    if facts.went_well:
        return None
    seen = Reading(pieces, facts)
    ended = ends(pieces)
    # Of a step that failed, and another one after it, the later counts.
    ended = [end for end in ended if not seen.went_on(end.at)] or ended
    tolerated = seen.after_last_tolerated(ended)
    ended = [end for end in ended if end.at > tolerated]
    seen.forget(tolerated)
    if (
        not facts.exit_code
        and not facts.signal
        and facts.state in ("", "COMPLETED")
        and not _failed(seen, ended)
    ):
        return None
    chosen = _choose(seen, ended, facts)
    if chosen is None:
        first = _first_end(ended)
        cause, said = unknown(seen, first, _rank(first, ended), facts), complaints(seen)[:1]
        more = f"; the log also says: {said[0][:200]}" if said and said[0][:100] not in cause.what else ""
        return cause._replace(what=cause.what + more)
    return told(weigh(chosen, seen), seen, facts)


def _failed(seen: Reading, ended: Sequence[End]) -> bool:
    """Return True if logs alone show that something failed: of a job that went well nothing is said."""
    return bool(ended or seen.job or seen.host) or any(
        not one.trace or one.final for one in seen.causes + seen.waiting
    )


def _choose(seen: Reading, ended: Sequence[End], facts: Facts) -> Optional[Choice]:
    first = _first_end(ended)
    if seen.stops and _is_orderly(ended, facts):
        return Choice(seen.stops[-1], first, None, True)
    event = _event(seen, facts)
    memory = next((one for one in seen.host if one.row.id == "host-memory"), None)
    end = event.found.at if event is not None and event.found is not None else (1 << 30, 0)
    stuck = [one for one in seen.threads if not seen.went_on(one.at) and one.at < end]
    stuck += [one for one in seen.causes if one.row.id == "step-waits"]
    if event is not None and stuck and "time-limit" in (event.kind, event.found and event.found.row.id):
        return Choice(stuck[0], None, stuck[0].rank, False, also=("nothing went on until the time limit",))
    if event is not None and not _failed_before(event, first, seen) and not _is_by_memory(event, memory):
        return event
    killed = _killed(ended)
    cause = _cause(seen, first, ended, facts)
    if memory and (cause is None or _by_memory(cause) or facts.state == "OUT_OF_MEMORY"):
        return of_memory(memory, killed or first, cause)
    if killed is not None and (cause is None or _before(killed, cause, first)):
        return of_end(killed, seen, memory)
    if cause is not None:
        return cause
    for one in seen.host:
        if one.row.id == "aborted" and not one.values.get("name") and (seen.waiting or seen.lost):
            continue  # so a watchdog ends a process that has lost or waited for another
        return Choice(one, first, one.rank if one.rank is not None else _rank(first, ended), True)
    if seen.waiting:
        return _waited(seen, first, ended, facts)
    silent = _silent(ended, seen)
    left = _left(seen, ended, facts) if silent is None or silent.told_to else None
    if left is not None:
        return left
    if seen.symptoms and (silent is None or not silent.signal):
        one = seen.symptoms[0]
        return Choice(one, first, one.rank if one.rank is not None else _rank(first, ended), False)
    if silent is not None:
        return of_end(silent, seen, None)
    return by_facts(first, seen, facts)


_TRY_AGAIN = 75
"""EX_TEMPFAIL of sysexits.h, with which a training ends that has stopped and saved everything."""


def _is_orderly(ended: Sequence[End], facts: Facts) -> bool:
    """Return whether every process that ended by itself did so with exit code 75; torchrun itself then ends with 1."""
    own = [end for end in ended if not end.told_to]
    own = [end for end in own if end.by == "torchrun"] or own
    codes = {end.code for end in own} if own else {facts.exit_code}
    return codes == {_TRY_AGAIN}


def _left(seen: Reading, ended: Sequence[End], facts: Facts) -> Optional[Choice]:
    """Return the one process that all others lost, and that nobody saw ending badly: it ended early, without an error."""
    count = world_size(ended, facts) or 0
    lost = {one.rank for one in seen.lost if one.rank is not None}
    missing = set(range(count)) - lost if lost and count <= 100_000 else set()
    if len(missing) != 1:
        return None
    (rank,) = missing
    what = f"rank {rank} ended early, without an error, and the others lost it"
    fix = "look for a return, sys.exit or os._exit that one rank takes alone, and for data that ends earlier there"
    return Choice(None, None, rank, False, "ended-early", what, fix)


def _first_end(ended: Sequence[End]) -> Optional[End]:
    """The process that launchers saw failing first. A task of srun that runs torchrun is no rank: torchrun knows better."""
    by_torchrun = [end for end in ended if end.by == "torchrun" and not end.told_to]
    own = [end for end in by_torchrun if end.root] or by_torchrun
    if own:
        latest = datetime.max.replace(tzinfo=timezone.utc)
        # An abort is what a watchdog does to a process that waited for the first one.
        return min(own, key=lambda end: (end.moment or latest, end.signal == 6, end.at))
    others = [end for end in ended if end.by != "torchrun"]
    return next((end for end in others if not end.told_to), None)


def _silent(ended: Sequence[End], seen: Reading) -> Optional[End]:
    """Return the one process that ended badly without a word, where all others that did so say that they had lost another."""
    first = _first_end(ended)
    # A launcher speaks of its processes, and of itself when srun ends it.
    lost = [one for one in seen.lost if one.trace and one.row.id not in ("launcher", "told-to-end")]
    if first is None or not lost:
        return first
    spoke = {one.rank for one in lost}
    if first.by == "srun" and any(end.by == "torchrun" for end in ended):
        return None
    silent = [
        end
        for end in ended
        if end.by == first.by and not end.told_to and end.together == 1 and end.rank not in spoke
    ]
    return silent[0] if len(silent) == 1 and None not in spoke else None


def _killed(ended: Sequence[End]) -> Optional[End]:
    """Return the first process that was ended before it could say a word."""
    first = _first_end(ended)
    if first is not None and first.hard:
        return first
    hard = [
        end
        for end in ended
        if end.hard
        and (end.by != "torchrun" or end.root or not any(e.root for e in ended))
        # Many at once after the first one's own end: srun has ended them.
        and not (first is not None and end.together > 1 and first.code and end.at > first.at)
    ]
    return hard[0] if hard and (first is None or first.by != "torchrun" or first.signal == 6) else None


def _event(seen: Reading, facts: Facts) -> Optional[Choice]:
    if seen.job:
        of_its_state = [each for each in seen.job if each.row.id == _STATES.get(facts.state)]
        one = seen.job[
            0
        ]  # of several lines about one event the first names the node, and one that says so which failed
        if one.row.id == "node-failure":
            one = next((each for each in seen.job if each.row.seen.startswith("Node failure on")), one)
        if of_its_state and one not in of_its_state:
            one = of_its_state[-1]
        quoted = facts.state in _BY_ITSELF if facts.state else seen.went_on(one.at)
        if quoted and one.row.id in BY_SLURM and one.values.get("part", "JOB") == "JOB":
            return None  # what Slurm says of the job itself outweighs a line that quotes another's end
        if one.row.id != "cancelled" or facts.state in ("", "CANCELLED") or facts.state not in _STATES:
            values = {**one.values, "by": facts.cancelled_by}
            return Choice(one._replace(values=values), None, None, True)
    kind = _STATES.get(facts.state)
    if kind in _IN_NO_LOG:
        return Choice(None, None, None, True, kind, *_IN_NO_LOG[kind])
    return of_row(kind, by=facts.cancelled_by) if kind else None


_BY_ITSELF = ("COMPLETED", "FAILED", "OUT_OF_MEMORY")
"""States of a job that Slurm did not end."""

_STATES = {
    "TIMEOUT": "time-limit",
    "CANCELLED": "cancelled",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node-failure",
    "DEADLINE": "deadline",
    "BOOT_FAIL": "boot-failure",
}
_IN_NO_LOG = {
    "deadline": ("the job could not end before its deadline", "ask for less time, or a later deadline"),
    "boot-failure": ("the nodes did not boot", "start it again, and tell the site if it comes back"),
}


def _failed_before(event: Choice, first: Optional[End], seen: Reading) -> bool:
    """Return True if a process had ended badly, by a launcher's word, before Slurm acted on the job."""
    if first is None or first.told_to or (event.found is None and seen.job):
        return False
    if event.found is not None:
        went_on = seen.output_between(first.at, event.found.at, progress=True) > 2
        return first.at < event.found.at and not went_on
    return any(one.trace and one.final for one in seen.causes)


def _is_by_memory(event: Choice, memory: Optional[Found]) -> bool:
    """Return True if Slurm cancelled the job because it saw more memory in use than was asked for."""
    cancelled = event.kind == "cancelled" or (event.found is not None and event.found.row.id == "cancelled")
    return cancelled and memory is not None and (event.found is None or memory.at < event.found.at)


def _cause(seen: Reading, first: Optional[End], ended: Sequence[End], facts: Facts) -> Optional[Choice]:
    """Return an error that a process has told itself."""
    causes = [one for one in seen.causes if one.row.id != "mpi-abort"] or seen.causes  # only how it ended
    xids = [one for one in causes if one.row.id == "xid"]
    causes = [one for one in causes if one.row.id != "xid"] or causes
    broken = next((one for one in xids if int(one.values["number"] or 0) in XIDS_OF_HARDWARE), None)
    struck = next((one for one in causes if one.row.id in OF_GPU), None)
    if broken is not None and struck is not None:  # the driver knows why the program's call failed
        return Choice(broken._replace(host=struck.host or broken.host), first, struck.rank, True)
    ranked = [one for one in causes if one.rank is not None]
    ending = [one for one in causes if one.trace and one.final]
    final = [one for one in ending if not _was_survived(one, ending, first, seen)]
    codes = {facts.exit_code or 127, *(end.code for end in ended)}
    # With another code the script went on after a command that was missing.
    said = [one for one in causes if one.row.id != "command-missing" or 127 in codes]
    if first is not None and first.by == "srun" and any(not one.trace and one.at < first.at for one in said):
        # The step had ended: what a later command of the script says is a consequence, or another matter.
        final = [one for one in final if one.rank is not None or one.at < first.at]
    others = final or [one for one in said if not one.trace]
    if ranked:
        roots = [one for one in ranked if first is not None and first.by != "srun" and one.rank == first.rank]
        tasks = [one for one in ranked if first is not None and first.by == "srun" and one.rank == first.rank]
        earliest = min(ranked, key=lambda one: one.at)
        chosen = (roots or (tasks if not any(end.by == "torchrun" for end in ended) else []) or [earliest])[0]
        # What the process that failed first says itself is known; a traceback of nobody's may be one that it got over.
        for other in (one for one in others[:1] if not (one.trace and chosen in (*roots, *tasks))):
            if other.rank is None and other.specific and not chosen.specific and other.at < chosen.at:
                chosen = other
    elif others:
        chosen = min(others, key=lambda one: (not one.trace, one.at))
    else:
        return None
    if chosen.row.id == GENERIC and (chosen.values.get("name") or "").endswith("queue.Empty"):
        dead = [one for one in seen.threads if one.at < chosen.at and one.rank in (chosen.rank, None)]
        chosen = dead[-1] if dead else chosen  # nobody filled the queue any more
    if chosen.row.id == "nccl-error":  # its own lines above say what was wrong
        above = (one for one in seen.causes if not one.trace and one.at < chosen.at)
        of_nccl = [one for one in above if "NCCL WARN" in one.evidence[0]]
        chosen = of_nccl[-1]._replace(rank=chosen.rank) if of_nccl else chosen
    if chosen.row.id in NEEDS_SETUP:
        before = [one for one in seen.setup if one.at < chosen.at]
        # A module brings no files of the user's: what was read after it was missing has another reason.
        if chosen.row.id == "file-missing":
            before = [
                one for one in before if one.row.id != "module" or seen.output_between(one.at, chosen.at) < 4
            ]
        chosen = before[-1] if before else chosen
    rank = chosen.rank if chosen.rank is not None else _rank(first, ended)
    complained = {one.rank for one in (*seen.lost, *seen.waiting) if one.rank is not None}
    if chosen.rank is None and "NCCL WARN" in chosen.evidence[0] and len(complained) == 1:
        (rank,) = complained  # NCCL names a host and no rank, and the task of srun may be another number
    message = chosen.values.get("message")
    alike = [one for one in ranked if one.row == chosen.row and one.values.get("message") == message]
    same = {one.rank for one in alike if one.rank not in (None, rank)}
    also = (f"the same on {len(same)} other rank{'s' * (len(same) > 1)}",) if same else ()
    # Python ends with 1 after an exception; with another code something else may have ended it.
    certain = chosen.rank is not None or bool(ended) or not chosen.trace or facts.exit_code in (None, 0, 1)
    certain = certain and (chosen.trace or seen.is_near_end(chosen.at))
    own = next((end for end in ended if first and end.by == first.by and end.rank == rank), first)
    return Choice(chosen, own, rank, certain, also=also)


def _was_survived(found: Found, final: Sequence[Found], first: Optional[End], seen: Reading) -> bool:
    """Return whether a program made progress after an exception of no known rank, and ended otherwise."""
    if found.rank is not None:
        return False
    later = [one.at for one in final if one.at > found.at and one.rank is None]
    # Python ends with 1 after an exception.
    if first is not None and first.at > found.at and first.code not in (None, 1):
        later.append(first.at)
    return any(seen.output_between(found.at, at, progress=True) > 1 for at in later)


def _rank(first: Optional[End], ended: Sequence[End]) -> Optional[int]:
    """Return the rank of the process that ended first; tasks that run torchrun are no ranks."""
    if first is None or (first.by == "srun" and any(end.by == "torchrun" for end in ended)):
        return None
    return first.rank


def _by_memory(cause: Choice) -> bool:
    """Return True if a cause is one that the OOM killer explains."""
    found = cause.found
    return (
        found is None
        or found.row.id in ("loader-killed", "loader-exited", "aborted", "segfault")
        or not found.specific
    )


def _before(killed: End, cause: Choice, first: Optional[End]) -> bool:
    """Return True if a process that was killed came before the one with an exception."""
    found = cause.found
    if found is None or found.rank is None or found.rank == killed.rank:
        if found is None or found.trace:
            return False
        return found.at > killed.at or (found.row.role == "cause" and found.row.where == "last")
    if killed.by == "torchrun":
        return killed.root and first is killed and not found.specific
    return first is killed and not found.specific


_COLLECTIVE = ("nccl-timeout", "gloo-timeout", "store-timeout", "rendezvous-timeout")


def _waited(seen: Reading, first: Optional[End], ended: Sequence[End], facts: Facts) -> Choice:
    """Ranks that waited for one that did not come."""
    one = seen.waiting[0]
    told_by = recorded(seen, facts)
    missing = missing_rank(seen, ended, facts) if told_by is None or told_by.absent else told_by.rank
    waited = {each.rank for each in seen.waiting if each.rank is not None}
    also = []
    if told_by is not None:
        also.append(told_by.words())
    elif one.row.id in _COLLECTIVE:
        also.append(
            "which rank did not come is not told"
            if missing is None
            else f"rank {missing} was in another collective than all others"
            if missing == rank_apart(seen)
            else f"rank {missing} did not come"
        )
    written = recorder_files(seen) if told_by is None else []
    if written:
        also.append(f"the flight recorder wrote {written[0]}")
    if missing is not None and (others := len(waited - {missing})):
        also.append(f"{others} other rank{'s' * (others > 1)} waited")
    end = next((each for each in ended if each.rank == missing and missing is not None), None)
    fix = ""
    if told_by is not None and not told_by.missing and not told_by.other and not told_by.absent:
        fix = "slurmgpu doctor --on-gpu tries GPUs and network; --debug (NCCL_DEBUG=INFO) writes NCCL's own report"
    certain = missing is not None or (told_by is not None and not told_by.absent)
    end = end or (first if missing is None else None)
    return Choice(one, end, missing, certain, fix=fix, also=tuple(also))
