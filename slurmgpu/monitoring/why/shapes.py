"""What would start sooner: the job in other shapes, each asked of Slurm itself (`sbatch --test-only`)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from slurmgpu.models.run import JobStatus
from slurmgpu.monitoring.why.answer import Shape
from slurmgpu.slurm import Slurm

if TYPE_CHECKING:
    from slurmgpu.slurm import Asked, PartitionNow, Present

__all__ = ["MOST_ASKED", "shapes_of"]

MOST_ASKED = 6
"""The most shapes that Slurm is asked about: each costs it a call and a job id."""
SCRIPT = "#!/bin/sh\ntrue\n"
_SHORTEST = 15 * 60


def shapes_of(slurm: Slurm, job: JobStatus, present: Present, folder: Path) -> list[Shape]:
    """The job as it is, and in shapes that could start sooner, with Slurm's estimate for a new job of each.

    Raises SlurmUnreachable where it does not answer.
    """
    asked = next(iter(present.asked(job.raw_id)), None) if job.raw_id is not None else None
    if asked is None:
        return []
    found: list[Shape] = []
    with tempfile.TemporaryDirectory(prefix="slurmgpu-") as temporary:
        script = Path(temporary) / "script.sbatch"
        script.write_text(SCRIPT, encoding="utf-8")
        for options in list(_shapes(asked, present))[:MOST_ASKED]:
            words = [*_as_asked(asked, job, {one.partition("=")[0] for one in options}), *options]
            told = slurm.estimate(script, words, cwd=folder)
            found.append(Shape(options, told.start, None if told.accepted else told.text))
    return found


def _as_asked(asked: Asked, job: JobStatus, without: set[str]) -> list[str]:
    """sbatch's options for what the job asks for, but those that a shape gives itself."""
    tasks = asked.tasks or 1
    given = {
        "--partition": ",".join(asked.partitions), "--account": job.account, "--qos": job.qos,
        "--nodes": str(asked.nodes), "--ntasks": str(tasks), "--cpus-per-task": str(max(1, asked.cpus // tasks)),
        "--mem": f"{asked.per_node[2]}M" if asked.memory else None,
        "--time": str(max(1, asked.limit // 60)) if asked.limit else None,
        "--constraint": asked.features, "--reservation": asked.reservation, "--licenses": asked.licenses,
        "--nodelist": ",".join(asked.wanted_nodes), "--exclude": ",".join(asked.excluded_nodes),
        "--gpus-per-node": _gpus(asked, asked.per_node[0]) if asked.gpus_per_node or asked.nodes == 1 else None,
        "--gpus": _gpus(asked, asked.gpus) if asked.gpus and not asked.gpus_per_node and asked.nodes > 1 else None,
    }  # fmt: skip
    return [f"{name}={value}" for name, value in given.items() if value and name not in without]


def _gpus(asked: Asked, count: int | None) -> str | None:
    if not count:
        return None
    return f"{asked.gpu_types[0]}:{count}" if len(asked.gpu_types) == 1 else str(count)


def _shapes(asked: Asked, present: Present) -> Iterator[tuple[str, ...]]:
    """The options that differ, the most likely to help first."""
    yield ()
    if asked.limit and asked.limit // 2 >= _SHORTEST:
        yield (f"--time={_time(asked.limit // 2)}",)
    each = asked.per_node[0]
    if asked.nodes > 1:
        yield (f"--nodes={asked.nodes // 2}", *_half_tasks(asked))
    elif each > 1:
        half = _gpus(asked, each // 2)
        yield (f"--gpus-per-node={half}", f"--cpus-per-task={max(1, asked.cpus // (asked.tasks or 1) // 2)}",
               *([f"--mem={max(1, asked.per_node[2] // 2)}M"] if asked.memory else []))  # fmt: skip
    for one in _elsewhere(asked, present):
        yield (f"--partition={one.name}",)


def _half_tasks(asked: Asked) -> tuple[str, ...]:
    return (f"--ntasks={max(1, (asked.tasks or asked.nodes) * (asked.nodes // 2) // asked.nodes)}",)


def _time(seconds: int) -> str:
    hours, rest = divmod(seconds // 60, 60)
    return f"{hours:02}:{rest:02}:00"


def _elsewhere(asked: Asked, present: Present) -> Iterator[PartitionNow]:
    """Open partitions that have nodes for it, and allow as much time."""
    nodes = {one.name: one for one in present.nodes or ()}
    for one in (present.partitions or {}).values():
        if one.name in asked.partitions or one.state != "UP" or one.rules.by_name:
            continue
        most = one.rules.limits.max_time
        if (
            most is not None
            and most.seconds is not None
            and (asked.limit is None or asked.limit > most.seconds)
        ):
            continue
        here = [nodes[host] for host in one.hosts if host in nodes]
        types = set(asked.gpu_types) if asked.gpu_types else None
        if sum(_has(node.gpus, types, asked.per_node[0]) for node in here) >= asked.nodes:
            yield one


def _has(gpus: Mapping[str, int], types: set[str] | None, wanted: int) -> bool:

    return sum(count for name, count in gpus.items() if types is None or name in types) >= wanted
