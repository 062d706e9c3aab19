"""The job resolved on the cluster: every sbatch option, each derived value with its reason."""

from __future__ import annotations

import re
from typing import Any

from slurmgpu.models.base import Model
from slurmgpu.models.environment import Environment, Packed
from slurmgpu.models.job_parts import Notify, Profile, Stage
from slurmgpu.models.units import Duration, Memory

__all__ = ["Option", "Plan", "PlannedStep", "Reason"]


class Option(Model):
    """One sbatch option: its long name, its value (None: a flag), and why."""

    name: str
    value: str | None
    why: str

    @classmethod
    def of(cls, name: str, value: str | None, why: str) -> Option:
        """One whose values are known to be text."""
        return cls.model_construct(name=name, value=value, why=why)

    def __str__(self) -> str:
        return f"--{self.name}" if self.value is None else f"--{self.name}={self.value}"


class Reason(Model):
    """One derived value that is not an sbatch option: what, the value, and why."""

    what: str
    value: str
    why: str

    @classmethod
    def of(cls, what: str, value: str, why: str) -> Reason:
        """One whose values are known to be text."""
        return cls.model_construct(what=what, value=value, why=why)


class PlannedStep(Model):
    """A command that runs beside others in the job, and its share of it."""

    name: str
    command: tuple[str, ...]
    component: int
    first_node: int
    """Its first node, counted from 0 within its component."""
    nodes: int
    gpus_per_node: int
    tasks_per_node: int
    processes_per_node: int
    spawned_per_node: int = 0
    cpus_per_task: int | None
    memory: Memory | None
    """On each node; None: it shares what the job has."""
    launcher: str
    srun_options: tuple[str, ...]
    gres: str | None = None
    """The GPUs that srun asks for on each node; None: it has all that the job has there."""
    own_gpus: int | None = None
    """GPUs of each task, which Slurm hides from the others; None: each task sees all of its step's on the node."""
    background: bool = False
    exact: bool = False
    """True if it has a share of its nodes, next to other steps; else all of it."""
    overlap: bool = False
    own_folder: bool = False
    """True if it writes into a folder of its own below the run directory."""


class Plan(Model):
    """Everything that a script is made of; nothing is derived after this."""

    cluster: str
    name: str
    partition: str | None
    nodes: int
    gpus_per_node: int
    gpu_type: str | None
    tasks_per_node: int
    """Tasks that Slurm starts on a node: 1 for torchrun and plain."""
    processes_per_node: int
    """Processes that the launcher starts on a node."""
    spawned_per_node: int = 0
    """Processes that the command starts by itself, one for each GPU of its node; 0: none."""
    cpus_per_task: int | None
    memory: Memory | None
    """Memory per node, where it is known."""
    time: Duration | None
    options: tuple[Option, ...]
    """sbatch's options in the order of the script."""
    launcher: str
    own_gpus: int | None = None
    """GPUs of each task, which Slurm hides from the others; None: each task sees all of its node's."""
    srun_options: tuple[str, ...] = ()
    command: tuple[str, ...] | None
    train: dict[str, Any] | None
    """Content of train.json."""
    own_loop: str | None = None
    """Where the command's script imports slurmgpu.training, which then travels with the run; None: nowhere."""
    prepare_only: bool = False
    """True if the entrypoint only prepares the task, and trains nothing."""
    environment: Environment
    environment_name: str | None = None
    stage: Stage | None = None
    """Files that go to the nodes' own disks, and come back from there."""
    packed: Packed | None = None
    """The Python environment that is unpacked on the nodes' own disks."""
    local_scratch: str | None = None
    """The folder there, where the site names one."""
    debug: bool = False
    """True if the processes report more when they fail."""
    profile: Profile | None = None
    """The profiler that runs them."""
    sample: int | None = None
    """Seconds between samples of what the job uses; None: it is not sampled."""
    variables: dict[str, str]
    secrets: tuple[str, ...] = ()
    notify: Notify | None = None
    """The webhook that the script writes to at its end; its address is a secret, and only the secret's name is here."""
    work_dir: str
    output: str | None = None
    error: str | None = None
    log_folders: tuple[str, ...] = ()
    """Folders that must be there when Slurm opens the log: absolute, or against the folder of submission."""
    restart_limit: int | None = None
    """The most restarts; None: the job is never started twice."""
    restart_on: tuple[str, ...] = ()
    """The reasons that count: timeout, preemption, node_failure."""
    tended: bool = False
    """True if the script knows when the time is up, outlives the signals that end a job, and requeues it if it may."""
    login_shell: bool = False
    address_suffix: str | None = None
    module_init: str | None = None
    """The site's own file that defines `module`."""
    gpu_hours: float | None = None
    """The most GPU-hours, if it runs to its time limit, over all tasks of an array; None: not known."""
    charge: float | None = None
    """The most that the site charges for them; None: not known."""
    charge_unit: str | None = None
    exact: bool = False
    """True if Slurm is asked for exactly what the job says, and nothing was derived."""
    components: tuple[tuple[Option, ...], ...] = ()
    """The options of a heterogeneous job's further components."""
    steps: tuple[PlannedStep, ...] = ()
    """Steps that run side by side, in place of command and train."""
    script: str | None = None
    """The body that runs as it is, in place of command and train."""
    shebang: str | None = None
    """Interpreter of that body."""
    enters_work_dir: bool = True
    """True if the script changes into the work folder itself."""
    reasons: tuple[Reason, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def slug(self) -> str:
        """The name with nothing in it that a folder's name should not have."""
        return re.sub(r"[^A-Za-z0-9_.-]+", "-", self.name).strip("-.")[:64] or "job"

    @property
    def gpus(self) -> int:
        """GPUs over all nodes."""
        return self.nodes * self.gpus_per_node

    def option(self, name: str) -> str | None:
        """Return the value of an sbatch option, or None when it is not among them."""
        return next((option.value for option in self.options if option.name == name), None)

    def of_step(self, step: PlannedStep) -> Plan:
        """One of its steps as a job of its own, as large as its share."""
        same = (
            *(
                "command",
                "nodes",
                "gpus_per_node",
                "tasks_per_node",
                "processes_per_node",
                "spawned_per_node",
            ),
            *("cpus_per_task", "memory", "launcher", "srun_options", "own_gpus"),
        )
        update = {name: getattr(step, name) for name in same} | {"steps": ()}
        return self.model_copy(update=update)
