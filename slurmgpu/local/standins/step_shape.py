"""What a step of the script becomes on this machine: how many nodes, how many tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["StepShape", "number", "shape_step"]


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
