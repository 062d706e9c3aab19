"""What is free for a job, when there is more, and who is ahead, in words."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from slurmgpu.monitoring.why.answer import Fact
from slurmgpu.monitoring.why.case import Case
from slurmgpu.monitoring.why.line import Ahead
from slurmgpu.monitoring.why.room import Room
from slurmgpu.monitoring.why.words import amount, clock, gpus, listed
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.slurm import Asked

__all__ = ["ahead_text", "room_facts"]

_ROOM_NOW = {
    "room": "there is room for it now, as far as nodes go: it waits for its turn",
    "soon": "there is room for it now",
}


def ahead_text(found: Ahead, asked: Asked) -> str:
    """How many jobs are ahead, and of which kind."""
    where = listed(asked.partitions) or "the queue"
    if not found.jobs:
        text = f"no job is ahead of it in {where}"
    else:
        text = f"{amount(found.jobs, 'job')} {'is' if found.jobs == 1 else 'are'} ahead of it in {where}"
        parts = [f"asking for {gpus(found.gpus)}"] if found.gpus else []
        if found.mine:
            parts += [
                f"{found.mine:,} of these jobs {'is' if found.mine == 1 else 'are'} yours"
                if found.jobs > 1
                else "yours"
            ]
        if found.tiers:
            which = (
                "in a partition that comes" if found.jobs == 1 else f"{found.tiers:,} in partitions that come"
            )
            parts += [f"{which} first on these nodes"]
        text += f" ({'; '.join(parts)})" if parts else ""
    if found.out:
        text += f"; {found.out:,} more before it cannot start now, whatever is free"
    return text


def room_facts(asked: Asked, room: Room, case: Case, about: str) -> Iterator[Fact]:
    """What is free for the job, and when there is more."""
    if (
        (len(room.able) < asked.nodes or room.total < (asked.gpus or 0))
        and case.partitions
        and not room.unseen
    ):
        case.never = True
        lacking = [
            f"{amount(count, 'node')} {'is' if count == 1 else 'are'} {printable(why)}"
            for why, count in room.never.items()
        ]
        count = f"only {amount(len(room.able), 'node')}" if room.able else "no node"
        text = f"{count} of its partition could run a share of it, and it asks for {asked.nodes}"
        if len(room.able) >= asked.nodes:
            text = f"the nodes of its partition have {gpus(room.total, asked.gpu_types)} in all"
        yield Fact("room", "; ".join([text, *lacking[:4]]),
                   {"able": len(room.able), "asked": asked.nodes, "lacking": room.never})  # fmt: skip
        return
    if asked.gpus:
        yield Fact("room", _gpus_free(asked, room), {
            "free": room.free, "block": room.block, "total": room.total, "away_gpus": room.away_gpus, "away": room.away,
            "blocked": room.blocked, "blocked_by": room.blocked_by, "fitting_nodes": room.fitting,
        })  # fmt: skip
    else:
        text = f"a share of it fits on {amount(room.fitting, 'node')} of {len(room.able)} now"
        yield Fact(
            "room",
            text + _gone(room),
            {"fitting_nodes": room.fitting, "able": len(room.able), "away": room.away},
        )
    at_work = sum(one.away in ("", "planned") for one in room.able)
    if at_work < asked.nodes and not room.unseen and not asked.reservation:
        text = f"{at_work or 'none'} of these nodes {'takes' if at_work < 2 else 'take'} jobs now, and it asks for {asked.nodes}"
        yield Fact(
            "away",
            f"{text}: it waits until more of them are back",
            {"at_work": at_work, "asked": asked.nodes},
        )
        return
    if case.queue is None or case.present.hides("jobs"):
        why = "the queue was not told" if case.queue is None else "this site shows users only their own jobs"
        yield Fact("next", f"when running jobs end is not known: {why}", {"at": None})
        return
    yield from _next(asked, room, case.now, about)


def _gpus_free(asked: Asked, room: Room) -> str:
    free = gpus(room.free, asked.gpu_types)
    text = f"{free} of {room.total} free now"
    if room.free and asked.per_node[0] > 1:
        text += f", {room.block} at most on one node"
    if room.blocked:
        whole = room.blocked_by == "other jobs"
        why = "that other jobs are on" if whole else f"without {room.blocked_by} enough for it"
        text += f"; {room.blocked} of them on nodes {why}"
    return text + _gone(room)


def _gone(room: Room) -> str:
    words = {"planned": "kept for the next job", "drained": "drained", "down": "down", "reserved": "reserved"}
    parts = [f"{count} {words[why]}" for why, count in room.away.items()]
    return f" (of its {amount(len(room.able), 'node')}: {', '.join(parts)})" if parts else ""


def _next(asked: Asked, room: Room, now: datetime, about: str) -> Iterator[Fact]:
    for one in room.releases[:2]:
        what = f"{one.gpus} more" if asked.gpus else f"{amount(one.nodes, 'node')} more"
        who = f"job {one.job_id} ({printable(one.user)})" if one.user else f"job {one.job_id}"
        text = f"{what} at {clock(one.at, now)}, when {who} reaches its time limit, or earlier"
        if one.at <= now:
            text = f"{what} any moment: {who} is past its time limit"
        yield Fact(
            "next",
            text,
            {"at": one.at, "job_id": one.job_id, "user": one.user, "gpus": one.gpus, "nodes": one.nodes},
        )
    if room.enough is not None:
        text = f"room for all of it at {clock(room.enough, now)} at the latest, where the jobs ahead leave it"
        yield Fact("enough", text, {"at": room.enough})
    elif room.fitting >= asked.nodes and not room.releases:
        yield Fact("enough", _ROOM_NOW.get(about, "there is room for it now, apart from that"), {"at": now})
