"""The lines of the doctor's report: its checks, their levels, and the thresholds that they measure against."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

__all__ = [
    "CHECKS",
    "LEAST_DRIVERS",
    "LEVELS",
    "THRESHOLDS",
    "Level",
    "Line",
    "Measured",
    "Threshold",
    "counts",
    "failure",
    "graded",
    "is_older",
    "limit",
    "ok",
    "seconds",
    "unknown",
    "warning",
]


Measured = Mapping[str, Any]
"""Measurements of the probe by name, read from JSON."""
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
"""Every check by its name in the report and in its JSON, and its subject."""


class Line(NamedTuple):
    """One finding."""

    check: str
    level: Level
    found: str
    act: str = ""
    """The remedy; '' where there is nothing to do."""
    where: str = ""
    """The node, or `job ID`; '' for the machine where the doctor is called."""


def ok(check: str, found: str) -> Line:
    """Return a line on a check that is well."""
    return _line(check, "ok", found, "")


def warning(check: str, found: str, act: str) -> Line:
    """Return a line on a check where jobs run, and something may go wrong or could go better."""
    return _line(check, "warning", found, act)


def failure(check: str, found: str, act: str) -> Line:
    """Return a line on a check where jobs fail, or compute wrong results."""
    return _line(check, "failure", found, act)


def unknown(check: str, found: str, act: str = "") -> Line:
    """Return a line on a check that could not be made."""
    return _line(check, "unknown", found, act)


def graded(check: str, found: str, act: str, *, fails: bool = False, warns: bool = False) -> Line:
    """Return a failure, a warning, or else a line that all is well."""
    level: Level = "failure" if fails else "warning" if warns else "ok"
    return _line(check, level, found, act if fails or warns else "")


def _line(check: str, level: Level, found: str, act: str) -> Line:
    assert check in CHECKS, check
    return Line(check, level, found, act)


def counts(lines: Iterable[Line]) -> dict[Level, int]:
    """Return the number of lines of each level."""
    found = Counter(line.level for line in lines)
    return {level: found[level] for level in LEVELS}


def seconds(amount: float) -> str:
    """Return seconds as s, ms or µs."""
    if amount >= 1:
        return f"{amount:.1f} s"
    return f"{amount * 1e3:.1f} ms" if amount >= 1e-3 else f"{amount * 1e6:.0f} µs"


class Threshold(NamedTuple):
    """A number, its unit, the level beyond it, and the reason for it."""

    value: float | str
    """A text for a release."""
    unit: str
    beyond: str
    why: str


MiB, GiB = 2.0**20, 2.0**30

THRESHOLDS = {
    "controller.slow": Threshold(
        5, "s", "warning", "a judgement: sbatch gives up after MessageTimeout, 10 s by default (slurm.conf(5))"
    ),
    "release.oldest": Threshold("20.11", "", "warning", "the oldest release that slurmgpu is tested on"),
    "clock.drifts": Threshold(
        3, "s", "warning", "a judgement: a machine that keeps its time by NTP is off by milliseconds"
    ),
    "clock.off": Threshold(
        300, "s", "failure", "munge refuses credentials that are older than 300 s (munge(1), --ttl)"
    ),
    "clock.between": Threshold(
        1, "s", "warning", "a judgement: files of shared folders seem to come from the future"
    ),
    "profile.old": Threshold(180, "days", "warning", "a judgement: sites change partitions about twice a year"),
    "space.few": Threshold(
        10 * GiB, "bytes", "warning", "a checkpoint of 10^9 parameters with AdamW's state has 12 to 16 GB"
    ),
    "space.none": Threshold(100 * MiB, "bytes", "failure", "a judgement: logs and the run directory need some"),
    "inodes.few": Threshold(
        20_000, "", "warning", "torch alone has some 14,000 files"
    ),
    "inodes.none": Threshold(100, "", "failure", "a run directory has some 50 files"),
    "quota.full": Threshold(0.9, "of the limit", "warning", "a judgement"),
    "latency.open": Threshold(
        0.02, "s", "warning", "a judgement: importing torch reads some 1,100 modules, which then takes over 20 s"
    ),
    "latency.write": Threshold(
        0.5, "s", "warning", "a judgement: parallel file systems take 1 to 50 ms; checkpoints fsync each file"
    ),
    "latency.hangs": Threshold(20, "s", "failure", "a judgement: a server that is gone never answers"),
    "shm.small": Threshold(
        1 * GiB, "bytes", "warning",
        "workers of a DataLoader pass batches through /dev/shm (torch.multiprocessing), NCCL its buffers",
    ),
    "shm.none": Threshold(
        64 * MiB, "bytes", "failure", "Docker's default, which both PyTorch and NCCL say is too small"
    ),
    "gpu.others": Threshold(
        1024, "MiB", "warning", "a judgement: the driver alone holds up to about 600 MiB of an idle GPU"
    ),
    "allreduce.within": Threshold(
        4, "GB/s", "warning", "a judgement: half of PCIe 3.0 x8 (7.9 GB/s); below it GPUs talk through a socket"
    ),
    "allreduce.between": Threshold(
        1.2, "GB/s", "warning", "10 Gbit/s Ethernet: below it NCCL uses neither InfiniBand nor a faster network"
    ),
    "python.oldest": Threshold("3.9", "", "warning", "slurmgpu's training entrypoint runs on Python 3.9 or newer"),
}  # fmt: skip

LEAST_DRIVERS = {11: 450, 12: 525, 13: 580}
"""By CUDA's major release the oldest branch of the driver on which its programs run: "CUDA Compatibility", minor version
compatibility (docs.nvidia.com/deploy/cuda-compatibility)."""


def limit(name: str) -> float:
    """Return the number of a threshold."""
    return float(THRESHOLDS[name].value)


def is_older(release: str | None, name: str) -> bool | None:
    """Return True if a release, such as 24.11.5, is older than a threshold's; None: it is none."""
    numbers = [re.match(r"(\d+)\.(\d+)", str(one)) for one in (release, THRESHOLDS[name].value)]
    parts = [tuple(map(int, one.groups())) for one in numbers if one is not None]
    return parts[0] < parts[1] if len(parts) == 2 else None
