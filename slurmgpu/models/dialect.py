"""How a site wants to be asked."""

import re
from typing import Literal

from pydantic import Field, field_validator

from slurmgpu.models.base import Model, OptionValue, Text, Word

__all__ = ["AccountRule", "Dialect"]


class AccountRule(Model):
    """How the names of accounts look here; what a job lacks of it is added, or asked for."""

    suffix: Text | None = None
    """What every account ends in, as in `suffix: _g`; added where it is missing."""
    suffix_by_gpu_type: dict[Word, Text] = Field(default_factory=dict)
    """What an account ends in for jobs on a type of GPU, as in `suffix_by_gpu_type: {a100: "@a100"}`; added, or put in
    place of another type's."""
    pattern: Text | None = None
    """A regular expression that every account matches as a whole, in capitals or not, as in `pattern: "project_[0-9]+"`."""
    example: Text | None = None
    """An account as they look here, for messages."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        return pattern


class Dialect(Model):
    """How a site wants to be asked; every option can be left out."""

    gpus: Literal["gres", "gpus-per-node", "gpus", "gpus-per-task", "srun", "none"] = "gres"
    """The option that asks for GPUs. Where nodes are given whole, srun: only srun's own line asks, for each task; none:
    nothing does."""
    gpu_type_by: Literal["request", "constraint"] = "request"
    """How a type of GPU is chosen: in the request (`--gres=gpu:a100:2`), or by `--constraint`."""
    gpu_memory_gres: Word | None = None
    """The generic resource that asks for memory of a GPU, as in `gpu_memory_gres: gpumem`; left out, the site has none."""
    memory: Literal["mem", "mem-per-cpu", "mem-per-gpu", "none"] = "mem"
    """The option that asks for memory; none: the site gives it by itself, and a job that asks for it is refused."""
    cpus: Literal["cpus-per-task", "cpus-per-gpu", "srun", "none"] = "cpus-per-task"
    """The option that asks for CPUs; srun: only srun's own line names them; none: a job that asks for them is refused."""
    memory_share: bool = True
    """Whether a job that names no memory asks for a GPU's share of the node's; false: the site's default is left to act."""
    cpu_share: bool = True
    """Whether a job that names no CPUs asks for a GPU's share of the node's; false: the site's default is left to act."""
    tasks: bool = True
    """Whether `--ntasks-per-node` may stand among the options; false: only srun's own line has it."""
    partition: Literal["named", "optional", "never"] = "named"
    """named: the script always names a partition; optional: only one that the job names or that is not the default; never:
    none."""
    required: tuple[
        Literal["account", "partition", "qos", "time", "constraint", "reservation", "gpu_type"], ...
    ] = ()
    """What every job must name: without it the site refuses the job, or gives something else than its documentation advises."""
    forbidden: tuple[Word, ...] = ()
    """sbatch options that the site refuses, by their long names, as in `forbidden: [ntasks, cpus-per-task]`."""
    account: AccountRule | None = None
    """How the names of accounts look; left out, any name will do."""
    constraint: Text | None = None
    """What every job's `--constraint` holds."""
    qos: Word | None = None
    """The QOS of a job that names none; left out, Slurm's default."""
    whole_nodes: bool = False
    """Whether nodes are given whole: every job says `--exclusive`."""
    login_shell: bool = False
    """Whether `module` exists only in login shells: the script then starts with `bash -l`."""
    address_suffix: Word | None = None
    """What is appended to a host's name for the fast network, as in `address_suffix: i` at Juelich; left out, nothing."""
    launcher: Literal["torchrun", "srun"] = "torchrun"
    """What starts one process per GPU where either would do; srun where the site advises against torchrun inside it."""
    srun_options: tuple[Text, ...] = ()
    """Further options of every srun, one word each, as in `srun_options: [--cpu-bind=none]`."""
    options: dict[Word, OptionValue] = Field(default_factory=dict)
    """Further sbatch options of every job, by their long names, as in `options: {hint: nomultithread}`; a job's `sbatch:
    {NAME: false}` leaves one out."""
