"""The launcher that starts a command's processes, and why."""

from __future__ import annotations

from slurmgpu.containers import enters_by_srun
from slurmgpu.errors import PlanError
from slurmgpu.launchers import (
    SHIPPED,
    Launching,
    first_of,
    launcher,
    launcher_in,
    program_starting,
    started_twice,
    stays_on_its_node,
)
from slurmgpu.lines.command import PythonCommand, python_command, runner_length
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.environment import Environment
from slurmgpu.models.job import Job
from slurmgpu.models.script_facts import ScriptFacts

__all__ = ["choose_launcher", "outside_the_container", "own_loop"]

_ONCE = "the command runs once, on the first node of the first component, and starts its own steps (srun --het-group=N)"


def own_loop(facts: ScriptFacts | None) -> str | None:
    """Return where the script imports slurmgpu.training, as file:line; None when it does not, or was not read."""
    if facts is None or facts.own_loop is None:
        return None
    line = facts.own_loop[1]
    return f"{facts.path}:{line}" if line else f"a module beside {facts.path}"


def outside_the_container(environment: Environment) -> tuple[str, ...]:
    """Return what a container sees of a Python environment that is activated before it."""
    found = environment.python.activated
    if environment.container is None or found is None:
        return ()
    name = f"{'conda environment' if found.kind == 'conda' else found.kind} {found.where}"
    cleaned = {"--cleanenv", "-e", "--containall", "-C"} & set(environment.container.options)
    rest = f"{min(cleaned)} keeps the other variables out" if cleaned else "the other variables get in"
    return (
        f"{name} is activated on the host, before the container: inside, PATH and python are the image's own; {rest}",
    )


def choose_launcher(
    job: Job,
    environment: Environment,
    facts: ScriptFacts | None,
    *,
    layout: tuple[int, int, int | None],
    cluster: Cluster | None = None,
) -> Launching:
    """Decide who starts the processes; an explicit ``launch`` always wins, then what the script needs.

    ``layout`` are nodes, GPUs on each, and the tasks on each where the job says so. Where torchrun and srun would both
    do, the cluster's dialect says which.
    """
    nodes, gpus_per_node, tasks_per_node = layout
    if job.steps:
        return Launching("plain", "each step has a launcher of its own")
    if job.components and not job.exact:
        spawns = facts is not None and facts.spawns is not None
        return Launching("plain", _ONCE, spawns=spawns)
    if job.script is not None:
        return Launching("plain", "the script runs as it is")
    processes = nodes * max(gpus_per_node, tasks_per_node or 1)
    words = job.command or ()
    python = python_command(words) if words else None
    if job.launch.launcher != "auto":
        return _explicit(job, environment, facts, nodes)
    if job.train is not None:
        return _train(job, processes, nodes)
    runscript = environment.container is not None and environment.container.mode == "run"
    if program_starting(words) and not runscript:
        return _own_launcher(words, facts, nodes, gpus_per_node)
    if processes == 1 and (facts is None or facts.joins is None):
        why = "one GPU, one process" if gpus_per_node else "one process"
        return Launching("plain", why, spawns=facts is not None and facts.spawns is not None)
    if environment.container is not None and runscript:
        return Launching(
            "plain",
            "the image's own runscript starts the command",
            (
                f"{processes} GPUs, but `{environment.container.runtime} run` starts one process on the first node; "
                "use container mode: exec with command: [python, ...] for one process per GPU",
            ),
        )
    if python is None:
        return _other_program(words, nodes, gpus_per_node)
    made = _python(facts, python, processes, nodes)
    if made.launcher == "torchrun" and cluster is not None and cluster.dialect.launcher == "srun":
        why = f"{made.why}, each a task of srun: {cluster.name} advises against torchrun inside it"
        return made._replace(launcher="srun", why=why)
    return made


def _explicit(job: Job, environment: Environment, facts: ScriptFacts | None, nodes: int) -> Launching:
    name = job.launch.launcher
    chosen = launcher(name)
    program = program_starting(job.command) if job.command else None
    if chosen.needs_python and job.command is not None and not chosen.starts(job.command):
        instead = "write command: [python, SCRIPT, ...], or launch: " + (
            "plain" if program else "srun or plain"
        )
        raise PlanError(
            f"launch: {name} runs Python scripts, and the command begins with {job.command[0]!r}",
            hint=f"{program} starts the processes itself: {instead}" if program else instead,
        )
    chosen.check(name, job, environment)
    if chosen.without_srun and environment.container is not None and enters_by_srun(environment):
        raise PlanError(
            f"launch: {name} starts processes without srun, and {environment.container.runtime} needs srun to enter an image",
            hint="use launch: mpi",
        )
    why = "the job says so (launch)"
    if chosen.on_every_node:
        warnings = started_twice(facts, name)
        starter = launcher_in(job.command or ())
        if starter is not None and starter.without_srun and not chosen.needs_python:
            said = f"launch: {name} starts {program} many times, and each {program} all of its processes; write launch: plain"
            warnings = (*warnings, said)
        return Launching(name, why, warnings)
    stays = nodes > 1 and (program is None or stays_on_its_node(program))
    warnings = (f"launch: {name} runs on the first of the {nodes} nodes only",) if stays else ()
    return Launching(name, why, warnings, spawns=facts is not None and facts.spawns is not None)


def _train(job: Job, processes: int, nodes: int) -> Launching:
    assert job.train is not None
    if processes == 1:
        return Launching("plain", "one process")
    strategy = job.train.strategy
    if strategy in ("dp", "model_parallel"):
        how = "nn.DataParallel" if strategy == "dp" else "its layers one after the other on them"
        other = "ddp" if strategy == "dp" else "fsdp2"
        return Launching(
            "plain",
            f"train.strategy is {strategy}: one process with all GPUs of a node ({how})",
            (
                f"train.strategy: {strategy} uses the first of the {nodes} nodes only; use strategy: {other}, or nodes: 1",
            )
            if nodes > 1
            else (),
        )
    if job.train.strategy == "single":
        return Launching(
            "plain",
            "train.strategy is single",
            (f"strategy: single uses 1 of the {processes} GPUs; use strategy: ddp",),
        )
    return Launching(
        "srun", "the training entrypoint takes its rank from Slurm: one task per GPU, signals reach each rank"
    )


def _own_launcher(
    words: tuple[str, ...], facts: ScriptFacts | None, nodes: int, gpus_per_node: int
) -> Launching:
    """Return a command that starts its own processes: ``torchrun train.py``, ``python -m accelerate.commands.launch``."""
    program, starter = program_starting(words), launcher_in(words)
    assert program is not None
    if nodes == 1 or not stays_on_its_node(program):
        remarks = starter.remarks(words, facts, gpus_per_node) if starter else ()
        return Launching("plain", f"{program} starts its own processes", remarks)
    over_nodes = starter.over_nodes(words, facts, nodes, gpus_per_node) if starter else None
    if over_nodes is not None:
        return over_nodes
    instead = (
        "its processes by srun, as MPI's (launch: mpi)"
        if program == "horovodrun"
        else "torchrun on every node"
    )
    raise PlanError(
        f"the command starts with {program}, which runs on {first_of(nodes)}",
        hint=f"write command: [python, SCRIPT, ...]: slurmgpu starts {instead}; or launch: plain to keep the command as it is",
    )


def _other_program(words: tuple[str, ...], nodes: int, gpus_per_node: int) -> Launching:
    why = "the command is not a Python script"
    if nodes * gpus_per_node <= 1:
        return Launching("plain", why)
    program = words[runner_length(words)]
    where = f"the first of {nodes} nodes" if nodes > 1 else "the node"
    # A shell script mostly starts a launcher, which srun would start once for each GPU.
    by_shell = program in {"bash", "sh"} or program.endswith(".sh")
    instead = "what it starts must use them all" if by_shell else "launch: srun runs it once per GPU"
    said = f"{program} runs once, on {where}, with {gpus_per_node} GPUs in view; {instead}"
    return Launching("plain", why, (said,))


def _python(facts: ScriptFacts | None, python: PythonCommand, processes: int, nodes: int) -> Launching:
    if facts is None:
        unread = (
            f"{python.script or f'-m {python.module}'} is not on this machine, so it was not read: each of the {processes} "
            "processes must take its rank from RANK and LOCAL_RANK; if it starts its own processes, use launch: plain"
        )
        return Launching("torchrun", f"{processes} GPUs and a Python command: one process per GPU", (unread,))
    for name, one in SHIPPED.items():
        if name != "torchrun" and (made := one.suits(facts, processes, nodes)):
            return made
    if facts.own_requirements and python.by_runner and not facts.framework:
        why = f"`{' '.join(python.runner)} {python.script}` installs what the script lists (# /// script): one task per GPU"
        return Launching("srun", why, () if facts.distributed else (facts.same_in_each(processes),))
    made = SHIPPED["torchrun"].suits(facts, processes, nodes)
    assert made is not None
    return made
