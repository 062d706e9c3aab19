"""The rank of this process: one reading of what torchrun and srun say."""

from __future__ import annotations

import platform
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import TrainingError

__all__ = ["Ranks", "cpu_model", "from_environment", "tasks_on_node"]

_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True)
class Ranks:
    """This process's place among all (``rank`` of ``world_size``) and on its node (``local_...``)."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    launcher: str = "none"
    host: str = ""
    own_gpu: bool = False
    """True if Slurm gave this process one GPU of its own, and hides those of the others (srun --gpus-per-task=1)."""

    @property
    def first(self) -> bool:
        """True if this is rank 0, the one that speaks and writes."""
        return self.rank == 0

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"


def from_environment(environment: Mapping[str, str]) -> Ranks:
    """Read the ranks from the variables of torchrun, else of srun; without either: a single process.

    torchrun's RANK goes first, because inside ``srun torchrun`` SLURM_PROCID counts nodes.

    Raises:
        TrainingError: a variable is missing or contradicts another one.
    """
    if "RANK" in environment:
        missing = [name for name in _TORCHRUN if name not in environment]
        if missing:
            raise TrainingError(
                f"RANK is set, but not {', '.join(missing)}: torchrun sets all of {', '.join(_TORCHRUN)}; "
                "start with torchrun or srun, or unset RANK"
            )
        rank, local_rank, world, local_world = (_number(environment, name) for name in _TORCHRUN)
        launcher = "torchrun"
    elif "SLURM_PROCID" in environment and "SLURM_NTASKS" in environment:
        rank = _number(environment, "SLURM_PROCID")
        world = _number(environment, "SLURM_NTASKS")
        local_rank = _number(environment, "SLURM_LOCALID")
        local_world = tasks_on_node(environment)
        launcher = "srun"
    else:
        rank, local_rank, world, local_world, launcher = 0, 0, 1, 1, "none"
    if not (0 <= rank < world and 0 <= local_rank < local_world <= world):
        raise TrainingError(
            f"the {launcher} variables contradict each other: rank {rank} of world size {world}, "
            f"local rank {local_rank} of {local_world}"
        )
    # Slurm's own name of the node is the one that sinfo and the job's node list show.
    host = environment.get("SLURMD_NODENAME") or socket.gethostname()
    return Ranks(rank, local_rank, world, local_world, launcher, host, _has_own_gpu(environment, local_world))


def _has_own_gpu(environment: Mapping[str, str], local_world: int) -> bool:
    """One GPU is this task's (SLURM_STEP_GPUS names one), and its step has one for each rank of the node."""
    own, in_all = (environment.get(name, "") for name in ("SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE"))
    return own.isdecimal() and in_all.isdecimal() and int(in_all) >= local_world


def tasks_on_node(environment: Mapping[str, str]) -> int:
    """Tasks of this step on this node, from Slurm's form ``2(x3),1`` (two on three nodes, then one)."""
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        if name in environment:
            counts: list[int] = []
            for part in environment[name].split(","):
                match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
                if match is None:
                    raise TrainingError(f"{name}={environment[name]!r} is not in Slurm's form, as in 2(x3),1")
                counts += [int(match[1])] * int(match[2] or 1)
            node = _number(environment, "SLURM_NODEID") if "SLURM_NODEID" in environment else 0
            return counts[min(node, len(counts) - 1)]
    if "SLURM_NTASKS_PER_NODE" in environment:
        return min(_number(environment, "SLURM_NTASKS_PER_NODE"), _number(environment, "SLURM_NTASKS"))
    if environment.get("SLURM_NNODES", "1") == "1":
        return _number(environment, "SLURM_NTASKS")
    raise TrainingError(
        "SLURM_STEP_TASKS_PER_NODE is not set and the job has several nodes: start the processes with srun"
    )


def cpu_model() -> str:
    """The model of this machine's CPU, such as ``AMD EPYC 9654 96-Core Processor``; where that is not told, its architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name)
    if value is None:
        raise TrainingError(f"{name} is not set: start the processes with torchrun or srun")
    if not value.isdecimal():
        raise TrainingError(f"{name} is {value!r}; it must be a whole number")
    return int(value)
