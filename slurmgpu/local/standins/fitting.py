"""A step of the script fitted to this machine: its nodes and tasks, and the figures in its command."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurmgpu.launchers import SHIPPED, Launcher, launch_line, torchrun_at

__all__ = ["StepShape", "fit_agent", "fit_local_world_size", "is_pretended_host", "number", "shape_step"]

_ADDRESSES = {"master-addr", "rdzv-endpoint", "local-addr", "main-process-ip"}


def is_pretended_host(name: str, nodes: Sequence[str]) -> bool:
    """Return True if a host name is a pretended node's, whatever suffix a site has (``node1i``, ``node1.ib``)."""
    return any(re.fullmatch(re.escape(node) + r"(?![0-9])[A-Za-z0-9.-]*", name) for node in nodes)


def _agent(words: Sequence[str]) -> tuple[Launcher, int] | None:
    """Return the launcher that stays on its node, and where its options begin; None in a command without one."""
    for position, (before, word) in enumerate(itertools.pairwise(words[1:])):
        # sh -c 'exec python3 -m torch.distributed.run ... "$@"' NAME OPTIONS...
        for one in SHIPPED.values() if before == "-c" else ():
            if one.in_shell is not None and one.in_shell.search(word):
                return one, position + 4
    launch = launch_line(tuple(words))
    if launch is not None and launch.launcher.in_shell is not None:
        return launch.launcher, len(words) - len(launch.words)
    start = torchrun_at(words)
    return None if start is None else (SHIPPED["torchrun"], start)


def fit_agent(
    words: Sequence[str], nodes: int, processes_per_node: int, hosts: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Change a launcher's figures, and addresses of pretended nodes (``hosts``), to this machine's.

    Only its own options are read, up to the program that it starts. Returns the words, and what was changed as
    ``old -> new`` for the user.
    """
    result, changes = list(words), list[str]()
    here = {"nodes": nodes, "on each": processes_per_node, "in all": nodes * processes_per_node}
    agent, start = _agent(words) or (None, 0)
    for option in agent.options.read(words, start).options if agent and agent.options else ():
        value = new = option.value or ""
        if agent and option.name in agent.figures:
            new = str(here[agent.figures[option.name]])
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
    """A step as it runs on this machine."""

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
