"""Nodes that a user names, or a partition has: which there are, and which take jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from slurmgpu.errors import InvalidInput
from slurmgpu.slurm import expand

if TYPE_CHECKING:
    from slurmgpu.slurm import NodeNow, Present

_HOST = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_EXAMPLES = {"--on": "node[03-04],node07", "--nodelist": "node[1-8],node12"}


def expand_nodes(option: str, text: str) -> list[str]:
    """Return the nodes of a list, each once; InvalidInput where it is none."""
    names = list(dict.fromkeys(expand(text)))
    if text.count("[") != text.count("]") or not names or not all(map(_HOST.fullmatch, names)):
        raise InvalidInput(
            f"{option} {text}: this is no list of nodes", hint=f"as in {option} '{_EXAMPLES[option]}'"
        )
    return names


def check_nodes(
    asked: str, names: Sequence[str], partition: str | None, known: Sequence[NodeNow]
) -> list[str]:
    """Return which nodes take no jobs now, in words; InvalidInput for one that is not there, or not where the job may go."""
    there = {node.name: node for node in known}
    strange = [name for name in names if name not in there]
    if strange:
        raise InvalidInput(
            f"--on {asked}: Slurm knows no node {', '.join(strange)}",
            hint="sinfo -N lists the nodes; the first column is their names",
        )
    parts = partition.split(",") if partition else []
    if parts and not any(all(part in there[name].partitions for name in names) for part in parts):
        has = "; ".join(f"{name} is in {', '.join(there[name].partitions) or 'none'}" for name in names)
        raise InvalidInput(
            f"--on {asked}: the run's job is for partition {partition}, and {has}",
            hint=f"name nodes of it: sinfo -N -p {partition}",
        )
    return [
        f"{node.name} is {node.away} ({node.state}): the job waits until it takes jobs"
        for node in map(there.__getitem__, names)
        if node.away in ("down", "drained")
    ]


def nodes_that_take_jobs(partition: str, present: Present, told: Callable[[str], None]) -> list[str]:
    """Return the nodes of a partition that take jobs; ``told`` hears of the others. InvalidInput where there is none."""
    present.config  # noqa: B018 (it says first whether anybody answers)
    if present.nodes is None:
        raise InvalidInput(
            "--all-nodes: Slurm does not tell which nodes there are", hint="name them: --nodelist 'node[1-8]'"
        )
    there = [node for node in present.nodes if partition in node.partitions]
    away = [node for node in there if node.away in ("down", "drained", "reserved")]
    if len(away) == len(there):
        raise InvalidInput(
            f"--all-nodes --partition {partition}: "
            + ("none of its nodes takes jobs" if there else "Slurm shows no node of it"),
            hint=f"sinfo -p {partition} shows what there is",
        )
    for node in away:
        told(f"{node.name} is left out: it is {node.away} ({node.state})")
    return [node.name for node in there if node not in away]
