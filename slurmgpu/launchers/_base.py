"""What planning and rendering ask of a launcher, answered as for one agent on each node."""

from __future__ import annotations

from typing import Literal

from slurmgpu.errors import PlanError
from slurmgpu.lines.command import python_command
from slurmgpu.models.environment import Environment
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.quoting import job_path, shell_word

__all__ = ["Launcher", "entrypoint", "interpreter", "runner", "whole_command"]


class Launcher:
    """A way to start a job's processes: by default srun starts one agent on each node, and that a process per GPU.

    A module of this folder, or of a user's ``extensions``, holds one instance as ``LAUNCHER``; the module's name is
    what a job writes as ``launch``. A subclass overrides what differs.
    """

    template = "launcher/start.sh.j2"
    """What lays out the start of the processes in a script."""
    by_srun = True
    """Whether srun starts it, a task or more on each node; if not, the batch shell does, once, on the first."""
    without_srun = False
    """Whether it starts processes on other nodes by itself, so that no option of srun reaches them."""
    on_every_node = True
    """Whether its processes are on every node, or on the first alone."""
    one_task_each = True
    """Whether srun starts one task of it on each node, and no other number may be asked for."""
    needs_python = False
    """Whether it starts Python scripts only."""
    needs_pmi = False
    """Whether srun has to tell MPI's processes who is who (``--mpi``)."""

    tasks_begin = 0
    """Where in its lines a task's own command begins: what runs each task under a profiler comes there."""
    task_rank = "SLURM_PROCID"
    """The variable that numbers its tasks."""

    def check(self, name: str, job: Job, environment: Environment) -> None:
        """PlanError where it cannot start the job; ``name`` is its own."""
        if self.needs_python and job.command is not None and not self.starts(job.command):
            program = job.command[0].rsplit("/", 1)[-1]
            hint = "write command: [python, SCRIPT, ...], or launch: srun or plain"
            if program in {"torchrun", "accelerate", "deepspeed"}:
                hint = f"{program} starts the processes itself: write command: [python, SCRIPT, ...], or launch: plain"
            raise PlanError(
                f"launch: {name} runs Python scripts, and the command begins with {job.command[0]!r}",
                hint=hint,
            )
        container = environment.container
        if self.on_every_node and container is not None and container.mode == "run":
            raise PlanError(
                f"launch: {name} cannot start an image's own runscript (container mode: run)",
                hint="use container mode: exec, and write the whole command",
            )

    def starts(self, command: tuple[str, ...]) -> bool:
        """Return True if it can start the command, where it starts Python scripts only."""
        return python_command(command) is not None

    def tasks(self, name: str, asked: int | None, gpus_per_node: int, wanted: int | None) -> tuple[int, str]:
        """Tasks on each node, and why; ``asked`` by the job, ``wanted`` by its script. PlanError where they cannot be."""
        if asked not in (None, 1):
            raise PlanError(
                f"resources.tasks_per_node: {asked} and launcher {name} exclude each other: "
                f"{name} itself starts a process per GPU",
                hint="leave tasks_per_node out, or use launch: srun",
            )
        return 1, f"{name} starts the processes of a node"

    def processes(self, gpus_per_node: int, tasks: int) -> int:
        """Processes on each node where it runs."""
        return max(1, gpus_per_node)

    def cpus_of_a_task(self, plan: Plan) -> int | None:
        """CPUs of each task that srun starts; None: Slurm's default."""
        return plan.cpus_per_task

    def meeting(self, plan: Plan) -> Literal["one", "many"] | None:
        """Whether MASTER_ADDR and MASTER_PORT are set, and for how many nodes; None: nobody needs them."""
        return "many" if plan.nodes > 1 else "one"

    def preparation(self, plan: Plan) -> str | None:
        """Return the template of what comes before that, once there is a meeting point; None: nothing does."""
        return None

    def passes_on(self, plan: Plan) -> dict[str, str] | None:
        """Return what the batch shell does to the processes for each signal that it gets; None: they get their own.

        Slurm signals the steps itself. But the shell alone may be meant (scancel --batch), and where cgroups track
        processes it is the only one of its step to be told.
        """
        return None

    def srun_options(self, plan: Plan) -> tuple[str, ...]:
        """Options that its srun needs, one word each."""
        return ()

    def lines(self, plan: Plan) -> list[str]:
        """Return what follows srun and the container, as lines of shell that end with the command's own."""
        raise NotImplementedError

    def values(self, plan: Plan) -> dict[str, object]:
        """Further values for its template, below ``launch``."""
        return {}


def interpreter(plan: Plan) -> str:
    """Return the Python that runs the command or the training, as a word of the shell."""
    if plan.command is not None:
        python = python_command(plan.command)
        return shell_word(python.interpreter) if python else "python3"
    return job_path(plan.environment.python.interpreter)


def runner(plan: Plan) -> str:
    """Return what comes before the interpreter, with a blank behind it: ``uv run ``."""
    python = python_command(plan.command) if plan.command is not None else None
    return "".join(f"{shell_word(word)} " for word in python.runner) if python else ""


def entrypoint(plan: Plan) -> str:
    """Return the module of a training, with its arguments."""
    return '"$entrypoint" --prepare' if plan.prepare_only else '"$entrypoint"'


def whole_command(plan: Plan) -> str:
    """Return the command as it was given, or the interpreter with the training's module."""
    if plan.command is None:
        return f"{interpreter(plan)} -m {entrypoint(plan)}"
    return " ".join(map(shell_word, plan.command))
