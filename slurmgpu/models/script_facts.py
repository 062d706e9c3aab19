"""Facts about the processes of a user's Python script, as far as it was read."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Finding", "ScriptFacts", "Slip"]

Finding = tuple[str, int]
"""The finding and its line; 0: in a module next to the script."""


class Slip(NamedTuple):
    """One place in a Python file where a check applies."""

    check: str
    file: str
    line: int


class ScriptFacts(NamedTuple):
    """Facts about the processes of a script; None where nothing was found."""

    path: str
    framework: Finding | None = None
    """A library that manages processes or devices: Lightning, Accelerate, DeepSpeed, TensorFlow, JAX, ..."""
    distributed: Finding | None = None
    """A sign that it takes part in a process group."""
    spawns: Finding | None = None
    """A sign that it starts its own processes."""
    drives: Finding | None = None
    """A sign that it drives several GPUs from one process."""
    joins: Finding | None = None
    """A call of TensorFlow or JAX that joins the processes of several tasks or nodes."""
    told: bool = False
    """True if it tells TensorFlow where those are, by Slurm's variables or by TF_CONFIG."""
    local_rank: Finding | None = None
    """An option `--local_rank` of its own, by which DeepSpeed's launcher tells a process which GPU is its."""
    limits_ray: Finding | None = None
    """A call that starts a Ray of its own: ``ray.init(num_cpus=...)``, which no running one may be told."""
    slurm_rank: Finding | None = None
    """A sign that it takes its rank from Slurm's variables, and not from torchrun's."""
    own_loop: Finding | None = None
    """An import of slurmgpu.training, which then has to be where the script runs."""
    trains_elsewhere: bool = False
    """No training loop was read, and it imports what was not read, or not known: the loop, and the process group, may
    be there."""
    own_requirements: bool = False
    """It lists its requirements itself (``# /// script``), and `uv run SCRIPT` installs them."""
    same_in_all_tasks: bool = False
    """All of it was read, and nothing in it takes a variable of Slurm: the tasks of an array would do the same."""
    stops_in_time: bool = True
    """False: all of it was read, and it neither imports slurmgpu.training nor ends with code 75 before its time is up."""
    launches: bool = False
    """It, or a module beside it, names a launcher of Slurm's or of MPI: it may start processes on other nodes itself."""
    idle: bool = False
    """All of it was read, and nothing in it trains or loads data."""
    slips: tuple[Slip, ...] = ()
    """Items of the checklist that its training loop misses."""
    parsed: bool = True
    """False: its syntax could not be read by this Python; it was searched as text."""

    @property
    def trains_alone(self) -> bool:
        """True if all of it was read, and nothing in it takes part in a training of several processes."""
        others = self.distributed or self.framework or self.joins or self.trains_elsewhere
        return self.parsed and not (others or self.idle)

    @property
    def one_process(self) -> Finding | None:
        """Why one process gets all GPUs of a node; None where it does not follow."""
        if self.spawns or self.drives is None or self.distributed:
            return self.spawns
        # A Trainer refuses a model that is spread over the GPUs when it is one of several processes.
        spread = self.drives[0].startswith("device_map") and self.framework is not None
        library = self.framework[0] if self.framework else "TensorFlow"
        one = library in {"TensorFlow", "JAX"} or (
            spread and library in {"Transformers' Trainer", "Accelerate"}
        )
        return self.drives if one else None

    @property
    def manager(self) -> str:
        """The library that manages its processes; empty where it starts or joins them itself, or uses none."""
        return self.framework[0] if self.framework and not (self.one_process or self.joins) else ""

    def at(self, finding: Finding | None) -> str:
        """Return a finding in words, with its place."""
        assert finding is not None
        what, line = finding
        return f"{what} in {self.path}:{line}" if line else f"{what} in a module beside {self.path}"

    def same_in_each(self, processes: int) -> str:
        """Return what several processes of it do, where nothing of a process group was seen."""
        if self.trains_elsewhere:
            return (
                f"{self.path} trains by what it imports, which was not read: each of the {processes} processes must take its "
                "rank from RANK and LOCAL_RANK; if it starts its own processes, use launch: plain"
            )
        return (
            f"nothing in {self.path} looks distributed: each of the {processes} processes would train the same thing; "
            "wrap the model in DistributedDataParallel, ask for 1 GPU, or use launch: plain"
        )
