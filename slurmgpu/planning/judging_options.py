"""What a script's own options ask for, in the numbers that can be judged against a cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from slurmgpu.models.cluster import Cluster
from slurmgpu.models.units import Duration, GpuRequest, Gres, Memory
from slurmgpu.planning.request import Ask, Problem
from slurmgpu.planning.verdict import problems

__all__ = ["ask_of", "judge_options"]

_T = TypeVar("_T")
Options = Mapping[str, "str | None"]
"""sbatch's long names -> values (None: an option without one)."""


def judge_options(cluster: Cluster, options: Options) -> list[Problem]:
    """Why options would never start on a cluster; none: they would, or it cannot be told.

    Of several partitions one that starts them is enough (sbatch(1), --partition). Values that cannot be read, such
    as variables, are not held against them.
    """
    if not cluster.known:
        return []
    asked = options.get("partition")
    names = (
        (asked or cluster.default_partition or "").split(",") if asked or cluster.default_partition else []
    )
    unknown = [name for name in names if name not in cluster.partitions]
    if unknown and asked and not re.search(r"[$<{\[]", asked):
        known = ", ".join(cluster.partitions)
        return [
            Problem(
                f"cluster {cluster.name!r}", f"has no partition {unknown[0]!r}; it has {known}", "partition"
            )
        ]
    found: list[list[Problem]] = []
    for name in [name for name in names if name in cluster.partitions] or list(cluster.partitions):
        found.append(problems(cluster, ask_of(cluster, options, name)))
        if not found[-1]:
            return []
    return min(found, key=len, default=[])


def ask_of(cluster: Cluster, options: Options, partition: str | None) -> Ask:
    """Options as numbers per node on a partition, each as small as they can be read."""
    nodes_text = options.get("nodes")
    nodes = _number((nodes_text or "").split("-")[0])
    tasks = _number(options.get("ntasks"))
    per_node = _number(options.get("ntasks-per-node"))
    if nodes is None:
        nodes = -(-tasks // per_node) if tasks and per_node else 1
    on_a_node = per_node or (-(-tasks // nodes) if tasks and nodes_text else 1)
    gpus, gpu_type = _gpus(options, nodes, on_a_node)
    if gpus and not nodes_text:
        biggest = _biggest(cluster, partition)
        if biggest and gpus > biggest and _read(GpuRequest.parse, options.get("gpus")):
            nodes, gpus = -(-gpus // biggest), biggest
    cpus = _cpus(options, gpus, on_a_node)
    return Ask(
        partition=partition,
        nodes=nodes,
        gpus_per_node=gpus,
        gpu_type=gpu_type,
        gres=_other_gres(options),
        constraint=options.get("constraint") if "$" not in (options.get("constraint") or "") else None,
        cpus_per_node=cpus,
        memory_per_node=_memory(options, gpus, cpus),
        time=_read(Duration.parse, options.get("time")),
        qos=_name(options.get("qos")),
        account=_name(options.get("account")),
        whole="exclusive" in options and options["exclusive"] in (None, ""),
    )


def _read(parse: Callable[[object], _T], text: str | None) -> _T | None:
    try:
        return None if text is None else parse(text)
    except ValueError:
        return None


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"[0-9]{1,9}", text) and int(text) > 0 else None


def _name(text: str | None) -> str | None:
    """A name that is written out: no variable and no placeholder."""
    return text.lower() if text and re.fullmatch(r"[\w.@+-]+", text) else None


def _gres(options: Options) -> list[Gres]:
    text = options.get("gres") or ""
    return [
        gres
        for part in text.split(",")
        if (gres := _read(Gres.parse, part.removeprefix("gres/"))) is not None
    ]


def _other_gres(options: Options) -> tuple[Gres, ...]:
    return tuple(gres for gres in _gres(options) if gres.name != "gpu")


def _gpus(options: Options, nodes: int, tasks: int) -> tuple[int, str | None]:
    """GPUs on a node, and their type."""
    for gres in _gres(options):
        if gres.name == "gpu" and gres.count.isdigit():
            return int(gres.count), gres.type
    for name, times in (("gpus-per-node", 1), ("gpus-per-task", tasks)):
        request = _read(GpuRequest.parse, options.get(name))
        if request is not None:
            return request.count * times, request.type
    total = _read(GpuRequest.parse, options.get("gpus"))
    if total is None:
        return 0, None
    return (-(-total.count // nodes), total.type) if options.get("nodes") else (total.count, total.type)


def _biggest(cluster: Cluster, partition: str | None) -> int | None:
    described = cluster.partitions.get(partition or "")
    counts = [group.gpu_count for group in described.nodes] if described else []
    return None if None in counts else max((count or 0 for count in counts), default=None)


def _cpus(options: Options, gpus: int, tasks: int) -> int:
    per_gpu = _number(options.get("cpus-per-gpu"))
    if per_gpu and gpus:
        return per_gpu * gpus
    return tasks * (_number(options.get("cpus-per-task")) or 1)


def _memory(options: Options, gpus: int, cpus: int) -> int | None:
    for name, times in (("mem", 1), ("mem-per-cpu", cpus), ("mem-per-gpu", gpus)):
        memory = _read(Memory.parse, options.get(name))
        if memory is not None and times:
            return memory.mib * times
    return None
