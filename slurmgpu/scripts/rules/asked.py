"""The options of a script as numbers: what a component asks Slurm for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from slurmgpu.models.units import Duration
from slurmgpu.scripts.batch_script import Directive

__all__ = ["Asked", "gpu_entries", "is_placeholder"]


class Asked(NamedTuple):
    """The options of one component; numbers are None where none stands, or none can be read."""

    options: Mapping[str, Directive]

    def line(self, *names: str) -> int:
        """The line of the first of these options that stands there, else 1."""
        return next((self.options[name].line for name in names if name in self.options), 1)

    def value(self, name: str) -> str | None:
        """An option's value; None where it has none or is not given."""
        return self.options[name].value if name in self.options else None

    def number(self, name: str) -> int | None:
        """A whole number; of a range such as ``2-4`` the first."""
        match = re.match(r"(\d+)(?:-\d+)?\Z", self.value(name) or "")
        return int(match[1]) if match else None

    @property
    def nodes(self) -> int | None:
        """How many nodes, where they are named."""
        return self.number("nodes")

    @property
    def tasks_per_node(self) -> int | None:
        """How many tasks on a node, where that follows from the options."""
        if "ntasks-per-node" in self.options:
            return self.number("ntasks-per-node")
        tasks = self.number("ntasks")
        if tasks is not None and (self.nodes or 1) == 1:
            return tasks if self.nodes else (1 if tasks == 1 else None)
        return tasks // self.nodes if tasks and self.nodes and tasks % self.nodes == 0 else None

    @property
    def tasks(self) -> int | None:
        """How many tasks in all, where the options say it."""
        if "ntasks" in self.options:
            return self.number("ntasks")
        per_node = self.number("ntasks-per-node")
        if per_node is not None:
            return per_node * (self.nodes or 1)
        return self.nodes if "nodes" in self.options else 1

    @property
    def gpu_options(self) -> list[str]:
        """The options that ask for GPUs."""
        names = [
            name
            for name in ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
            if name in self.options
        ]
        if gpu_entries(self.value("gres") or ""):
            names.insert(0, "gres")
        if re.search(r"\bgres/gpu", self.value("tres-per-task") or ""):
            names.append("tres-per-task")
        return names

    def gpus_in(self, name: str) -> int | None:
        """The number of GPUs that one of the GPU options names; entries of several types are added up."""
        entries = gpu_entries(self.value(name) or "", typed=name != "gres")
        return sum(count for _, count in entries) if entries else None

    @property
    def gpu_types(self) -> set[str]:
        """The types of GPU that are named."""
        return {
            kind
            for name in self.gpu_options
            for kind, _ in gpu_entries(self.value(name) or "", typed=name != "gres")
            if kind
        }

    @property
    def gpus_per_node(self) -> int | None:
        """GPUs on each node, where that follows from the options."""
        for name in ("gres", "gpus-per-node"):
            if name in self.gpu_options:
                return self.gpus_in(name)
        if "gpus" in self.gpu_options:
            total, nodes = self.gpus_in("gpus"), self.nodes or 1
            return total // nodes if total and total % nodes == 0 else None
        if "gpus-per-task" in self.gpu_options:
            each, tasks = self.gpus_in("gpus-per-task"), self.tasks_per_node
            return each * tasks if each and tasks else None
        return None

    @property
    def time(self) -> Duration | None:
        """The time limit."""
        try:
            return Duration.parse(self.value("time") or "")
        except ValueError:
            return None


def gpu_entries(value: str, *, typed: bool = False) -> list[tuple[str | None, int]]:
    """The GPUs in an option's value as (type, count); ``typed``: the value of --gpus and its like, without ``gpu:``."""
    found: list[tuple[str | None, int]] = []
    for entry in value.split(","):
        parts = entry.strip().removeprefix("gres/").removeprefix("gres:").split(":")
        if parts[0] == "gpu":
            parts = parts[1:]
        elif not typed:
            continue
        parts = [part.partition("(")[0] for part in parts]  # gpu:2(S:0-1)
        count = parts.pop() if parts and parts[-1].isdecimal() else "1"
        if entry.strip():
            found.append((parts[0] if parts and parts[0] else None, int(count)))
    return found


def is_placeholder(value: str) -> bool:
    """Whether a value still waits to be filled in: ``<project>``, ``{{ name }}``, ``{name}``, ``!NAME``."""
    return not set("<{!#.").isdisjoint(value) and (
        re.search(r"<[A-Za-z][\w .@/-]*>|\{\{.*\}\}|(?<!\$)\{[A-Za-z_]\w*\}|^!\w+$|^#+$|^\.\.\.$", value)
        is not None
    )
