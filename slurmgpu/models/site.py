"""A site: its Slurm and software, and how it wants to be asked."""

import datetime
import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from slurmgpu.models.base import Model, OptionValue, Text, Word
from slurmgpu.models.units import Duration

__all__ = [
    "AccountRule",
    "Carbon",
    "Dialect",
    "Reservation",
    "Retired",
    "SlurmSetup",
    "Software",
    "Source",
]

_Day = Annotated[
    datetime.date,
    BeforeValidator(lambda value: datetime.date.fromisoformat(value) if isinstance(value, str) else value),
]


_ROUGHLY = re.compile(r"\d{4}(-(0[1-9]|1[0-2]))?|unknown")


def _own_day(value: object) -> object:
    text = str(value) if isinstance(value, int) else value
    if not isinstance(text, str) or _ROUGHLY.fullmatch(text):
        return text
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no day (YYYY-MM-DD), month or year; write unknown where it states none"
        ) from None


class Source(Model):
    """Where figures come from, and how old they are: figures typed from documentation age."""

    text: Text
    """The page, file or command."""
    date: Annotated[datetime.date | str, BeforeValidator(_own_day)]
    """The source's own date: the day of its commit, or what the page states (YYYY-MM-DD, YYYY-MM or YYYY); `unknown` where it
    states none. When it was read says nothing about its age."""
    read: _Day | None = None
    """The day on which it was read (YYYY-MM-DD)."""

    def days_old(self, today: datetime.date) -> int | None:
        """Return its least age; None: it states no date."""
        if isinstance(self.date, datetime.date):
            return (today - self.date).days
        if self.date == "unknown":
            return None
        year, month = (int(part) for part in f"{self.date}-12"[:7].split("-"))
        after = datetime.date(year + month // 12, month % 12 + 1, 1)
        return max((today - after).days + 1, 0)


class Carbon(Model):
    """Emissions of the site's electricity, for `slurmgpu report`."""

    grams_per_kwh: Annotated[float, Field(ge=0)]
    """Grams of CO2 equivalent for a kWh that its machines take, cooling included where the site says so."""
    source: Source
    """Source and date of the figure, which changes from year to year."""


class Retired(Model):
    """The end of a cluster, as its site says."""

    date: _Day
    """The day from which no job runs there (YYYY-MM-DD)."""
    successor: Word | None = None
    """The profile of the cluster that follows it; left out, none does."""
    source: Text | None = None
    """The page that says so."""


class SlurmSetup(Model):
    """Configuration of Slurm, as far as it decides what happens to a job (slurm.conf(5))."""

    release: Text | None = None
    """Its version, as in `release: 24.11.5`; where it is stated, nodes have no features and generic resources but those
    listed."""
    memory_is_consumable: bool | None = None
    """True if memory is allocated (CR_..._Memory); false: a request only has to fit the node."""
    enforces: tuple[Word, ...] = ()
    """Rules that accounting enforces (AccountingStorageEnforce), as in `enforces: [associations, limits, qos]`."""
    refuses_over_limits: Literal["no", "any", "all"] | None = None
    """True if a job over a partition's limits is refused (EnforcePartLimits); else it waits for ever."""
    max_array_size: Annotated[int, Field(ge=1)] | None = None
    """One more than the largest index of a job array (MaxArraySize)."""
    kill_wait: Duration | None = None
    """The time between SIGTERM and SIGKILL at the time limit (KillWait)."""
    requeues: bool | None = None
    """True if jobs are requeued unless they say otherwise (JobRequeue)."""
    preemption: Text | None = None
    """Type and mode of preemption (PreemptType, PreemptMode), as in `preemption: "preempt/qos, REQUEUE"`."""
    private: tuple[Word, ...] = ()
    """Data of others that users cannot see (PrivateData), as in `private: [jobs, usage]`."""


class Software(Model):
    """Facts about the site that Slurm does not know."""

    module_system: Literal["lmod", "tcl", "none"] | None = None
    """lmod: Lmod; tcl: Environment Modules; none: there are no modules."""
    module_init: Text | None = None
    """The file that defines `module` in a shell, where it is in none of the usual places, as in
    `module_init: /opt/site/lmod/init/bash`."""
    modules: tuple[Text, ...] = ()
    """Modules that PyTorch jobs may want, as in `modules: [cuda/12.4, pytorch/2.9]`."""
    containers: tuple[Word, ...] = ()
    """Container runtimes on PATH, as in `containers: [apptainer]`."""
    local_scratch: Text | None = None
    """The folder on each node's own disk, as in `local_scratch: /local/$USER`; left out, jobs take $SLURM_TMPDIR, $TMPDIR
    or /tmp."""
    scratch: Text | None = None
    """The folder where runs should go, as in `scratch: /scratch/$USER`."""
    network_interface: Word | None = None
    """The network interface over which nodes reach each other, as in `network_interface: ib0`, for NCCL, RCCL and gloo; left
    out, each chooses by itself."""


class Reservation(Model):
    """Nodes set apart for some time."""

    partition: Word | None = None
    """The partition of its nodes."""
    nodes: Annotated[int, Field(ge=0)] | None = None
    """Number of its nodes."""
    names: Text | None = None
    """The names of its nodes, as a host list of Slurm's, as in `names: "n[001-018]"`."""
    start: Text | None = None
    """When it begins, in the cluster's own time."""
    end: Text | None = None
    """When it ends, in the cluster's own time."""
    accounts: tuple[Word, ...] = ()
    """Accounts that may use it."""
    users: tuple[Word, ...] = ()
    """Users who may use it."""


class AccountRule(Model):
    """Form of the names of accounts here; what a job's account lacks is added, or asked for."""

    suffix: Text | None = None
    """Suffix of every account, as in `suffix: _g`; added where it is missing."""
    suffix_by_gpu_type: dict[Word, Text] = Field(default_factory=dict)
    """Suffix of an account for jobs on a type of GPU, as in `suffix_by_gpu_type: {a100: "@a100"}`; added, or put in
    place of another type's."""
    other_suffixes: tuple[Text, ...] = ()
    """Suffixes of accounts that are not for these partitions, as in `other_suffixes: [-cpu]`; `suffix` takes its place."""
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
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        return pattern


class Dialect(Model):
    """The form in which a site wants to be asked; every option can be left out."""

    gpus: Literal["gres", "gpus-per-node", "gpus", "gpus-per-task", "srun", "none"] = "gres"
    """The option that asks for GPUs. Where nodes are given whole, srun: only srun's own line asks, for each task; none:
    nothing does."""
    gpu_type_by: Literal["request", "constraint"] = "request"
    """Choice of a type of GPU: in the request (`--gres=gpu:a100:2`), or by `--constraint`."""
    gpu_memory_gres: Word | None = None
    """The generic resource that asks for memory of a GPU, as in `gpu_memory_gres: gpumem`; left out, the site has none."""
    memory: Literal["mem", "mem-per-cpu", "mem-per-gpu", "none"] = "mem"
    """The option that asks for memory; none: the site gives it by itself, and a job that asks for it is refused."""
    cpus: Literal["cpus-per-task", "cpus-per-gpu", "srun", "none"] = "cpus-per-task"
    """The option that asks for CPUs; srun: only srun's own line names them; none: a job that asks for them is refused."""
    memory_share: bool = True
    """Ask for a GPU's share of the node's memory where the job names none; false: leave it to the site's default."""
    cpu_share: bool = True
    """Ask for a GPU's share of the node's CPUs where the job names none; false: leave it to the site's default."""
    tasks: bool = True
    """True if `--ntasks-per-node` may be among the options; false: only srun's own line has it."""
    partition: Literal["named", "optional", "never"] = "named"
    """named: the script always names a partition; optional: only one that the job names or that is not the default; never:
    none."""
    required: tuple[
        Literal["account", "partition", "qos", "time", "constraint", "reservation", "gpu_type"], ...
    ] = ()
    """Options that every job must name: without them the site refuses the job, or gives it no GPU."""
    advised: tuple[Literal["gpu_type"], ...] = ()
    """Options that the site's documentation advises every job to name: without them a job may get other GPUs than meant."""
    forbidden: tuple[Word, ...] = ()
    """sbatch options that the site refuses, by their long names, as in `forbidden: [ntasks, cpus-per-task]`."""
    account: AccountRule | None = None
    """Form of the names of accounts; left out, any name is taken."""
    constraint: Text | None = None
    """Features in every job's `--constraint`."""
    qos: Word | None = None
    """The QOS of a job that names none; left out, Slurm's default."""
    whole_nodes: bool = False
    """True if nodes are given whole: every job says `--exclusive`."""
    login_shell: bool = False
    """True if `module` exists only in login shells: the script then starts with `bash -l`."""
    address_suffix: Word | None = None
    """Suffix of a host's name for the fast network, as in `address_suffix: i` at Juelich."""
    launcher: Literal["torchrun", "srun"] = "torchrun"
    """Launcher of one process per GPU where either would do; srun where the site advises against torchrun inside it."""
    mpi: Word | None = None
    """Value of srun's `--mpi` where it starts MPI programs, as in `mpi: pmix` (`srun --mpi=list` shows which there
    are); left out, the site's default."""
    srun_options: tuple[Text, ...] = ()
    """Further options of every srun, one word each, as in `srun_options: [--cpu-bind=none]`."""
    options: dict[Word, OptionValue] = Field(default_factory=dict)
    """Further sbatch options of every job, by their long names, as in `options: {hint: nomultithread}`; a job's `sbatch:
    {NAME: false}` leaves one out."""
