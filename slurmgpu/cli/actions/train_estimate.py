"""What ``slurmgpu train --estimate`` prints: the memory of a rank, and which of the cluster's GPUs have it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click

from slurmgpu.jobs.table import aligned
from slurmgpu.models.cluster import Cluster
from slurmgpu.runs.bench.verdict import Kind, kinds_of

__all__ = ["ESTIMATED", "fits", "print_estimate"]

ESTIMATED = (1, 8, 16, 64)
"""The numbers of GPUs in the table, beside the job's own."""
_HEAD_ROOM = 0.1
"""Share of a GPU that stays free, as with ``fit_head_room``: the allocator holds more than is in use."""
_CONTEXT = 1 << 30
"""Bytes: CUDA itself and NCCL's buffers."""


def fits(row: Mapping[str, Any], memory: float | None) -> dict[str, Any]:
    """Whether a row's total is likely to fit into a GPU's memory, and the samples at a time that would.

    ``memory``: bytes; None: not known, and then neither is anything else.
    """
    if memory is None:
        return {"fits": None, "micro_batch": None}
    left = memory * (1 - _HEAD_ROOM) - _CONTEXT
    if row["per_sample"] is None:  # the activations are not known: only what is too large for certain
        return {"fits": False if row["total"] > left else None, "micro_batch": None}
    most = int((left - row["fixed"]) // max(1, row["per_sample"]))
    return {"fits": row["total"] <= left, "micro_batch": max(0, most)}


def _kinds(cluster: Cluster) -> list[tuple[str, Kind | None]]:
    """The cluster's types of GPU; one of which nobody knows the memory is None."""
    known = {kind.name: kind for kind in kinds_of(cluster)}
    there = {kind.gpu_type for part in cluster.partitions.values() for kind in part.kinds if kind.gpu_type}
    return [(name, known.get(name)) for name in sorted(there | set(cluster.gpu_types))]


def print_estimate(found: Mapping[str, Any], cluster: Cluster, *, as_json: bool) -> None:
    """The estimate as a table with a line for each type of GPU, or as JSON."""
    kinds = _kinds(cluster)
    rows = [
        {**row, "on": {name: fits(row, kind and kind.bytes) for name, kind in kinds}} for row in found["rows"]
    ]
    if as_json:
        types = {
            name: {"memory": kind and int(kind.bytes), "guess": kind and kind.doubt} for name, kind in kinds
        }
        document = {**found, "rows": rows, "cluster": cluster.name, "gpu_types": types}
        click.echo(json.dumps(document, indent=2))
        return
    for line in _lines(found, rows, cluster, kinds):
        click.echo(line)


def _lines(
    found: Mapping[str, Any],
    rows: list[dict[str, Any]],
    cluster: Cluster,
    kinds: list[tuple[str, Kind | None]],
) -> Iterator[str]:
    yield f"{found['task']}: {found['parameters']:,} parameters, {found['precision']}; GiB of each rank at its peak, worked out"
    yield ""
    header = (
        "STRATEGY", "GPUS", "AT A TIME", "PARAMETERS", "GRADIENTS", "OPTIMIZER", "EMA", "GATHERED", "ACTIVATIONS",
        "TOTAL", "HOST", *(name.upper() for name, _ in kinds),
    )  # fmt: skip
    yield aligned([header, *(_cells(row) for row in rows)])
    yield ""
    sizes = ", ".join(f"{size}: {_gib(size_of)}" for size, size_of in found["activations"].items())
    if None in found["activations"].values():
        yield "activations: not known, because the task has a step of its own; the totals are without them"
    else:
        yield f"activations by samples at a time: {sizes}"
    if found["micro_batch_to_be_found"]:
        yield "micro_batch is auto: the totals are those of a single sample at a time"
    if kinds:
        yield (
            f"yes, N: the total is likely to fit on {cluster.name}, and up to N samples at a time would "
            "(a tenth and 1 GiB stay free)"
        )
    else:
        yield f"which GPUs have it is unknown: the profile of {cluster.name} names no type of GPU"
    for name, kind in kinds:
        if kind is None:
            yield f"{name}: its memory is unknown; gpu_types.{name}.memory in the profile tells it"
        elif kind.doubt:
            yield f"{name}: {_gib(kind.bytes)} GiB is a guess ({kind.doubt})"
    if any(row["strategy"] in ("fsdp2", "pipeline") for row in rows):
        yield (
            f"fsdp2, pipeline: at the start each process has {_gib(found['made'])} GiB of the model in the node's memory "
            "(meta_device: true: none, and on the device a block at a time)"
        )
    if any(row["strategy"] == "pipeline" for row in rows):
        yield "pipeline: of all stages the largest; activations taken as shared out equally"
    if found["note"]:
        yield f"note: {found['note']}"
    yield "Work spaces of kernels and compile are not in it. slurmgpu probe measures."


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    name = row["strategy"]
    name += ", cpu_offload" if row["cpu_offload"] else ""
    amounts = ("parameters", "gradients", "optimizer", "averages", "gathered", "activations", "total", "host")
    return (
        name, str(row["gpus"]), str(row["micro_batch"]),
        *("?" if row[each] is None else _gib(row[each]) if row[each] else "-" for each in amounts),
        *(_answer(each) for each in row["on"].values()),
    )  # fmt: skip


def _answer(one: Mapping[str, Any]) -> str:
    if one["fits"] is None:
        return "unknown"
    if one["micro_batch"] is None:
        return "no"
    return f"{'yes' if one['fits'] else 'no'}, {one['micro_batch']}"


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.2f}"
