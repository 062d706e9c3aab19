"""How a site wants to be asked."""

import re
from typing import Literal

from pydantic import Field, field_validator

from slurmgpu.models.base import Model, OptionValue, Text, Word

__all__ = ["AccountRule", "Dialect"]


class AccountRule(Model):
    """How the names of accounts look here; what a job lacks of it is added, or asked for."""

    suffix: Text | None = None
    """What every account ends in (`_g`); added where it is missing."""
    suffix_by_gpu_type: dict[Word, Text] = Field(default_factory=dict)
    """What an account ends in for jobs on a type of GPU (`@a100`); added where it is missing."""
    pattern: Text | None = None
    """A regular expression that every account matches, from its first letter to its last, in capitals or not."""
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
    """The option that asks for GPUs; srun: nodes are given whole, and only srun's own line asks, for each task."""
    gpu_type_by: Literal["request", "constraint"] = "request"
    """How a type of GPU is chosen: in the request (gpu:a100:2), or by --constraint."""
    gpu_memory_gres: Word | None = None
    """The gres that asks for memory of a GPU (`gpumem`), where the site has one."""
    memory: Literal["mem", "mem-per-cpu", "mem-per-gpu", "none"] = "mem"
    """The option that asks for memory."""
    cpus: Literal["cpus-per-task", "cpus-per-gpu", "srun", "none"] = "cpus-per-task"
    """The option that asks for CPUs; srun: only its own line names them."""
    memory_share: bool = True
    """Ask for a GPU's share of the node's memory when the job names none; false: leave it to the site's default."""
    cpu_share: bool = True
    """Ask for a GPU's share of the node's CPUs when the job names none; false: leave it to the site's default."""
    tasks: bool = True
    """Whether --ntasks-per-node may stand among the options (else only srun gets it)."""
    partition: Literal["named", "optional", "never"] = "named"
    """Whether a partition is named: always, only when the job names one, or never."""
    required: tuple[
        Literal["account", "partition", "qos", "time", "constraint", "reservation", "gpu_type"], ...
    ] = ()
    """Every job names these: without them the site refuses it, or gives something else than its documentation advises."""
    forbidden: tuple[Word, ...] = ()
    """sbatch options that the site refuses, by their long names."""
    account: AccountRule | None = None
    """How the names of accounts look."""
    constraint: Text | None = None
    """What every job's --constraint holds."""
    qos: Word | None = None
    """The QOS of a job that names none."""
    whole_nodes: bool = False
    """Nodes are given whole (--exclusive)."""
    login_shell: bool = False
    """`module` exists only in login shells: the script starts with `bash -l`."""
    address_suffix: Word | None = None
    """What is appended to a host's name for the fast network (`i` at Juelich)."""
    launcher: Literal["torchrun", "srun"] = "torchrun"
    """What starts one process per GPU where either would do; srun where the site advises against torchrun in it."""
    srun_options: tuple[Text, ...] = ()
    """Further options of every srun, one word each."""
    options: dict[Word, OptionValue] = Field(default_factory=dict)
    """Further sbatch options of every job, by their long names."""
