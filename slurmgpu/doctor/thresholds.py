"""Every number that a finding is measured against, with the reason for it."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["LEAST_DRIVERS", "THRESHOLDS", "Threshold", "is_older", "limit"]


class Threshold(NamedTuple):
    """A number, its unit, what is said beyond it, and why it is this one."""

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
    """The number of a threshold."""
    return float(THRESHOLDS[name].value)


def is_older(release: str | None, name: str) -> bool | None:
    """Whether a release, such as 24.11.5, is older than a threshold's; None: it is none."""
    numbers = [re.match(r"(\d+)\.(\d+)", str(one)) for one in (release, THRESHOLDS[name].value)]
    parts = [tuple(map(int, one.groups())) for one in numbers if one is not None]
    return parts[0] < parts[1] if len(parts) == 2 else None
