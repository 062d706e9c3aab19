"""A step of the script fitted to this machine: its nodes and tasks, and the figures in its command."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurmgpu.lines.command import ACCELERATE, TORCHRUN, read_launch_line, torchrun_at
from slurmgpu.lines.options import Table

__all__ = ["StepShape", "fit_agent", "fit_local_world_size", "is_pretended_host", "number", "shape_step"]

_ADDRESSES = {"master-addr", "rdzv-endpoint", "local-addr", "main-process-ip"}
_STARTS_TORCHRUN = re.compile(r"\btorch\.distributed\.(run|launch)\b|\btorchrun\b")
_STARTS_ACCELERATE = re.compile(r"\baccelerate(?: |\.commands\.|\.commands\.accelerate_cli )launch\b")


def is_pretended_host(name: str, nodes: Sequence[str]) -> bool:
    """Return True if a host name is a pretended node's, whatever suffix a site has (``node1i``, ``node1.ib``)."""
    return any(re.fullmatch(re.escape(node) + r"(?![0-9])[A-Za-z0-9.-]*", name) for node in nodes)


def _agent(words: Sequence[str]) -> tuple[Table, int] | None:
    """Return the options of torchrun or accelerate, and where they begin; None in a command without either."""
    for position, (before, word) in enumerate(itertools.pairwise(words[1:])):
        # sh -c 'exec python3 -m torch.distributed.run ... "$@"' NAME OPTIONS...
        if before == "-c" and _STARTS_TORCHRUN.search(word):
            return TORCHRUN, position + 4
        if before == "-c" and _STARTS_ACCELERATE.search(word):
            return ACCELERATE, position + 4
    line = read_launch_line(tuple(words))
    if line is not None and line.name == "accelerate":
        return ACCELERATE, len(words) - len(line.words)
    start = torchrun_at(words)
    return None if start is None else (TORCHRUN, start)


def fit_agent(
    words: Sequence[str], nodes: int, processes_per_node: int, hosts: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Change torchrun's or accelerate's figures, and addresses of pretended nodes (``hosts``), to this machine's.

    Only its own options are read, up to the program that it starts. Returns the words, and what was changed as
    ``old -> new`` for the user.
    """
    result, changes = list(words), list[str]()
    figures = {
        "nnodes": nodes, "nproc-per-node": processes_per_node,
        "num-machines": nodes, "num-processes": nodes * processes_per_node,
    }  # fmt: skip
    agent = _agent(words)
    for option in agent[0].read(words, agent[1]).options if agent else ():
        value = new = option.value or ""
        if option.name in figures:
            new = str(figures[option.name])
        elif option.name in _ADDRESSES:
            host, colon, port = value.partition(":")
            new = "127.0.0.1" + colon + port if is_pretended_host(host, hosts) else value
        if new != value:
            result[option.value_at] = result[option.value_at].removesuffix(value) + new
            changes.append(f"{option.spelling}={value} -> {new}")
        if option.name == "multi-gpu" and nodes * processes_per_node == 1:
            result[option.at] = "--num_processes=1"  # accelerate refuses --multi_gpu for one process
            changes.append(f"without {option.spelling}")
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
