"""What a command means: which launcher starts its processes, and why."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from slurmgpu.errors import PlanError
from slurmgpu.models.environment import Environment
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Launcher

if TYPE_CHECKING:
    from slurmgpu.planning.reading import ScriptFacts

__all__ = ["Launching", "PythonCommand", "choose_launcher", "own_loop", "python_command", "python_files"]

_PYTHON = r"python(?:\d(?:\.\d+)?)?\Z"
# Programs that start the processes themselves.
_LAUNCHERS = {
    "torchrun",
    "accelerate",
    "deepspeed",
    "mpirun",
    "mpiexec",
    "srun",
    "horovodrun",
    "composer",
    "ray",
}


# The same, run as modules.
_LAUNCHER_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "accelerate.commands.accelerate_cli": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "horovod.runner.launch": "horovodrun",
    "composer.cli.launcher": "composer",
}


class PythonCommand(NamedTuple):
    """A command that is ``python [options] SCRIPT [arguments]`` or ``python -m MODULE [arguments]``."""

    interpreter: str
    options: tuple[str, ...]
    script: str | None
    module: str | None
    arguments: tuple[str, ...]


def python_command(words: tuple[str, ...]) -> PythonCommand | None:
    """Take a command apart; None when it runs no Python file or module."""
    if not re.match(_PYTHON, PurePosixPath(words[0]).name):
        return None
    options: list[str] = []
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word == "-m":
            return PythonCommand(words[0], tuple(options), None, rest[0], tuple(rest[1:])) if rest else None
        if word in {"-c", "-"}:
            return None
        if not word.startswith("-"):
            return PythonCommand(words[0], tuple(options), word, None, tuple(rest))
        options.append(word)
        if word in {"-W", "-X"} and rest:
            options.append(rest.pop(0))
    return None


def python_files(words: tuple[str, ...]) -> tuple[str, ...]:
    """The files that may be the script of a command, the likeliest first: python's, or a launcher's (torchrun train.py)."""
    python = python_command(words)
    if python is None or python.module in _LAUNCHER_MODULES:
        return tuple(word for word in words[1:] if word.endswith(".py"))
    if python.script:
        return (python.script,)
    module = (python.module or "").replace(".", "/")
    return (f"{module}.py", f"{module}/__main__.py")


def own_loop(facts: ScriptFacts | None) -> str | None:
    """Where the script imports slurmgpu.training, as file:line; None when it does not, or was not read."""
    if facts is None or facts.own_loop is None:
        return None
    line = facts.own_loop[1]
    return f"{facts.path}:{line}" if line else f"a module beside {facts.path}"


class Launching(NamedTuple):
    """The launcher, the reason for it, and what the user should know."""

    launcher: Launcher
    why: str
    warnings: tuple[str, ...] = ()


def choose_launcher(
    job: Job,
    environment: Environment,
    facts: ScriptFacts | None,
    *,
    nodes: int,
    gpus_per_node: int,
    tasks_per_node: int | None,
) -> Launching:
    """Decide who starts the processes; an explicit ``launch`` always wins."""
    processes = nodes * max(gpus_per_node, tasks_per_node or 1)
    words = job.command or ()
    python = python_command(words) if words else None
    if job.launch.launcher != "auto":
        return _explicit(job, environment, python, nodes)
    if job.train is not None:
        return _train(job, processes)
    if processes == 1:
        return Launching("plain", "one GPU, one process" if gpus_per_node else "one process")
    if environment.container is not None and environment.container.mode == "run":
        return Launching(
            "plain",
            "the image's own runscript starts the command",
            (
                f"{processes} GPUs, but `{environment.container.runtime} run` starts one process on the first node; "
                "use container mode: exec with command: [python, ...] for one process per GPU",
            ),
        )
    if python is None or python.module in _LAUNCHER_MODULES:
        return _other_program(words, python, nodes, gpus_per_node)
    return _python(facts, python, processes, nodes)


def _explicit(job: Job, environment: Environment, python: PythonCommand | None, nodes: int) -> Launching:
    launcher = job.launch.launcher
    assert launcher != "auto"
    if launcher == "torchrun" and job.command is not None and python is None:
        raise PlanError(
            f"launch: torchrun runs Python scripts, and the command begins with {job.command[0]!r}",
            hint="write command: [python, SCRIPT, ...], or launch: srun or plain",
        )
    if launcher != "plain" and environment.container is not None and environment.container.mode == "run":
        raise PlanError(
            f"launch: {launcher} cannot start an image's own runscript (container mode: run)",
            hint="use container mode: exec, and write the whole command",
        )
    if launcher == "plain" and job.train is not None and job.train.strategy == "ddp":
        raise PlanError(
            "launch: plain starts one process, and train.strategy: ddp needs one per GPU",
            hint="leave launch out, or use strategy: single",
        )
    warnings = (
        (f"launch: plain runs on the first of the {nodes} nodes only",)
        if launcher == "plain" and nodes > 1
        else ()
    )
    return Launching(launcher, "the job says so (launch)", warnings)


def _train(job: Job, processes: int) -> Launching:
    assert job.train is not None
    if processes == 1:
        return Launching("plain", "one process")
    if job.train.strategy == "dp":
        return Launching("plain", "train.strategy is dp: one process with all GPUs (nn.DataParallel)")
    if job.train.strategy == "single":
        return Launching(
            "plain",
            "train.strategy is single",
            (f"strategy: single uses 1 of the {processes} GPUs; use strategy: ddp",),
        )
    return Launching(
        "srun", "the training entrypoint takes its rank from Slurm: one task per GPU, signals reach each rank"
    )


def _other_program(
    words: tuple[str, ...], python: PythonCommand | None, nodes: int, gpus_per_node: int
) -> Launching:
    program = _LAUNCHER_MODULES[python.module or ""] if python else PurePosixPath(words[0]).name
    if program in _LAUNCHERS and nodes > 1 and program not in {"srun", "mpirun", "mpiexec", "ray"}:
        raise PlanError(
            f"the command starts with {program}, which runs on the first of the {nodes} nodes only",
            hint="write command: [python, SCRIPT, ...]: slurmgpu starts torchrun on every node, with the rendezvous "
            "(Accelerate and DeepSpeed read it); or launch: plain to keep the command as it is",
        )
    why = (
        f"{program} starts its own processes" if program in _LAUNCHERS else "the command is no Python script"
    )
    if program in _LAUNCHERS or nodes * gpus_per_node <= 1:
        return Launching("plain", why)
    where = f"the first of {nodes} nodes" if nodes > 1 else "the node"
    return Launching(
        "plain",
        why,
        (
            f"{words[0]} runs once, on {where}, with {gpus_per_node} GPUs in view; launch: srun runs it once per GPU",
        ),
    )


def _at(finding: tuple[str, int], path: str) -> str:
    what, line = finding
    return f"{what} in {path}:{line}" if line else f"{what} in a module beside {path}"


def _python(facts: ScriptFacts | None, python: PythonCommand, processes: int, nodes: int) -> Launching:
    if facts is None:
        name = python.script or f"-m {python.module}"
        return Launching(
            "torchrun",
            f"{processes} GPUs and a Python command: one process per GPU",
            (
                f"{name} is not on this machine, so it was not read: each of the {processes} processes must take its rank "
                "from RANK and LOCAL_RANK; if it starts its own processes, use launch: plain",
            ),
        )
    path = facts.path
    if (facts.spawns and not facts.distributed and not facts.framework) or (
        facts.spawns and facts.spawns[0] != "DataParallel"
    ):
        warnings = (
            (
                f"{path} starts its own processes on one node; the other {nodes - 1} of {nodes} nodes would stay idle",
            )
            if nodes > 1
            else ()
        )
        return Launching(
            "plain",
            f"it spawns its own processes ({_at(facts.spawns, path)}): one process gets all GPUs",
            warnings,
        )
    if facts.framework:
        name = facts.framework[0]
        if name in {"Lightning", "Horovod"}:
            advice = (
                (
                    f"Lightning wants Trainer(devices={processes // nodes}, num_nodes={nodes}); 'auto' does for devices",
                )
                if name == "Lightning" and nodes > 1
                else ()
            )
            return Launching(
                "srun", f"{_at(facts.framework, path)} takes its ranks from Slurm: one task per GPU", advice
            )
        if name == "Ray":
            return Launching("plain", f"{_at(facts.framework, path)} starts its own workers")
        return Launching(
            "torchrun", f"{_at(facts.framework, path)} reads torchrun's variables: one process per GPU"
        )
    if facts.slurm_rank:
        return Launching(
            "srun", f"it takes its rank from Slurm ({_at(facts.slurm_rank, path)}): one task per GPU"
        )
    if facts.distributed:
        return Launching("torchrun", f"one process per GPU ({_at(facts.distributed, path)})")
    if facts.trains_elsewhere:
        return Launching(
            "torchrun",
            f"{processes} GPUs and a Python script: one process per GPU",
            (
                f"{path} trains by what it imports, which was not read: each of the {processes} processes must take its "
                "rank from RANK and LOCAL_RANK; if it starts its own processes, use launch: plain",
            ),
        )
    return Launching(
        "torchrun",
        f"{processes} GPUs and a Python script: one process per GPU",
        (
            f"nothing in {path} looks distributed: each of the {processes} processes would train the same thing; "
            "wrap the model in DistributedDataParallel, ask for 1 GPU, or use launch: plain",
        ),
    )
