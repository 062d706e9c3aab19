"""Rules about numbers: what steps and launchers start, against what the job has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from slurmgpu.launchers import SHIPPED, TORCHRUN, Launcher, launch_line
from slurmgpu.models.units import Memory
from slurmgpu.script.rules.base import Hit, Severity, View, gpu_entries, rule
from slurmgpu.script.rules.calls import CONTAINERS, Call

# An srun with one of these is told where it runs, or that it may share.
_OF_ANOTHER_PLACE = {"jobid", "het-group", "pack-group", "overcommit"}
_MEMORY = r"\d+[KMGTkmgt]?"
# A step without any of these takes all CPUs of the job on its nodes (srun(1), --exact; --cpus-per-task implies it).
_SHARES = {
    "exact",
    "exclusive",
    "overlap",
    "cpus-per-task",
    "threads-per-core",
    "whole",
    "nodelist",
    "relative",
}
_GPUS = {"gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "tres-per-task"}


def _whole(view: View) -> bool:
    """Return True if the job has whole nodes, as far as is known: with more CPUs and GPUs than it asks for."""
    if "exclusive" in view.asked.options:
        return True
    cluster = view.facts.cluster
    if cluster is None:
        return False
    names = (view.asked.value("partition") or cluster.default_partition or "").split(",")
    described = [cluster.partitions[name] for name in names if name in cluster.partitions]
    if any(partition.whole_nodes for partition in described):
        return True
    return cluster.dialect.whole_nodes or cluster.dialect.gpus in {"srun", "none"}


def _count(value: str | None) -> int | None:
    """Return a whole number; of a range the first."""
    match = re.match(r"(\d+)(?:[-:]\d+)?\Z", value or "")
    return int(match[1]) if match else None


def _most(value: str | None) -> int | None:
    """Return a whole number; of a range the last."""
    match = re.match(r"(?:\d+[-:])?(\d+)\Z", value or "")
    return int(match[1]) if match else None


def _loops(view: View) -> list[range]:
    """Return the lines of the body that are in loops."""
    found: list[range] = []
    starts: list[int] = []
    for number, text in view.body_lines:
        code = text.strip()
        if re.match(r"(?:for|while|until)\b", code):
            starts.append(number)
        if starts and re.search(r"(?:^|;\s*)done\b", code):
            found.append(range(starts.pop(), number + 1))
    return found


# Steps


@rule("warning")
def step_over_job(view: View) -> Iterator[Hit]:
    """srun asks for more nodes, tasks, CPUs, GPUs or memory than the job has."""
    for call in view.calls if view.script.components == 1 else ():
        own = call.srun
        if own is None or call.nested or call.open_options or _OF_ANOTHER_PLACE & set(own):
            continue
        for option, had in _over(view, own):
            yield Hit(
                call.line,
                f"srun --{option}={own[option]} in a job of {had}: Slurm refuses the step",
                f"ask for #SBATCH --{option}={own[option]}, or start it with what the job has",
                "error",
            )
            break
        else:
            tasks, has = _tasks(view, own), view.asked.tasks
            if not tasks or not has or tasks <= has or not _said(view) or _whole(view):
                continue
            # From 22.05 to 23.02 a step does not take the job's --cpus-per-task; more tasks than asked for are a slip, too.
            cpus = tasks * (_count(own.get("cpus-per-task")) or view.asked.number("cpus-per-task") or 1)
            if cpus > _cpus(view, has):
                yield Hit(
                    call.line,
                    f"srun starts {tasks} tasks in a job of {has}, whose {_cpus(view, has)} CPUs are too few for them: "
                    "Slurm refuses the step, or lets it wait",
                    f"ask for #SBATCH --ntasks={tasks}, or start {has}",
                )


def _over(view: View, own: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    """Yield the options by which a step asks for more than the job has, and what it has."""
    asked = view.asked
    alone = view.facts.submitted and asked.tasks == 1 and "gpus" not in asked.options
    nodes, most = _count(own.get("nodes")), _most(asked.value("nodes") or ("1" if alone else None))
    if nodes and most and nodes > most:
        yield "nodes", f"{most} node{'s' * (most != 1)}"
    if _whole(view):
        return
    cpus, had = _count(own.get("cpus-per-task")), asked.number("cpus-per-task")
    has = had * (asked.tasks_per_node or 1) if had and _said(view) else None
    if cpus and has and cpus > has + has % 2:
        yield "cpus-per-task", f"{has} CPUs on a node"
    here = asked.gpus_per_node if asked.gpu_options else None
    for name, gpus in (("gres", here), ("gpus-per-node", here), ("gpus", here and here * (asked.nodes or 1))):
        wanted = sum(count for _, count in gpu_entries(own.get(name) or "", typed=name != "gres"))
        if gpus and wanted > gpus:
            yield (
                name,
                f"{gpus} GPU{'s' * (gpus != 1)}{' on each node' * (name != 'gpus' and asked.nodes != 1)}",
            )
    memory, limit = (re.fullmatch(_MEMORY, value or "0") for value in (own.get("mem"), asked.value("mem")))
    if memory and limit and Memory.parse(memory[0]).mib > Memory.parse(limit[0]).mib > 0:
        yield "mem", str(Memory.parse(limit[0]))


def _said(view: View) -> bool:
    """Return True if the options say how many CPUs there are, and nothing gives further ones."""
    options = set(view.asked.options)
    more = {"cpus-per-gpu", "mincpus", "overcommit", "ntasks-per-gpu", "hint", "threads-per-core"}
    return bool({"ntasks", "ntasks-per-node", "cpus-per-task"} & options) and not more & options


def _cpus(view: View, tasks: int) -> int:
    """Return the CPUs of the job; Slurm gives whole cores, of two CPUs at most sites."""
    nodes = view.asked.nodes or 1
    each = -(-tasks // nodes) * (view.asked.number("cpus-per-task") or 1)
    return nodes * (each + each % 2)


def _tasks(view: View, own: Mapping[str, str | None]) -> int | None:
    if "ntasks" in own:
        return _count(own["ntasks"])
    each = _count(own.get("ntasks-per-node"))
    nodes = _count(own.get("nodes")) or view.asked.nodes or 1
    return each * nodes if each else None


@rule("warning")
def steps_in_turn(view: View) -> Iterator[Hit]:
    """Steps side by side on a node, each of which takes all CPUs: one waits for the other."""
    if view.script.components > 1:
        return
    if re.search(r"\bSLURM_(?:EXACT|OVERLAP|EXCLUSIVE)=|\bSRUN_CPUS_PER_TASK=", view.body):
        return
    steps = [call for call in view.calls if call.srun is not None and not call.nested]
    several = (view.asked.nodes or 1) > 1
    shares = _SHARES - {"nodelist"} if several else _SHARES
    # A step that names no GPUs takes all of the job's, whatever it says of CPUs (srun(1), --gres; seen on 22.05).
    gpus = {"overlap", "nodelist", "gres", *_GPUS} if view.asked.gpu_options else shares
    quick = {"pkill", "kill", "killall"}
    alone = [call for call in steps if not call.open_options and call.name not in quick]
    alone = [call for call in alone if not (shares & set(call.srun or ()) and gpus & set(call.srun or ()))]
    if several:  # what meets there is known where both name the same node
        # A loop over the nodes starts a step on each.
        rounds = [
            call for call in alone if "$" in str(call.srun) and any(call.line in one for one in _loops(view))
        ]
        named = [call for call in alone if (call.srun or {}).get("nodelist") and call not in rounds]
        alone = [call for call in named if sum(one.srun == call.srun for one in named) > 1]
    for call in alone:
        if call.simple.ender != "&":
            continue
        if several:
            node = (call.srun or {}).get("nodelist")
            alone = [one for one in alone if (one.srun or {}).get("nodelist") == node]
        waits = next(
            (one.line for one in view.simple if one.name == "wait" and one.line > call.line), 1 << 30
        )
        within = {simple.line: around for simple, around in view.placed}
        beside = [one for one in alone if call.line < one.line < waits]
        beside = [one for one in beside if within.get(one.line) == within.get(call.line)]
        if beside or _goes_round(view, call):
            what, option = ("GPUs", "--gpus") if shares & set(call.srun or ()) else ("CPUs", "--exact")
            which = f"that of line {beside[0].line}" if beside else "the next one"
            yield Hit(
                call.line,
                f"a step without {option} takes all {what} that the job has on its node: {which} waits until it has ended",
                "srun --exact, with the step's own share: --ntasks=1 --cpus-per-task=N --gpus=1 --mem=SIZE",
            )
            return


def _goes_round(view: View, call: Call) -> bool:
    """Return True if a loop starts a step again and does not itself wait, for one after the other."""
    loop = next((loop for loop in _loops(view) if call.line in loop), range(0))
    return bool(loop) and not any(one.name == "wait" and one.line in loop for one in view.simple)


# Launchers


class _Numbers(NamedTuple):
    """Numbers that a launcher is given."""

    call: Call
    name: str
    processes: tuple[int, str] | None = None
    """On each node, and the option that says so."""
    nodes: tuple[int, int, str] | None = None
    """The fewest and the most, and the option."""
    own_nodes: bool = False
    """True if it starts itself on all nodes."""


def launcher_numbers(view: View, call: Call) -> _Numbers | None:
    """Return what a launcher that stays on its node is told in figures; None for any other program."""
    if call.name == "composer":
        number = re.search(r"\s(?:-n|--nproc)[= ](\d+)\s", " ".join(call.words).partition(".py")[0])
        return _Numbers(call, "composer", (int(number[1]), f"--nproc={number[1]}") if number else None)
    started = _started_with(call)
    if started is None:
        return None
    launcher, given = started
    numbers, nodes = launcher.numbers(given, view.asked.nodes), None
    if numbers.nodes is not None:
        fewest, most = _count(numbers.nodes[0]), _most(numbers.nodes[0])
        nodes = (fewest, most, numbers.nodes[1]) if fewest and most else None
    return _Numbers(call, launcher.programs[0], numbers.processes, nodes, own_nodes=launcher.by_ssh)


def _started_with(call: Call) -> tuple[Launcher, Mapping[str, str | None]] | None:
    """Return a launcher that stays on its node, within a container's line as well, and its options."""
    if call.torchrun is not None:
        return SHIPPED["torchrun"], TORCHRUN.read_unexpanded(call.words, call.torchrun)[0].given
    words = enumerate(call.words if call.name in CONTAINERS else ())
    known = {program for one in SHIPPED.values() if one.figures for program in one.programs}
    at = next((at for at, word in words if word.rsplit("/", 1)[-1] in known), 0)
    launch = launch_line(call.words[at:])
    return (launch.launcher, launch.line.given) if launch else None


@rule("warning")
def more_processes_than_gpus(view: View) -> Iterator[Hit]:
    """A launcher starts more processes on a node than the job has GPUs there."""
    gpus = view.asked.gpus_per_node
    if view.script.components > 1 or not gpus or _whole(view):
        return
    for told in (launcher_numbers(view, call) for call in view.calls):
        if told is None or told.processes is None or told.processes[0] <= gpus:
            continue
        number, option = told.processes
        has = f"{gpus} GPU{'s' * (gpus != 1)}"
        yield Hit(
            told.call.line,
            f"{told.name} {option} makes {number} processes on a node, and the job has {has} there: the others find none",
            f"start {gpus}, or ask for {number} GPUs on each node",
        )


@rule("warning")
def mpirun_in_each_task(view: View) -> Iterator[Hit]:
    """srun starts mpirun in each of several tasks, and each of them starts all processes."""
    tasks = view.asked.tasks
    for call in view.calls:
        if (
            call.srun is None
            or call.open_options
            or call.nested
            or call.name not in SHIPPED["mpirun"].programs
        ):
            continue
        count = _tasks(view, call.srun) or tasks
        if count and count > 1 and view.script.components == 1:
            yield Hit(
                call.line,
                f"srun starts {call.name} {count} times, and each starts all processes of the program",
                f"start the program by one of them: srun {' '.join(call.words[-2:])}, or {call.name} without srun",
            )
            return


@rule("warning")
def nnodes_disagree(view: View) -> Iterator[Hit]:
    """A launcher is told another number of nodes than the job starts it on."""
    nodes = view.asked.number("nodes")
    numbers = (launcher_numbers(view, call) for call in view.calls)
    launchers = [told for told in numbers if told is not None and told.nodes is not None]
    if view.script.components > 1 or not nodes or len(launchers) != 1:
        return
    (told,) = launchers
    if any(told.call.line in loop for loop in _loops(view)):
        return
    assert told.nodes is not None
    fewest, most, option = told.nodes
    started = nodes if told.own_nodes else _starts(view, told.call)
    if started is None:
        return
    severity: Severity | None = "error" if told.call.srun is not None and not told.call.open_options else None
    times = f"{started} time{'s' * (started != 1)}"
    if fewest > started:
        yield Hit(
            told.call.line,
            f"{told.name} {option} waits for {fewest} nodes, and this job, with {nodes}, starts it {times}: they never meet",
            f"write {option.partition('=')[0]}=$SLURM_NNODES, and start it once on each node (#SBATCH --ntasks-per-node=1)",
            severity,
        )
    elif (
        most < started == nodes
        and not told.own_nodes
        and re.search(r"rdzv|main_process_ip|master", view.body)
    ):
        yield Hit(
            told.call.line,
            f"{told.name} {option} on {nodes} nodes: those beyond {most} take no part, or train for themselves",
            f"write {option.partition('=')[0]}=$SLURM_NNODES",
        )


def _starts(view: View, call: Call) -> int | None:
    """Return how many times a launcher is started."""
    if call.srun is None:
        return 1
    if call.open_options:
        return None
    if "ntasks" in call.srun or ("ntasks-per-node" in call.srun and not view.asked.sets_tasks):
        return _tasks(view, call.srun)
    nodes = _count(call.srun.get("nodes"))
    if nodes and nodes != view.asked.nodes:
        return nodes
    return view.asked.tasks
