"""What a command means: which launcher starts its processes, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from slurmgpu.containers import enters_by_srun
from slurmgpu.errors import PlanError
from slurmgpu.launchers import launcher
from slurmgpu.lines.command import (
    ONE_NODE_LAUNCHERS,
    PythonCommand,
    launcher_of,
    python_command,
    read_launch_line,
    runner_length,
    torchrun_processes,
)
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.environment import Environment
from slurmgpu.models.job import Job

if TYPE_CHECKING:
    from slurmgpu.planning.python_script import Finding, ScriptFacts

__all__ = ["Launching", "choose_launcher", "outside_the_container", "own_loop"]

_ONCE = "the command runs once, on the first node of the first component, and starts its own steps (srun --het-group=N)"


def own_loop(facts: ScriptFacts | None) -> str | None:
    """Return where the script imports slurmgpu.training, as file:line; None when it does not, or was not read."""
    if facts is None or facts.own_loop is None:
        return None
    line = facts.own_loop[1]
    return f"{facts.path}:{line}" if line else f"a module beside {facts.path}"


class Launching(NamedTuple):
    """The launcher, the reason for it, and what the user should know."""

    launcher: str
    why: str
    warnings: tuple[str, ...] = ()
    spawns: bool = False
    """Whether the command starts a process for each GPU of its node by itself."""
    tasks_per_node: int | None = None
    """As many as the script wants, whatever the GPUs; None: one per GPU."""


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
    if launcher_of(words) and not runscript:
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
    chosen.check(name, job, environment)
    if chosen.without_srun and environment.container is not None and enters_by_srun(environment):
        raise PlanError(
            f"launch: {name} starts processes without srun, and {environment.container.runtime} needs srun to enter an image",
            hint="use launch: mpi",
        )
    why = "the job says so (launch)"
    if chosen.on_every_node:
        return Launching(name, why, _started_twice(facts, name))
    warnings = (f"launch: {name} runs on the first of the {nodes} nodes only",) if nodes > 1 else ()
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
    program = launcher_of(words)
    why = f"{program} starts its own processes"
    if program not in ONE_NODE_LAUNCHERS or nodes == 1:
        several = program in ONE_NODE_LAUNCHERS and torchrun_processes(words) not in {None, "1"}
        twice = _started_twice(facts, program) if several else ()
        return Launching("plain", why, twice or _not_one_for_each(words, program, facts, gpus_per_node))
    if program == "ray":
        return Launching("plain", why, (f"ray runs on {_first_of(nodes)}; {_RAY_NODES}",))
    if read_launch_line(words):
        told = "accelerate launch on each node, told where the others are"
        if program == "deepspeed":
            told = "torchrun in place of DeepSpeed's launcher, which reaches the other nodes by ssh"
        warnings = (*_started_twice(facts, program), *_other_numbers(words, nodes, gpus_per_node))
        return Launching(str(program), told, warnings)
    raise PlanError(
        f"the command starts with {program}, which runs on {_first_of(nodes)}",
        hint="write command: [python, SCRIPT, ...]: slurmgpu starts "
        + (
            "its processes by srun, as MPI's (launch: mpi)"
            if program == "horovodrun"
            else "torchrun on every node"
        )
        + "; or launch: plain to keep the command as it is",
    )


def _other_numbers(words: tuple[str, ...], nodes: int, gpus: int) -> Iterator[str]:
    """Yield what is said where accelerate's or deepspeed's own numbers are not the job's."""
    line = read_launch_line(words)
    job = {"num-machines": nodes, "num-nodes": nodes, "num-processes": nodes * gpus, "num-gpus": gpus}
    for option in line.line.options if line else ():
        number = job.get(option.name)
        if number and option.value != str(number):
            yield (
                f"{option.spelling} {option.value} becomes {number}: the job has {nodes} node{'s' * (nodes > 1)} with "
                f"{gpus} GPU{'s' * (gpus > 1)} each"
            )


def _not_one_for_each(
    words: tuple[str, ...], program: str | None, facts: ScriptFacts | None, gpus: int
) -> tuple[str, ...]:
    """Return what follows where torchrun is told to start fewer or more processes than a node has GPUs."""
    told = torchrun_processes(words)
    if program != "torchrun" or (told or "1") == str(gpus) or (told and not told.isdigit()) or gpus == 0:
        return ()
    number = int(told or 1)
    if number > gpus:
        return (
            f"torchrun starts {number} processes on a node where the job has {gpus} GPU{'s' * (gpus > 1)}: a process "
            f"without one of its own fails, or shares; ask for {number} GPUs, or write --nproc-per-node={gpus}",
        )
    if facts is not None and facts.one_process is not None:
        return ()
    why = "" if told else " (without --nproc-per-node)"
    return (
        f"torchrun starts {number} process{'es' * (number > 1)}{why}, and the job has {gpus} GPUs: the others stay idle; "
        f"write --nproc-per-node={gpus}, or leave torchrun out, and slurmgpu starts one process per GPU",
    )


def _started_twice(facts: ScriptFacts | None, program: str | None) -> tuple[str, ...]:
    """Return what a launcher does to a script that uses all GPUs by itself."""
    if facts is None or facts.one_process is None:
        return ()
    does = "starts its own processes" if facts.spawns else "uses all GPUs by itself"
    return (
        f"{facts.path} {does} ({_at(facts.one_process, facts.path)}), once in each process that {program} starts; "
        "write command: [python, SCRIPT, ...] and leave launch out",
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


_RAY_NODES = "write command: [python, SCRIPT, ...] with launch: ray, which joins all nodes; or use nodes: 1"


def _first_of(nodes: int) -> str:
    return f"the first of the {nodes} nodes only"


def _at(finding: Finding, path: str) -> str:
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
    if facts.one_process:
        return _one_process(facts, facts.one_process, nodes)
    if facts.joins:
        return _joining(facts, facts.joins)
    if facts.framework:
        return _framework(facts, facts.framework, processes, nodes)
    if facts.slurm_rank:
        return Launching(
            "srun", f"it takes its rank from Slurm ({_at(facts.slurm_rank, facts.path)}): one task per GPU"
        )
    if facts.own_requirements and python.by_runner:
        return Launching(
            "srun",
            f"`{' '.join(python.runner)} {python.script}` installs what the script lists (# /// script): one task per GPU",
            () if facts.distributed else _same_thing(facts, processes),
        )
    if facts.distributed:
        return Launching("torchrun", f"one process per GPU ({_at(facts.distributed, facts.path)})")
    return Launching(
        "torchrun",
        f"{processes} GPUs and a Python script: one process per GPU",
        _same_thing(facts, processes),
    )


def _same_thing(facts: ScriptFacts, processes: int) -> tuple[str, ...]:
    path = facts.path
    if facts.trains_elsewhere:
        return (
            f"{path} trains by what it imports, which was not read: each of the {processes} processes must take its "
            "rank from RANK and LOCAL_RANK; if it starts its own processes, use launch: plain",
        )
    return (
        f"nothing in {path} looks distributed: each of the {processes} processes would train the same thing; "
        "wrap the model in DistributedDataParallel, ask for 1 GPU, or use launch: plain",
    )


def _one_process(facts: ScriptFacts, finding: Finding, nodes: int) -> Launching:
    does = "spawns its own processes" if facts.spawns else "drives several GPUs from one process"
    verb = "starts its own processes" if facts.spawns else "uses the GPUs"
    instead = "let one process train on each GPU: init_process_group() without addresses and ranks,"
    if finding[0].endswith("Strategy"):
        instead = f"let a worker train on each node: {_TENSORFLOW},"
    idle = (
        f"{facts.path} {verb} on one node; the other {nodes - 1} of {nodes} nodes would stay idle; ask for 1 node, "
        f"or {instead} in place of {finding[0]}"
    )
    return Launching(
        "plain",
        f"it {does} ({_at(finding, facts.path)}): one process gets all GPUs",
        (idle,) if nodes > 1 else (),
        spawns=facts.spawns is not None,
    )


_RESOLVER = "cluster_resolver=tf.distribute.cluster_resolver.SlurmClusterResolver()"
_TENSORFLOW = f"MultiWorkerMirroredStrategy({_RESOLVER})"


def _joining(facts: ScriptFacts, finding: Finding) -> Launching:
    """TensorFlow's workers and JAX's processes find each other by the variables of Slurm's tasks."""
    found = _at(finding, facts.path)
    if finding[0].startswith("jax"):
        return Launching(
            "srun", f"JAX finds the other processes by Slurm's variables ({found}): one task per GPU"
        )
    untold = (
        f"{facts.path} does not tell MultiWorkerMirroredStrategy where the other workers are: each would train alone; "
        f"pass {_RESOLVER}",
    )
    return Launching(
        "srun",
        f"a worker of TensorFlow uses all GPUs of its node ({found}): one task per node",
        () if facts.told else untold,
        tasks_per_node=1,
    )


def _framework(facts: ScriptFacts, framework: Finding, processes: int, nodes: int) -> Launching:
    name = framework[0]
    found = _at(framework, facts.path)
    if name == "Horovod":
        return Launching(
            "mpi", f"{found} takes its ranks from MPI: one task per GPU, and srun tells MPI who is who"
        )
    if name == "Lightning":
        advice = (
            (
                f"Lightning stops unless its Trainer has the job's numbers: num_nodes={nodes}, and devices={processes // nodes} "
                'or "auto"; nothing to do if yours has',
            )
            if nodes > 1
            else ()
        )
        return Launching("srun", f"{found} takes its ranks from Slurm: one task per GPU", advice)
    if name == "Ray":
        own = f"; {_at(facts.limits_ray, facts.path)} starts one of its own" if facts.limits_ray else ""
        if nodes > 1 and not own:
            return Launching("ray", f"{found} starts its workers on all nodes, once these have joined")
        idle = f"Ray in {facts.path} runs on {_first_of(nodes)}{own}; ray.init() without resources joins all nodes"
        return Launching("plain", f"{found} starts its own workers", (idle,) if nodes > 1 else ())
    if name == "DeepSpeed" and facts.local_rank:
        where = _at(facts.local_rank, facts.path)
        return Launching("deepspeed", f"{found} is told its local rank ({where}): one process per GPU")
    if name in {"TensorFlow", "JAX"}:
        return _own_devices(facts, name, found, nodes)
    return Launching("torchrun", f"{found} reads torchrun's variables: one process per GPU")


def _own_devices(facts: ScriptFacts, name: str, found: str, nodes: int) -> Launching:
    """TensorFlow or JAX in one process."""
    warnings = []
    if name == "TensorFlow":
        several = "MultiWorkerMirroredStrategy with SlurmClusterResolver" if nodes > 1 else "MirroredStrategy"
        warnings.append(
            f"nothing in {facts.path} spreads the training: TensorFlow uses one GPU; tf.distribute's {several} uses all"
        )
    elif nodes > 1:
        warnings.append(
            f"{facts.path} runs on {_first_of(nodes)}; jax.distributed.initialize() joins the others"
        )
    return Launching("plain", f"{found} finds the GPUs of its node from one process", tuple(warnings))
