"""Rules about resources: options that contradict each other, and requests that are rarely meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from slurmgpu.models.gpu_models import names_a_slice
from slurmgpu.script.rules.base import Asked, Hit, Severity, View, rule


def _last_line(asked: Asked, *names: str) -> int:
    return max(asked.options[name].line for name in names if name in asked.options)


def _beside(
    view: View,
    one: str,
    other: str,
    message: str,
    fix: str = "keep one of them",
    severity: Severity | None = None,
) -> Iterator[Hit]:
    """Yield a hit in each component that has both options, at the last of them."""
    for asked in view.components:
        if one in asked.options and other in asked.options:
            yield Hit(_last_line(asked, one, other), message, fix, severity)


@rule("error")
def memory_options(view: View) -> Iterator[Hit]:
    """Two of --mem, --mem-per-cpu and --mem-per-gpu: sbatch refuses the script."""
    for asked in view.components:
        given = [name for name in ("mem", "mem-per-cpu", "mem-per-gpu") if name in asked.options]
        if len(given) > 1:
            yield Hit(
                _last_line(asked, *given),
                f"{' and '.join('--' + name for name in given)} exclude each other",
                "keep one of them",
            )


@rule("error")
def tasks_per_gpu(view: View) -> Iterator[Hit]:
    """--ntasks-per-gpu with options that it excludes."""
    for other in ("gpus-per-task", "ntasks-per-node"):
        message = f"--ntasks-per-gpu and --{other} exclude each other: sbatch refuses the script"
        yield from _beside(view, "ntasks-per-gpu", other, message, "drop --ntasks-per-gpu")
    message = "with --ntasks-per-gpu Slurm gives fewer CPUs than --cpus-per-task says: 2 for 2 tasks of 2 (seen on 22.05)"
    fix = "ask for --ntasks-per-node and --cpus-per-task"
    yield from _beside(view, "ntasks-per-gpu", "cpus-per-task", message, fix, "warning")


@rule("error")
def plane_too_large(view: View) -> Iterator[Hit]:
    """A --distribution that sbatch refuses: planes that leave nodes without a task, arbitrary without nodes."""
    for asked in view.components:
        if (asked.value("distribution") or "").startswith("arbitrary") and "nodelist" not in asked.options:
            said = "--distribution=arbitrary takes nodes from --nodelist or SLURM_HOSTFILE: without, sbatch refuses the script"
            yield Hit(asked.line("distribution"), said, "name the nodes, or leave the option out", "warning")
        plane = re.fullmatch(r"plane=(\d+)", asked.value("distribution") or "")
        nodes, each = asked.number("nodes"), asked.number("ntasks-per-node")
        tasks = asked.number("ntasks") or (nodes and each and nodes * each)
        if plane and nodes and tasks and (nodes - 1) * int(plane[1]) >= tasks:
            most = (tasks - 1) // (nodes - 1)
            yield Hit(
                asked.line("distribution"),
                f"planes of {plane[1]} tasks put the job's {tasks} on fewer than its {nodes} nodes: sbatch refuses the script",
                f"use plane={most}" if most else "ask for more tasks, or leave the option out",
            )
        elif plane and nodes and nodes > 1 and tasks and "ntasks" not in asked.options:
            text = "with planes Slurm 26.05 counts the tasks of --ntasks alone, and refuses the script without it"
            yield Hit(asked.line("distribution"), text, f"add --ntasks={tasks}", "warning")


@rule("error")
def cpus_per_gpu_and_task(view: View) -> Iterator[Hit]:
    """--cpus-per-gpu with --cpus-per-task: Slurm refuses the job."""
    message = "--cpus-per-gpu and --cpus-per-task exclude each other"
    yield from _beside(view, "cpus-per-gpu", "cpus-per-task", message)


@rule("warning")
def contradiction(view: View) -> Iterator[Hit]:
    """Two options that say the opposite."""
    yield from _beside(view, "requeue", "no-requeue", "--requeue and --no-requeue: the last one counts")
    message = "--exclusive and --oversubscribe: new releases refuse both, in old ones the last counts"
    yield from _beside(view, "exclusive", "oversubscribe", message)


@rule("warning")
def several_gpu_options(view: View) -> Iterator[Hit]:
    """GPUs are asked for in several ways, which need not agree."""
    for asked in view.components:
        names = asked.gpu_options
        # These two together are how Slurm's manual shows them; each says another thing.
        if len(names) < 2 or set(names) in (
            {"gpus", "gpus-per-task"},
            {"gpus-per-node", "gpus-per-task"},
            {"gpus", "gpus-per-node"},
        ):
            yield from _disagreeing(asked, names)
            continue
        spelled = ", ".join(f"--{name}={asked.value(name)}" for name in names)
        agree = len({_on_a_node(asked, name) for name in names} - {None}) == 1
        outcome = "say the same" if agree else "disagree, or may: Slurm refuses the job or takes the largest"
        yield Hit(
            _last_line(asked, *names),
            f"GPUs are asked for by {spelled}, which {outcome}",
            f"keep --{names[0]}",
            "hint" if agree else None,
        )


def _on_a_node(asked: Asked, name: str) -> int | None:
    """Return the GPUs on each node by one of the options; None where it does not follow, which then counts for none."""
    return asked._replace(
        options={
            one: asked.options[one] for one in asked.options if one not in asked.gpu_options or one == name
        }
    ).gpus_per_node


def _disagreeing(asked: Asked, names: list[str]) -> Iterator[Hit]:
    if set(names) == {"gpus", "gpus-per-node"} and asked.nodes:
        total, each = asked.gpus_in("gpus"), asked.gpus_in("gpus-per-node")
        if total and each and total != each * asked.nodes:
            yield Hit(
                _last_line(asked, *names),
                f"--gpus={total} is not --nodes={asked.nodes} x --gpus-per-node={each}: Slurm refuses the job",
                "drop --gpus",
                "error",
            )
        elif total and each:
            yield Hit(
                _last_line(asked, *names),
                "--gpus says again what --nodes and --gpus-per-node say",
                "drop --gpus",
                "hint",
            )


@rule("hint")
def gpus_without_nodes(view: View) -> Iterator[Hit]:
    """Several GPUs by --gpus, and no --nodes: they may come from several nodes."""
    for asked in view.components:
        total = asked.gpus_in("gpus") if asked.gpu_options == ["gpus"] else None
        if total and total > 1 and asked.nodes is None:
            yield Hit(
                asked.line("gpus"),
                f"--gpus={total} alone promises no more than 1 GPU on a node: the job may be split over several",
                f"ask for --nodes=1 and --gpus-per-node={total}",
            )


@rule("error")
def gpus_per_task_alone(view: View) -> Iterator[Hit]:
    """--gpus-per-task without a number of tasks: Slurm refuses the job."""
    for asked in view.components:
        if asked.gpu_options == ["gpus-per-task"] and not {"ntasks", "ntasks-per-node", "nodes"} & set(
            asked.options
        ):
            yield Hit(
                asked.line("gpus-per-task"),
                "--gpus-per-task needs the number of tasks, or --gpus",
                "add --ntasks",
            )


@rule("error", taken=True)
def fewer_tasks_than_nodes(view: View) -> Iterator[Hit]:
    """Fewer tasks than nodes: Slurm gives fewer nodes."""
    for asked in view.components:
        tasks, nodes = asked.number("ntasks"), asked.nodes
        if tasks and nodes and tasks < nodes and "-" not in (asked.value("nodes") or ""):
            yield Hit(
                _last_line(asked, "ntasks", "nodes"),
                f"--ntasks={tasks} runs on {tasks} of the {nodes} nodes: Slurm gives only {tasks}",
                "use --ntasks-per-node",
            )


@rule("warning")
def tasks_disagree(view: View) -> Iterator[Hit]:
    """--ntasks says another number of tasks than --nodes x --ntasks-per-node, or than the GPUs do."""
    for asked in view.components:
        tasks, nodes, each = asked.number("ntasks"), asked.nodes, asked.number("ntasks-per-node")
        total, of_task = asked.gpus_in("gpus"), asked.gpus_in("gpus-per-task")
        if "gpus" in asked.options and tasks and total and of_task and total != of_task * tasks:
            yield Hit(
                asked.line("gpus"),
                f"--gpus={total} with --gpus-per-task={of_task} makes {total / of_task:g} tasks, and --ntasks={tasks}: "
                "sbatch refuses it",
                "leave out one of the three",
                "error",
            )
        if tasks and nodes and each and tasks > nodes * each and "-" not in (asked.value("nodes") or ""):
            yield Hit(
                _last_line(asked, "ntasks", "nodes", "ntasks-per-node"),
                f"--ntasks={tasks} is more than {nodes} nodes x {each} tasks: Slurm starts {tasks}",
                "drop --ntasks",
            )
        elif tasks and nodes and each and tasks < nodes * each and asked.value("nodes") == str(nodes):
            yield Hit(
                _last_line(asked, "ntasks", "ntasks-per-node"),
                f"--ntasks={tasks} counts: {nodes * each - tasks} of {nodes} x {each} tasks do not start, and programs that read "
                "SLURM_NTASKS_PER_NODE wait for them",
                "drop --ntasks",
            )


@rule("warning")
def few_cpus(view: View) -> Iterator[Hit]:
    """Fewer than 2 CPUs for a GPU, in a job of more than five minutes: its data loader starves it."""
    python = any(call.script or any(word.endswith(".py") for word in call.words) for call in view.calls)
    for asked in view.components:
        gpus = asked.gpus_per_node
        if "exclusive" in asked.options or not gpus or any(map(names_a_slice, asked.gpu_types)):
            continue
        if "cpus-per-gpu" in asked.options:
            cpus = gpus if asked.number("cpus-per-gpu") == 1 else None
        else:
            each = asked.number("cpus-per-task")
            cpus = each * (asked.tasks_per_node or asked.tasks or 1) if each else None
        brief = re.fullmatch(r"(?:00?:)?0?[1-5](?::00)?", asked.value("time") or "")
        if brief or not cpus or cpus >= 2 * gpus:
            continue
        # Who tells srun the count, too, means it; and only Python's loaders are known to starve.
        meant = view.sets("SRUN_CPUS_PER_TASK") or not python or cpus >= gpus
        yield Hit(
            asked.line("cpus-per-gpu", "cpus-per-task"),
            f"{cpus} CPU{'s' * (cpus != 1)} for {gpus} GPU{'s' * (gpus != 1)}: one process for each prepares all data",
            "ask for a GPU's share of the node, often 8 to 16 CPUs each (`scontrol show node` tells)",
            "hint" if meant else None,
        )


@rule("hint")
def no_cpus(view: View) -> Iterator[Hit]:
    """GPUs, and no CPUs are asked for: Slurm gives one for each task."""
    if not any(call.trains for call in view.calls):
        return
    says = {"cpus-per-task", "cpus-per-gpu", "mincpus", "exclusive", "cores-per-socket", "extra-node-info"}
    for asked in view.components:
        gpus, tasks = asked.gpus_per_node, asked.tasks_per_node or 1
        if (
            not gpus
            or says & set(asked.options)
            or tasks >= 2 * gpus
            or any(map(names_a_slice, asked.gpu_types))
        ):
            continue
        given = _cpus_given(view, asked)
        if given == "some":
            continue
        yield Hit(
            asked.line(*asked.gpu_options),
            f"no CPUs are asked for: Slurm gives {tasks} for the {tasks} task{'s' * (tasks != 1)} on each node, "
            f"and {gpus} GPU{'s need' if gpus != 1 else ' needs'} more to be fed"
            + ("" if given == "none" else "; only some sites give CPUs with the GPUs"),
            "add #SBATCH --cpus-per-task=N, often 8 to 16 for each GPU",
            "warning" if given == "none" else None,
        )


def _cpus_given(view: View, asked: Asked) -> Literal["some", "none", "unknown"]:
    """Return whether the site gives CPUs with GPUs, or whole nodes; only Slurm itself says that it does not (no DefCpuPerGPU)."""
    cluster = view.facts.cluster
    if cluster is None or not cluster.known:
        return "unknown"
    dialect = cluster.dialect
    if (
        not cluster.complete
        or dialect.cpus in {"none", "srun"}
        or dialect.whole_nodes
        or not dialect.cpu_share
    ):
        return "some"
    names = (asked.value("partition") or cluster.default_partition or "").split(",")
    described = [cluster.partitions[name] for name in names if name in cluster.partitions]
    given = any(
        partition.whole_nodes
        or partition.default_cpus_per_gpu
        or any(kind.unit and kind.unit.cpus for kind in partition.kinds)
        for partition in described
    )
    return "none" if described and not given else "some"


@rule("hint")
def exclusive_with_one_gpu(view: View) -> Iterator[Hit]:
    """A whole node, and one of its GPUs."""
    cluster = view.facts.cluster
    for asked in view.components:
        if "exclusive" not in asked.options or asked.value("exclusive") or asked.gpus_per_node != 1:
            continue
        names = (asked.value("partition") or "").split(",")
        kinds = [
            kind
            for name in names
            if cluster and name in cluster.partitions
            for kind in cluster.partitions[name].kinds
        ]
        least = min((kind.gpu_count or 1 for kind in kinds), default=None)
        if least == 1:
            continue
        yield Hit(
            asked.line("exclusive"),
            "--exclusive takes the whole node with all its GPUs, and 1 is asked for"
            + (f": the others, {least - 1} or more, stand idle" if least else ""),
            "leave --exclusive out, or ask for all GPUs of the node",
        )


@rule("hint")
def no_time(view: View) -> Iterator[Hit]:
    """No --time: the job gets the partition's default, often short, or its maximum."""
    if "time" not in view.asked.options and view.script.directives:
        yield Hit(
            view.script.directives[0].line,
            "no --time: the partition's default counts, and a long one delays the start",
            "add #SBATCH --time=HH:MM:SS",
        )


@rule("hint")
def no_gpu(view: View) -> Iterator[Hit]:
    """The partition's or feature's name speaks of GPUs, and none is asked for."""
    if view.facts.cluster is not None and view.facts.cluster.known:
        return  # the cluster's own rules know better
    for asked in view.components:
        name = (asked.value("partition") or "").lower()
        if (
            "gpu" in name
            and "cpu" not in name
            and not asked.gpu_options
            and "cpus-per-gpu" not in asked.options
        ):
            yield Hit(
                asked.line("partition"),
                f"partition {name!r}, and no GPU is asked for: most sites then give none",
                "add --gres=gpu:COUNT, unless your site gives whole nodes",
            )
