"""A line of the doctor's report: which check, how it came out, what was found, what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

__all__ = ["CHECKS", "LEVELS", "Level", "Line", "Measured", "counts", "failure", "ok", "unknown", "warning"]

Measured = Mapping[str, Any]
"""What the probe measured, by name, as it was read from JSON."""
Level = Literal["ok", "warning", "failure", "unknown"]
LEVELS: tuple[Level, ...] = ("ok", "warning", "failure", "unknown")

CHECKS = {
    "slurm.commands": "Slurm's commands are on PATH",
    "slurm.controller": "slurmctld answers, and how fast",
    "slurm.release": "its release is one that slurmgpu is tested on",
    "slurm.clock": "this machine's clock against slurmctld's",
    "slurm.accounting": "sacct answers",
    "slurm.account": "the user has an account to charge, and the one that the job names is among them",
    "slurm.partition": "the partition that the job names is one of Slurm's",
    "cluster.profile": "a cluster profile is chosen, and it is this cluster's",
    "cluster.age": "the profile still says what Slurm says: its day, the release, the partitions",
    "software.modules": "there is a module system, and the environment's modules load",
    "software.containers": "the container runtime that the environment names",
    "software.image": "the image that the environment names is there, and is one",
    "python.interpreter": "the interpreter that the job names is there",
    "python.version": "the Python that the job uses",
    "torch.version": "torch in that Python",
    "torch.driver": "the CUDA release that torch is built for against the driver",
    "torch.gpus": "torch sees the GPUs that the job got",
    "torch.within": "an all-reduce among the processes of one node, measured",
    "torch.between": "an all-reduce between the nodes, measured",
    "disk.space": "free space",
    "disk.inodes": "free inodes",
    "disk.latency": "median times to open, to stat, and to write and fsync a small file, measured",
    "disk.writable": "the folder is there and can be written to; nobody else can",
    "disk.quota": "the user's quota, where a command tells it",
    "gpu.count": "as many GPUs as were asked for",
    "gpu.model": "their model and memory",
    "gpu.driver": "nvidia-smi works; the driver's version",
    "gpu.ecc": "no uncorrected memory errors since the last reset",
    "gpu.rows": "no retired page or remapped row that waits for a reset",
    "gpu.xid": "no error (XID) of the driver's in the kernel's log",
    "gpu.clocks": "clocks are not held down",
    "gpu.processes": "nobody else uses the GPUs",
    "gpu.mig": "GPUs are whole, or slices (MIG)",
    "net.names": "the nodes find each other by name",
    "net.ports": "each node reaches a port of each other",
    "net.clock": "the nodes' clocks against each other and against the login node's",
    "share.cpus": "CPUs that the processes may use against those that were asked for",
    "share.memory": "the memory limit against what was asked for",
    "share.shm": "size of /dev/shm and what is free in it",
    "job.environment": "modules, container and Python of the job are on the node",
    "job.report": "the probe ran on every node, and told its results",
}
"""Every check, by the name that stands in the report and in its JSON, and what is looked at."""


class Line(NamedTuple):
    """One finding."""

    check: str
    level: Level
    found: str
    act: str = ""
    """What to do about it; '' where there is nothing to do."""
    where: str = ""
    """The node, or `job ID`; '' for the machine where the doctor is called."""


def ok(check: str, found: str) -> Line:
    """All is well."""
    return _line(check, "ok", found, "")


def warning(check: str, found: str, act: str) -> Line:
    """Jobs run, and something may go wrong, or does not go as well as it could."""
    return _line(check, "warning", found, act)


def failure(check: str, found: str, act: str) -> Line:
    """Jobs fail, or compute wrong results."""
    return _line(check, "failure", found, act)


def unknown(check: str, found: str, act: str = "") -> Line:
    """It could not be found out."""
    return _line(check, "unknown", found, act)


def _line(check: str, level: Level, found: str, act: str) -> Line:
    assert check in CHECKS, check
    return Line(check, level, found, act)


def counts(lines: Iterable[Line]) -> dict[Level, int]:
    """How many lines there are of each level."""
    found = Counter(line.level for line in lines)
    return {level: found[level] for level in LEVELS}
