"""A step of the script fitted to this machine: its nodes and tasks, and the figures in its command."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...lines.torchrun import TORCHRUN, torchrun_at

__all__ = ["StepShape", "fit_local_world_size", "fit_torchrun", "is_pretended_host", "number", "shape_step"]

_ADDRESSES = {"master-addr", "rdzv-endpoint", "local-addr"}
_STARTS_TORCHRUN = re.compile(r"\btorch\.distributed\.(run|launch)\b|\btorchrun\b")


def is_pretended_host(name: str, nodes: Sequence[str]) -> bool:
    """Whether a host name is a pretended node's, whatever suffix a site has (``node1i``, ``node1.ib``)."""
    return any(re.fullmatch(re.escape(node) + r"(?![0-9])[A-Za-z0-9.-]*", name) for node in nodes)


def _first_option(words: Sequence[str]) -> int | None:
    """Return where torchrun's options begin, or None in a command without torchrun."""
    for position, (before, word) in enumerate(itertools.pairwise(words[1:])):
        # sh -c 'exec python3 -m torch.distributed.run ... "$@"' NAME OPTIONS...
        if before == "-c" and _STARTS_TORCHRUN.search(word):
            return position + 4
    return torchrun_at(words)


def fit_torchrun(
    words: Sequence[str], nodes: int, processes_per_node: int, hosts: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Change ``--nnodes``, ``--nproc-per-node`` and addresses of pretended nodes (``hosts``) to this machine's.

    Only torchrun's own options are read, up to the program that it starts. Returns the words, and what was
    changed as ``old -> new`` for the user.
    """
    result, changes = list(words), list[str]()
    start = _first_option(words)
    for option in TORCHRUN.read(words, start).options if start is not None else ():
        value = new = option.value or ""
        if option.name == "nnodes":
            new = str(nodes)
        elif option.name == "nproc-per-node":
            new = str(processes_per_node)
        elif option.name in _ADDRESSES:
            host, colon, port = value.partition(":")
            new = "127.0.0.1" + colon + port if is_pretended_host(host, hosts) else value
        if new != value:
            result[option.value_at] = result[option.value_at].removesuffix(value) + new
            changes.append(f"{option.spelling}={value} -> {new}")
    return result, changes


def fit_local_world_size(words: Sequence[str], processes_per_node: int) -> list[str]:
    """Change ``LOCAL_WORLD_SIZE=4`` in a task's own ``sh -c '...'`` to the number of tasks here."""
    new = rf"\g<1>{processes_per_node}"
    return [
        re.sub(r"(\bLOCAL_WORLD_SIZE=)\d+\b", new, word) if before == "-c" else word
        for before, word in zip(["", *words], words, strict=False)
    ]


@dataclass(frozen=True)
class StepShape:
    """What a step becomes on this machine."""

    nodes: int
    tasks_per_node: int

    @property
    def tasks(self) -> int:
        """The number of processes that srun starts itself."""
        return self.nodes * self.tasks_per_node


def number(options: Mapping[str, str | None], name: str) -> int | None:
    """Return the value of an option as a number, the lower end of a range; None when it is not given."""
    digits = (options.get(name) or "").split("-")[0]
    return int(digits) if digits.isdigit() else None


def shape_step(
    options: Mapping[str, str | None],
    *,
    script_nodes: int,
    script_tasks_per_node: int,
    nodes: int,
    processes_per_node: int,
) -> StepShape:
    """Scale a step, by srun's options, to the local run.

    A step over the whole allocation goes over all pretended nodes; a smaller one stays as small. Several
    tasks on a node are one per GPU and become ``processes_per_node``; one task on a node is a launcher or a
    preparation and stays one.
    """
    step_nodes = number(options, "nodes")
    tasks = number(options, "ntasks")
    per_node = number(options, "ntasks-per-node")
    if step_nodes is None:
        step_nodes = 1 if tasks == 1 else script_nodes
    if per_node is None:
        per_node = -(-tasks // step_nodes) if tasks is not None else script_tasks_per_node
    local_nodes = nodes if step_nodes >= script_nodes else min(step_nodes, nodes)
    return StepShape(local_nodes, processes_per_node if per_node > 1 else 1)
