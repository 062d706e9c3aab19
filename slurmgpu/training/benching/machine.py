"""What machine it is that was measured."""

from __future__ import annotations

import os
import platform
import socket
import time
from typing import Any, Optional

import torch

from ..processes.ranks import cpu_model

__all__ = ["cpus", "doubled", "facts", "given_by_slurm"]


def cpus() -> int:
    """CPUs that this process may use: in a job, at most those that it has on this node, even where nothing binds it to them."""
    able = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(able, given_by_slurm() or able)


def given_by_slurm() -> Optional[int]:
    """CPUs that the job has on this node; None outside of jobs."""
    text = os.environ.get("SLURM_CPUS_ON_NODE", "")
    return int(text) if text.isdecimal() and int(text) else None


def doubled(most: int) -> list[int]:
    """1, 2, 4 and so on, and the most."""
    found = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return [*found, most]


def facts() -> dict[str, Any]:
    """Return the node, its processors, and the software; what is not known is null. ``when`` is in UTC."""
    return {
        "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0],
        "cpu": cpu_model(),
        "cpus": cpus(),
        "load": round(os.getloadavg()[0], 2),
        "gpus": _gpus(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "job": os.environ.get("SLURM_JOB_ID"),
    }


def _gpus() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    found = (torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count()))
    return [{"name": each.name, "bytes": each.total_memory} for each in found]
