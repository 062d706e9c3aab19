"""The questions of planning, rendering and readers of commands to a launcher, answered as for one agent on each node.

The standard library alone, but for types: stand-ins for Slurm read command lines by it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from slurmgpu.errors import PlanError
from slurmgpu.lines.command import program_name, python_command, runner_length
from slurmgpu.lines.options import Line, Table
from slurmgpu.quoting import job_path, shell_word

if TYPE_CHECKING:
    from slurmgpu.models.environment import Environment
    from slurmgpu.models.job import Job
    from slurmgpu.models.plan import Plan
    from slurmgpu.models.script_facts import ScriptFacts

__all__ = [
    "Counts",
    "LaunchLine",
    "Launcher",
    "Launching",
    "Numbers",
    "Started",
    "entrypoint",
    "first_of",
    "interpreter",
    "runner",
    "spread",
    "started_here",
    "started_twice",
    "whole_command",
]

Counts = Literal["nodes", "on each", "in all"]
"""Units of a number given to a launcher: nodes, processes on each of them, processes on all."""


class Launching(NamedTuple):
    """The launcher, the reason for it, and what the user should know."""

    launcher: str
    why: str
    warnings: tuple[str, ...] = ()
    spawns: bool = False
    """True if the command starts a process for each GPU of its node by itself."""
    tasks_per_node: int | None = None
    """As many as the script wants, whatever the GPUs; None: one per GPU."""


class LaunchLine(NamedTuple):
    """A launching program with its options, and what it starts."""

    launcher: Launcher
    runner: tuple[str, ...]
    """Words before it: ``uv run``, ``env NAME=value``."""
    program: tuple[str, ...]
    """Its own words: ``accelerate launch``, ``python -m accelerate.commands.launch``, ``deepspeed``."""
    words: tuple[str, ...]
    """Words after them."""
    line: Line
    """Its options; their indices are those of ``words``."""

    @property
    def target(self) -> tuple[str, ...]:
        """Return the script that it starts, or by ``--module`` the module, with its arguments."""
        return self.words[self.line.end :]

    def without(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return its options as they were written, less those of these long names."""
        names = frozenset(names)
        kept = (one for one in self.line.options if one.name not in names)
        return tuple(word for one in kept for word in self.words[one.at : one.value_at + 1])


class Started(NamedTuple):
    """The processes that a launcher in a command starts."""

    total: int | None
    """Over all nodes; None: the command does not say."""
    per_node: int | None
    """On a node where it starts the most."""
    why: str


class Numbers(NamedTuple):
    """The numbers that a launcher in a command is given."""

    processes: tuple[int, str] | None = None
    """On each node, and the option that says so."""
    nodes: tuple[str, str] | None = None
    """As written (2, 1:4, $NNODES), and the option."""


class Launcher:
    """A way to start a job's processes: by default srun starts one agent on each node, and that a process per GPU.

    A module of this folder, or of a user's ``extensions``, holds one instance as ``LAUNCHER``; the module's name is
    what a job writes as ``launch``. A subclass overrides what differs.
    """

    # How it is rendered.

    template = "launcher/start.sh.j2"
    """Template of the start of the processes in a script."""
    by_srun = True
    """True if srun starts it, a task or more on each node; if not, the batch shell does, once, on the first."""
    without_srun = False
    """True if it starts processes on other nodes by itself, so that no option of srun reaches them."""
    on_every_node = True
    """True if its processes are on every node, or on the first alone."""
    one_task_each = True
    """True if srun starts one task of it on each node, and no other number may be asked for."""
    needs_python = False
    """True if it starts Python scripts only."""
    needs_pmi = False
    """True if srun has to tell MPI's processes who is who (``--mpi``)."""

    tasks_begin = 0
    """Where in its lines a task's own command begins: what runs each task under a profiler comes there."""
    task_rank = "SLURM_PROCID"
    """The variable that numbers its tasks."""

    # How it is found in a command that a user wrote.

    programs: tuple[str, ...] = ()
    """Names by which a command starts it, the usual one first; nothing: no command does."""
    modules: tuple[str, ...] = ()
    """The same as modules of ``python -m``."""
    subcommand: str | None = None
    """The word behind the program by which it launches; a module of that name's own needs none."""
    options: ClassVar[Table | None] = None
    """Its options in a command; what follows them is what it starts."""
    figures: ClassVar[Mapping[str, Counts]] = {}
    """The options that are numbers, by their long names, and what each counts."""
    by_ssh = False
    """True if it reaches the nodes that it is told of by itself."""
    spreads = False
    """True if it starts processes on all nodes of a job, from a command on the first."""
    across_nodes: str | None = None
    """The way to start a command of it on several nodes, in words; None: the command itself stays on the first."""
    in_shell: ClassVar[re.Pattern[str] | None] = None
    """Its form in the text of ``sh -c``, by which a script starts it on each of several nodes."""

    def check(self, name: str, job: Job, environment: Environment) -> None:
        """PlanError where it cannot start the job; ``name`` is its own."""
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
        """Return for how many nodes MASTER_ADDR and MASTER_PORT are set; None where nothing needs them."""
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
        """Return what follows srun and the container, as lines of shell that end with the command's own: each subclass's own."""
        raise NotImplementedError

    def values(self, plan: Plan) -> dict[str, object]:
        """Further values for its template, below ``launch``."""
        return {}

    def suits(self, script: ScriptFacts, processes: int, nodes: int) -> Launching | None:
        """Return how a Python script is started, where this one is made for it; None where it is not.

        At most one shipped launcher but torchrun says yes; torchrun starts all others.
        """
        return None

    def read(self, words: tuple[str, ...]) -> LaunchLine | None:
        """Take a command apart that starts this launcher; None for any other."""
        at, python = runner_length(words), python_command(words)
        if self.options is None or not words:
            return None
        if python is None:
            if program_name(words[at]) not in self.programs:
                return None
            end = at + 1
        elif python.module in self.modules:
            end = len(words) - len(python.arguments)
        else:
            return None
        if self.subcommand is not None:
            if words[end : end + 1] == (self.subcommand,):
                end += 1
            elif python is None or not str(python.module).endswith(f".{self.subcommand}"):
                return None  # accelerate config, accelerate test
        return LaunchLine(self, words[:at], words[at:end], words[end:], self.options.read(words[end:]))

    def started(self, words: tuple[str, ...], gpus: int, nodes: int) -> Started | None:
        """Return what a command of it starts, in a job of so many nodes with so many GPUs each; None: it is not known."""
        line = self.read(words)
        if line is None:
            return None
        told = next((given for name in self._processes if (given := line.line.given.get(name))), "")
        return started_here(int(told) if told.isdigit() else max(1, gpus), nodes)

    @property
    def _processes(self) -> list[str]:
        return [name for name, counts in self.figures.items() if counts != "nodes"]

    def numbers(self, given: Mapping[str, str | None], nodes: int | None) -> Numbers:
        """Return the numbers among the options of a command of it, in a job of so many nodes."""
        each = next((name for name in self._processes if (given.get(name) or "").isdigit()), None)
        told = next(
            (name for name, counts in self.figures.items() if counts == "nodes" and given.get(name)), None
        )
        return Numbers(
            (int(given[each] or 1), f"{self._spelled(each)}={given[each]}") if each else None,
            (str(given[told]), f"{self._spelled(told)}={given[told]}") if told else None,
        )

    def _spelled(self, name: str) -> str:
        return "--" + name.replace("-", "_")

    def one_for_each_gpu(self, given: Mapping[str, str | None]) -> bool:
        """Return True if it starts one process for each GPU that it finds, with these options."""
        return False

    def remarks(self, words: tuple[str, ...], script: ScriptFacts | None, gpus: int) -> tuple[str, ...]:
        """Return what the user should know of a command of it that runs as it is, on a node with so many GPUs."""
        return ()

    def over_nodes(
        self, words: tuple[str, ...], script: ScriptFacts | None, nodes: int, gpus: int
    ) -> Launching | None:
        """Return how a command that stays on its node is started on several; None: it cannot be."""
        line = self.read(words)
        if line is None or self.across_nodes is None:
            return None
        name = self.programs[0]
        job = {"nodes": nodes, "on each": gpus, "in all": nodes * gpus}
        numbers = (
            (option, job[self.figures[option.name]])
            for option in line.line.options
            if option.name in self.figures
        )
        changed = (
            f"{option.spelling} {option.value} becomes {number}: the job has {nodes} node{'s' * (nodes > 1)} with "
            f"{gpus} GPU{'s' * (gpus > 1)} each"
            for option, number in numbers
            if number and option.value != str(number)
        )
        return Launching(name, self.across_nodes, (*started_twice(script, name), *changed))

    def faults(
        self, words: tuple[str, ...], line: Line, start: int, nodes: int, instead: Callable[..., str]
    ) -> Iterator[tuple[str, str, bool]]:
        """Yield what cannot work of the values in a command: what is wrong, the next act, and whether that is sure.

        Its options, ``line``, begin at ``start``; ``instead`` spells other words in the command's place.
        """
        return iter(())


def started_here(number: int, nodes: int) -> Started:
    """Return so many processes, all on the node where the command runs."""
    where = ", on the first of the nodes" if nodes > 1 else ""
    return Started(number, number, f"the launcher in the command starts them{where}")


def spread(program: str, total: int | None, nodes: int) -> Started:
    """Return so many processes, spread over the nodes of the job."""
    says = "starts them" if total else "starts them, and the command does not say how many"
    why = f"{program} in the command {says}{' on the nodes of the job' if nodes > 1 else ''}"
    return Started(total, None if total is None else math.ceil(total / nodes), why)


def started_twice(script: ScriptFacts | None, program: str) -> tuple[str, ...]:
    """Return what a launcher does to a script that uses all GPUs by itself."""
    if script is None or script.one_process is None:
        return ()
    does = "starts its own processes" if script.spawns else "uses all GPUs by itself"
    return (
        f"{script.path} {does} ({script.at(script.one_process)}), once in each process that {program} starts; "
        "write command: [python, SCRIPT, ...] and leave launch out",
    )


def first_of(nodes: int) -> str:
    """Return where a command runs that stays on its node, in words."""
    return f"the first of the {nodes} nodes only"


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
