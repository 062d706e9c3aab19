"""Resources of a job, its partition, and the binding and distribution of its tasks (srun(1))."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated, NamedTuple, TypedDict

from pydantic import Field, model_validator
from typing_extensions import Self

from slurmgpu.models.base import TEXT, Checked, Hinted, JobOption, Model, Word
from slurmgpu.models.options import OWN_OPTIONS, PASSED_ON, ROWS
from slurmgpu.models.units import (
    Account,
    Constraint,
    Duration,
    GpuRequest,
    Gres,
    Memory,
    PartitionName,
    Qos,
    ReservationName,
    option_length,
    wckey,
)

__all__ = [
    "Component",
    "CpuBind",
    "Distribution",
    "GpuBind",
    "Hint",
    "MemBind",
    "Positive",
    "ResourceSettings",
    "Resources",
    "check_options",
    "entries",
    "gpus_of_a_task",
]


_NUMBER, _MASK = r"(?:0x[0-9a-fA-F]+|\d+)", r"(?:0x)?[0-9a-fA-F]+"
_TIMES = r"(?:\*[1-9]\d*)?"


class _Words(NamedTuple):
    """Values of an option: words that say how it reports, then one that says what it does."""

    option: str
    before: tuple[str, ...]
    alone: tuple[str, ...]
    listed: dict[str, str]
    """Before a colon; and what each entry of the list behind it looks like."""
    counted: tuple[str, ...]
    """Before a colon; a number follows."""
    say: str

    def check(self, value: str) -> str:
        """Return the value; Hinted for one that the manual does not have."""
        *before, last = _parts(value)
        wrong = next((word for word in before if word not in self.before), None)
        if wrong is None and not self._is_known(last):
            wrong = last
        if wrong is None:
            return value
        name = wrong.partition(":")[0]
        close = get_close_matches(name, (*self.alone, *self.listed, *self.counted, *self.before), 1, 0.6)
        raise Hinted(
            f"{wrong!r} is not a value of --{self.option}",
            hint=(f"did you mean {close[0]}? " if close and close[0] != name else "") + f"write {self.say}",
        )

    def _is_known(self, word: str) -> bool:
        name, colon, behind = word.partition(":")
        if not colon:
            return word in self.alone or word in self.before
        entry = self.listed.get(name)
        if entry is not None:
            return re.fullmatch(f"{entry}{_TIMES}(?:,{entry}{_TIMES})*", behind) is not None
        return name in self.counted and re.fullmatch(r"[1-9]\d*", behind) is not None


def _parts(value: str) -> list[str]:
    """``verbose,map_cpu:0,1``: the words before the one that says what to do, and that one with its list."""
    place = value.rfind(",", 0, value.find(":") if ":" in value else len(value))
    return [*(value[:place].split(",") if place >= 0 else []), value[place + 1 :]]


_CPU = _Words(
    "cpu-bind",
    ("quiet", "q", "verbose", "v"),
    ("none", "no", "sockets", "cores", "threads", "ldoms", "rank", "rank_ldom"),
    {"map_cpu": _NUMBER, "mask_cpu": _MASK, "map_ldom": _NUMBER, "mask_ldom": _MASK},
    (),
    "none, sockets, cores, threads, ldoms or rank_ldom, or a list with an entry for each task of a node: "
    "map_cpu:0,8,16,24 or mask_cpu:0xff,0xff00",
)
_GPU = _Words(
    "gpu-bind",
    ("verbose",),
    ("closest", "none"),
    {"map_gpu": _NUMBER, "mask_gpu": _MASK},
    ("single", "per_task"),
    "none, closest, single:1 (tasks of a GPU), per_task:1 (GPUs of a task), or a list with an entry for each task of a "
    "node: map_gpu:0,1,2,3",
)
_MEM = _Words(
    "mem-bind",
    ("quiet", "q", "verbose", "v", "prefer", "p"),
    ("none", "no", "local", "rank"),
    {"map_mem": _NUMBER, "mask_mem": _MASK},
    (),
    "none or local, or a list with an entry for each task of a node: map_mem:0,1,2,3",
)
_HINT = _Words(
    "hint",
    (),
    ("compute_bound", "memory_bound", "multithread", "nomultithread"),
    {},
    (),
    "compute_bound, memory_bound, multithread or nomultithread",
)


def _distribution(value: str) -> str:
    first, then = r"(?:\*|block|cyclic|arbitrary)", r"(?:\*|block|cyclic|fcyclic)"
    if re.fullmatch(rf"plane=[1-9]\d*|{first}(?::{then}){{0,2}}(?:,(?:[Nn]o)?[Pp]ack)?|(?:No)?Pack", value):
        return value
    raise Hinted(
        f"{value!r} is not a value of --distribution",
        hint="write how tasks go to nodes, and after a colon how they go to the sockets there, each block or cyclic: "
        "block, cyclic, block:cyclic; or plane=4",
    )


CpuBind = Annotated[str, Checked(*TEXT, _CPU.check)]
GpuBind = Annotated[str, Checked(*TEXT, _GPU.check)]
MemBind = Annotated[str, Checked(*TEXT, _MEM.check)]
Hint = Annotated[str, Checked(*TEXT, _HINT.check)]
Distribution = Annotated[str, Checked(*TEXT, _distribution)]


def _list(value: str) -> list[tuple[str, int]]:
    """Return the entries of a list, each with how often it is repeated."""
    found = re.search(r"(?:map|mask)_\w+:(.*)", value)
    parts = [entry.partition("*") for entry in found[1].split(",")] if found else []
    return [(entry, int(times or 1)) for entry, _, times in parts]


def entries(value: str) -> int | None:
    """For how many tasks of a node a list has entries; None where the value is no list."""
    listed = _list(value)
    return sum(times for _, times in listed) if listed else None


def gpus_of_a_task(value: str) -> int | None:
    """Return how many GPUs a binding leaves each task, the most of any; None where it does not say."""
    kind, _, behind = _parts(value)[-1].partition(":")
    if kind == "per_task":
        return int(behind)
    if kind in ("single", "map_gpu"):
        return 1
    return max(bin(int(entry, 16)).count("1") for entry, _ in _list(value)) if kind == "mask_gpu" else None


Positive = Annotated[int, Field(ge=1)]


class Resources(Model):
    """Resources of a job; what is left out is derived and explained by the planner."""

    gpus: GpuRequest | None = None
    """GPUs in all, as in `gpus: 2` or `gpus: a100:2`, in equal shares on as few nodes as hold them; the cluster's dialect
    says by which option (`--gres`, `--gpus`)."""
    gpus_per_node: GpuRequest | None = None
    """GPUs on each node, as in `gpus_per_node: 4` or `gpus_per_node: a100:4`; the cluster's dialect says by which option
    (`--gres`, `--gpus-per-node`)."""
    gpus_per_task: GpuRequest | None = None
    """GPUs of each task (`--gpus-per-task`); in an exact job only."""
    gpu_type: Word | None = None
    """The type of GPU, where the request does not name it, as in `gpu_type: a100`; left out, whole GPUs of any type that
    fits, never slices."""
    gpu_memory: Memory | None = None
    """The least memory that one GPU must have, as in `gpu_memory: 40G`; where the nodes are described, only types whose
    memory is stated count."""
    nodes: Positive | None = None
    """Number of nodes (`--nodes`); left out, as few as hold the GPUs, or 1."""
    tasks_per_node: Positive | None = None
    """Tasks on each node (`--ntasks-per-node`) for the launchers srun and plain; left out, srun starts one per GPU."""
    tasks: Positive | None = None
    """Tasks in all (`--ntasks`); in an exact job only."""
    cpus_per_task: Positive | None = None
    """CPUs of each task (`--cpus-per-task`); with torchrun a task is all of a node. Left out, a GPU's share of the node
    for each GPU."""
    cpus_per_gpu: Positive | None = None
    """CPUs for each GPU, instead of `cpus_per_task`; the cluster's dialect says by which option (`--cpus-per-task`,
    `--cpus-per-gpu`)."""
    memory: Memory | None = None
    """Memory on each node (`--mem`), as in `memory: 64G`; a bare number is MiB, 0 all of it. Left out, a GPU's share of
    the node for each GPU."""
    memory_per_cpu: Memory | None = None
    """Memory for each CPU, instead of `memory`, as in `memory_per_cpu: 4G` (`--mem-per-cpu`, or `--mem` in the cluster's
    dialect)."""
    memory_per_gpu: Memory | None = None
    """Memory for each GPU, instead of `memory`, as in `memory_per_gpu: 60G` (`--mem-per-gpu`, or `--mem` in the cluster's
    dialect)."""
    time: Duration | None = None
    """The time limit (`--time`): minutes, or any of Slurm's spellings, as in `time: 2-12:30`; left out, the partition's
    default."""
    partition: PartitionName | None = None
    """The partition (`--partition`), or several with commas; left out, the best of the profile's that would start the job,
    else Slurm's default."""
    account: Account | None = None
    """The account (allocation, project) to charge (`--account`), kept in lower case; left out, yours where the site
    requires one, else Slurm's default."""
    qos: Qos | None = None
    """The quality of service (`--qos`), in lower case; left out, the profile's usual one, else Slurm's default."""
    constraint: Constraint | None = None
    """Features that the nodes must have (`--constraint`), as in `constraint: nvlink|sxm`; those that the site demands are
    added."""
    reservation: ReservationName | None = None
    """The reservation to run in (`--reservation`), or several with commas."""
    gres: tuple[Gres, ...] = ()
    """Further generic resources of each node (`--gres`), as in `gres: ["lscratch:100"]`; GPUs among them in an exact job only."""
    exclusive: bool = False
    """Ask for whole nodes (`--exclusive`)."""
    cpu_bind: CpuBind | None = None
    """The CPUs that srun binds each task to (`--cpu-bind`, of srun alone), as in `cpu_bind: cores` or
    `cpu_bind: "map_cpu:0,8,16,24"`, with an entry for each task of a node; left out, the profile's for jobs with one task
    per GPU on whole nodes, else Slurm's default."""
    gpu_bind: GpuBind | None = None
    """The GPUs that each task gets (`--gpu-bind`), as in `gpu_bind: closest`; left out, each task sees all of its node's."""
    mem_bind: MemBind | None = None
    """The memory that each task uses (`--mem-bind`, on srun's line), as in `mem_bind: local`."""
    hint: Hint | None = None
    """Counting and binding of CPUs (`--hint`), as in `hint: nomultithread` for one thread of each core."""
    distribution: Distribution | None = None
    """Distribution of tasks over nodes, sockets and cores (`--distribution`), as in `distribution: "block:cyclic"`."""

    segment: Positive | None = None
    """Number of nodes at a time that share a block of the network, such as the rack of a GB200 NVL72 (`--segment`, from Slurm
    24.05 on); `nodes` is a multiple of it. Left out, as the partition's profile says, else Slurm's default."""

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        for names in (
            ("memory", "memory_per_cpu", "memory_per_gpu"),
            ("cpus_per_task", "cpus_per_gpu"),
        ):
            given = [name for name in names if getattr(self, name) is not None]
            if len(given) > 1:
                raise ValueError(f"{' and '.join(given)} exclude each other; keep one of them")
        types = {
            request.type
            for request in (self.gpus, self.gpus_per_node)
            if request is not None and request.type is not None
        } | ({self.gpu_type} if self.gpu_type else set())
        if len(types) > 1:
            raise ValueError(f"two types of GPU are asked for ({', '.join(sorted(types))}); keep one")
        if self.gpu_memory is not None and not self.gpu_memory.mib:
            raise ValueError(
                "gpu_memory: 0 is not an amount of memory; write 40G, for example, or leave it out"
            )
        if self.hint is not None and self.cpu_bind not in (None, "verbose", "v", "quiet", "q"):
            raise Hinted(
                f"--hint={self.hint} and --cpu-bind={self.cpu_bind} exclude each other: srun drops the hint",
                hint="keep one of the two; sbatch: {threads-per-core: 1} with cpu_bind takes one thread of each core",
            )
        if self.gpus and self.gpus_per_node:
            per_node, total = self.gpus_per_node.count, self.gpus.count
            if total != per_node * (self.nodes or 1):
                raise ValueError(
                    f"gpus: {total} is not nodes: {self.nodes or 1} x gpus_per_node: {per_node}; leave gpus out"
                )
        return self

    @property
    def wanted_gpu_type(self) -> str | None:
        """The type of GPU, wherever it was written."""
        for request in (self.gpus, self.gpus_per_node):
            if request is not None and request.type is not None:
                return request.type
        return self.gpu_type

    def check(self, exact: bool) -> Self:
        """ValueError for what only an exact job may say, or only a planned one."""
        if exact:
            # No option of sbatch says these by itself.
            for name in ("gpu_type", "gpu_memory"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name}: {getattr(self, name)} is not an option of sbatch, and an exact job has nothing derived; "
                        "write the type into the request (gpus_per_node: a100:2) or a constraint"
                    )
            return self
        for entry in self.gres:
            if entry.name == "gpu":
                raise ValueError(
                    f"gres: '{entry}' asks for GPUs; write them as gpus or gpus_per_node, or add exact: true"
                )
        for name, instead in (("tasks", "nodes and tasks_per_node"), ("gpus_per_task", "gpus_per_node")):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name}: {getattr(self, name)} is for exact jobs; write {instead}, or add exact: true"
                )
        return self


class ResourceSettings(TypedDict, total=False):
    """The fields of ``Resources`` as keywords of ``slurmgpu.submit``."""

    gpus: int | str
    gpus_per_node: int | str
    gpus_per_task: int | str
    gpu_type: str
    gpu_memory: int | str
    nodes: int
    tasks_per_node: int
    tasks: int
    cpus_per_task: int
    cpus_per_gpu: int
    memory: int | str
    memory_per_cpu: int | str
    memory_per_gpu: int | str
    time: int | str
    partition: str
    account: str
    qos: str
    constraint: str
    reservation: str
    gres: Sequence[str]
    exclusive: bool
    cpu_bind: str
    gpu_bind: str
    mem_bind: str
    hint: str
    distribution: str
    segment: int


_INSTEAD = {row.option: row.instead for row in ROWS if row.instead}
_WHOLE_EXPORT = r"[A-Za-z_][A-Za-z0-9_]*(?:,[A-Za-z_][A-Za-z0-9_]*)*"


def check_options(options: dict[str, str | int | bool], exact: bool) -> dict[str, str | int | bool]:
    """ValueError for an option that may not be under ``sbatch``.

    An exact job may hold any, also those with a field of their own: a range of nodes, a placeholder.
    """
    for name, value in options.items():
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*" if exact else r"[a-z][a-z0-9-]*", name):
            raise ValueError(
                f"{name!r} is not a long option of sbatch; write it without dashes in front, in lower case"
            )
        if name in {"hetjob", "packjob"}:
            raise ValueError(f"{name!r} separates components; write them under components:")
        if name in _INSTEAD and not exact:
            raise ValueError(f"{name!r} is worked out here: write {_INSTEAD[name]}, or exact: true")
        if value is False and name in PASSED_ON:
            continue  # it leaves out the cluster's
        if name in OWN_OPTIONS and not exact:
            row = next((row for row in ROWS if row.option == name and row.flags), None)
            flag = f", on the command line {row.flags[-1]}" if row is not None else ""
            raise ValueError(f"{name!r} has a field of its own here: write {OWN_OPTIONS[name]}{flag}")
        if value == "" and not exact:
            raise ValueError(f"{name} is empty; give a value or leave the key out")
        try:
            option_length(str(value))
            if name == "wckey" and not exact:
                wckey(str(value))
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
        if name == "export" and not exact and not re.fullmatch(_WHOLE_EXPORT, str(value)):
            # Slurm cuts such values at commas and keeps quotes (seen on 22.05).
            raise ValueError("export takes ALL, NONE or names of variables; write values under variables:")
    return options


class Component(Model):
    """A further component of a heterogeneous job: resources of its own, beside the job's."""

    resources: Resources = Resources.model_construct()
    """Resources of this component; a planned one has account, QOS, time, reservation and hint of the one before it
    where it names none, as Slurm has it."""
    sbatch: dict[Word, JobOption] = Field(default_factory=dict)
    """Any other sbatch option of this component, by its long name; true: without a value, false: left out."""
