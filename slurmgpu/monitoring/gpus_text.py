"""What is said of a cluster's GPUs, by the command and by the screen alike; names that Slurm gave are made harmless."""

from __future__ import annotations

from slurmgpu.monitoring.gpus_now import GpusNow, Mine, Row
from slurmgpu.printable import printable

__all__ = ["could", "kind", "notes", "place", "who"]


def kind(row: Row) -> str:
    """The type of GPU."""
    return printable(row.type) + (" (slice)" if row.slices else "")


def place(row: Row) -> str:
    """The partition, or `all` for the whole cluster."""
    return printable(row.partition) if row.partition else "all"


def could(mine: Mine | None) -> str:
    """How many one job of mine could get; empty where that was not asked."""
    if mine is None:
        return ""
    return ("unknown" if mine.gpus is None else str(mine.gpus)) + ("" if mine.known else "?")


def notes(row: Row) -> list[str]:
    """What a row of figures cannot say: GPUs that nobody can have, and shards."""
    name, found = printable(row.type), []
    if row.stranded:
        what = " and ".join(row.stranded_for)
        found.append(f"{row.stranded} more {name} without a job, but 0 {what} left on those nodes: not free")
    if row.shards:
        found.append(f"shards of {name}: {row.shards_free} of {row.shards} free")
    return found


def who(found: GpusNow) -> str:
    """Whose job the figures of `Mine` are for, and how sure they are."""
    if found.account is None:
        return "one job of yours: by what is free alone; no account of yours is known here"
    whose = f"account {printable(found.account)}" + (f" and QOS {printable(found.qos)}" if found.qos else "")
    if any(not one.known for one in found.mine):
        return f"one job of yours: by what is free; the limits of {whose} are not known (?)"
    return f"one job of yours: with {whose}; jobs that wait may come first"
