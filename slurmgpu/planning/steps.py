"""Several commands in one job: the share of each, and on which nodes it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from slurmgpu.amounts import count
from slurmgpu.errors import PlanError
from slurmgpu.launchers import Launcher, Launching, launcher
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.job_parts import Step, variable_of
from slurmgpu.models.plan import Option, PlannedStep, Reason
from slurmgpu.models.resources import Component, Resources
from slurmgpu.models.units import Memory
from slurmgpu.planning.launcher_choice import choose_launcher, own_loop
from slurmgpu.planning.settled import Settled, Size, Surroundings

__all__ = ["settle"]


class _Asked(NamedTuple):
    """The job, and what it is planned with."""

    job: Job
    cluster: Cluster
    around: Surroundings


class _Draft(NamedTuple):
    """A step on its component, before it has nodes."""

    name: str
    step: Step
    launching: Launching
    nodes: int
    gpus: int
    """On each node."""
    tasks: int
    cpus: int | None
    """Of each task; None: nothing is known, and it has all that its component has."""
    alone: bool

    @property
    def needs(self) -> dict[str, int]:
        """Return its share of each of its nodes."""
        memory = self.step.memory
        return {
            "GPU": self.gpus,
            "CPU": self.tasks * (self.cpus or 1),
            "MiB of memory": memory.mib if memory else 0,
        }


def settle(
    job: Job, cluster: Cluster, around: Surroundings, derived: Callable[[Job, Cluster, Surroundings], Settled]
) -> Settled:
    """Return the job with a share for each of its steps; PlanError where they do not fit beside each other.

    Without a word of the job on CPUs or memory, it asks for as much as its steps need.
    """
    made = derived(job, cluster, around)
    drafts = [
        _drafts(_Asked(job, cluster, around), made, number) for number in range(1 + len(job.components))
    ]
    wider = _with_needs(job, cluster, made, drafts)
    if wider is not job:
        made = _explained(derived(wider, cluster, around), job, wider)
        drafts = [
            _drafts(_Asked(wider, cluster, around), made, number) for number in range(1 + len(job.components))
        ]
    loops = {name: loop for name, facts in around.scripts.items() if (loop := own_loop(facts))}
    steps: dict[str, PlannedStep] = {}
    warnings: list[str] = []
    for number, there in enumerate(drafts):
        size, options = _component(made, number)
        of = f"component {number}: " if job.components else ""
        placed = _placed(there, size, of)
        gres = _gpu_word(cluster, options) if size.gpus_per_node else None
        for one in there:
            steps[one.name] = _planned(one, number, placed[one.name], gres, cluster, made)
            warnings += [f"steps.{one.name}: {said}" for said in one.launching.warnings]
        warnings += _idle(there, size, of)
    ordered = [steps[name] for name in job.steps]
    if len(loops) > 1:
        ordered = [one.model_copy(update={"own_folder": one.name in loops}) for one in ordered]
    return made._replace(
        steps=tuple(ordered),
        own_loop=next(iter(loops.values()), None),
        reasons=(*made.reasons, *_reasons(job, drafts, placed_on(ordered))),
        warnings=(*made.warnings, *warnings),
    )


def _explained(made: Settled, job: Job, wider: Job) -> Settled:
    """With the reason for what the steps have asked for, and not the job."""
    asked = tuple(
        option
        for field, option in (("cpus_per_task", "cpus-per-"), ("memory", "mem"))
        if getattr(job.resources, field) != getattr(wider.resources, field)
    )
    why = "what the steps need beside each other"
    return made._replace(
        options=tuple(
            Option.of(one.name, one.value, why) if asked and one.name.startswith(asked) else one
            for one in made.options
        )
    )


def placed_on(steps: list[PlannedStep]) -> dict[str, str]:
    """Return the nodes of each step, counted from 1 within its component, in words."""
    return {
        one.name: f"node {one.first_node + 1}"
        if one.nodes == 1
        else f"nodes {one.first_node + 1} to {one.first_node + one.nodes}"
        for one in steps
    }


def _component(made: Settled, number: int) -> tuple[Size, tuple[Option, ...]]:
    if number == 0:
        return made.size, made.options
    return made.further[number - 1], made.components[number - 1]


def _resources(job: Job, number: int) -> Resources:
    return job.resources if number == 0 else job.components[number - 1].resources


def _cpus_on_a_node(size: Size) -> int | None:
    return None if size.cpus_per_task is None else size.cpus_per_task * size.tasks_per_node


def _drafts(asked: _Asked, made: Settled, number: int) -> list[_Draft]:
    """Return the steps of a component, with what each takes of its nodes."""
    size, _ = _component(made, number)
    here = {name: step for name, step in asked.job.steps.items() if step.component == number}
    sharing = [name for name, step in here.items() if not step.overlap]
    found = [_draft(asked, made, size, name, step, alone=sharing == [name]) for name, step in here.items()]
    return _with_cpus(found, size)


def _draft(asked: _Asked, made: Settled, size: Size, name: str, step: Step, *, alone: bool) -> _Draft:
    nodes = step.nodes or (size.nodes if alone or step.overlap else 1)
    if nodes > size.nodes:
        raise PlanError(
            f"steps.{name}.nodes: {nodes}: its component has {count(size.nodes, 'node')}",
            hint=f"write nodes: {size.nodes} or less there, or ask for more under resources",
        )
    if (step.gpus or 0) % nodes:
        raise PlanError(
            f"steps.{name}.gpus: {step.gpus} cannot be split evenly over {count(nodes, 'node')}",
            hint=f"write a multiple of {nodes}, or another number of nodes",
        )
    gpus = step.gpus // nodes if step.gpus is not None else size.gpus_per_node if alone else 0
    launch = step.launch
    if launch.launcher == "auto" and (step.tasks_per_node or step.overlap or (not gpus and nodes > 1)):
        launch = launch.model_copy(update={"launcher": "srun"})
    command = {"command": step.command, "launch": launch, "steps": {}, "components": ()}
    try:
        launching = choose_launcher(
            asked.job.model_copy(update=command),
            made.environment,
            asked.around.scripts.get(name),
            layout=(nodes, gpus, step.tasks_per_node),
            cluster=asked.cluster,
        )
        if launch != step.launch:
            launching = launching._replace(
                why="one task on each node" if not step.tasks_per_node else "as many tasks as asked"
            )
        starter = launcher(launching.launcher)
        if starter.without_srun or type(starter).preparation is not Launcher.preparation:
            raise PlanError(
                f"launch: {launching.launcher} needs a job of its own, and cannot start a step beside others",
                hint="use launch: srun, torchrun or plain there",
            )
        each = step.tasks_per_node or (1 if step.overlap else None)
        tasks, _ = starter.tasks(launching.launcher, each, gpus, launching.tasks_per_node)
    except PlanError as error:
        message = error.message.replace("resources.tasks_per_node", "tasks_per_node")
        raise PlanError(f"steps.{name}: {message}", hint=error.hint) from None
    if not starter.on_every_node:
        nodes, tasks = 1, 1
    return _Draft(name, step, launching, nodes, gpus, tasks, step.cpus_per_task, alone)


def _with_cpus(drafts: list[_Draft], size: Size) -> list[_Draft]:
    """Those that say no CPUs get the share of their GPUs in what the others leave, or one for each task."""
    there = _cpus_on_a_node(size)
    others = sum(
        one.needs["CPU"] for one in drafts if not one.step.overlap and (one.cpus is not None or not one.gpus)
    )
    each = max(0, (there or 0) - others) // max(1, size.gpus_per_node)

    def cpus(one: _Draft) -> int | None:
        if one.cpus is not None or one.step.overlap:
            return one.cpus
        if one.alone:
            return None if there is None else max(1, there // one.tasks)
        return max(1, each * one.gpus // one.tasks)

    return [one._replace(cpus=cpus(one)) for one in drafts]


def _with_needs(job: Job, cluster: Cluster, made: Settled, drafts: list[list[_Draft]]) -> Job:
    """Return the job that asks for the CPUs and the memory that its steps need, where it says nothing of them itself."""
    asked: list[Resources] = []
    for number, there in enumerate(drafts):
        resources, (size, _) = _resources(job, number), _component(made, number)
        needs = _most_on_a_node(there, size)
        update: dict[str, object] = {}
        free = resources.cpus_per_task is None and resources.cpus_per_gpu is None
        if free and cluster.dialect.cpus != "none" and needs["CPU"] > (_cpus_on_a_node(size) or 1):
            update["cpus_per_task"] = -(-needs["CPU"] // size.tasks_per_node)
        names = ("memory", "memory_per_cpu", "memory_per_gpu")
        free = all(getattr(resources, name) is None for name in names) and cluster.dialect.memory != "none"
        free = free and all(one.step.memory for one in _shares(there))  # what says nothing shares the job's
        if free and needs["MiB of memory"] > (size.memory.mib if size.memory else 0):
            update["memory"] = Memory(needs["MiB of memory"])
        asked.append(resources.model_copy(update=update) if update else resources)
    if all(one is _resources(job, number) for number, one in enumerate(asked)):
        return job
    components = tuple(
        Component.model_construct(resources=resources, sbatch=one.sbatch)
        for one, resources in zip(job.components, asked[1:], strict=True)
    )
    return job.model_copy(update={"resources": asked[0], "components": components})


def _shares(drafts: list[_Draft]) -> list[_Draft]:
    """Those that have a share of their own; the largest first, so that as many as can be fit."""
    mine = [one for one in drafts if not one.step.overlap]
    return sorted(mine, key=lambda one: (-one.nodes, -one.gpus, -one.needs["CPU"]))


def _most_on_a_node(drafts: list[_Draft], size: Size) -> Mapping[str, int]:
    """Return what the steps need of one node at most, when their GPUs say on which they are; no CPUs where one has all."""
    on = _fitted(drafts, size.nodes, {"GPU": size.gpus_per_node})
    needs = {"GPU": 0, "CPU": 0, "MiB of memory": 0}
    for node in range(size.nodes):
        there = [
            one
            for one in _shares(drafts)
            if node in range(on.get(one.name, 0), on.get(one.name, 0) + one.nodes)
        ]
        for what in needs:
            counted = [one for one in there if what != "CPU" or one.cpus is not None]
            needs[what] = max(needs[what], sum(one.needs[what] for one in counted))
    return needs


def _fitted(drafts: list[_Draft], nodes: int, room: Mapping[str, int | None]) -> dict[str, int]:
    """Return the first node of each step: spread over the nodes where they fit so, else packed; what has no room is missing."""
    spread = _laid_out(drafts, nodes, room, spread=True)
    return spread if len(spread) == len(_shares(drafts)) else _laid_out(drafts, nodes, room, spread=False)


def _laid_out(
    drafts: list[_Draft], nodes: int, room: Mapping[str, int | None], *, spread: bool
) -> dict[str, int]:
    left = [dict(room) for _ in range(nodes)]
    busy = [0] * nodes
    found: dict[str, int] = {}
    for one in _shares(drafts):
        places = [
            first
            for first in range(nodes - one.nodes + 1)
            if all(
                amount is None or one.needs[what] <= amount
                for node in left[first : first + one.nodes]
                for what, amount in node.items()
            )
        ]
        if not places:
            continue
        first = min(places, key=lambda place: busy[place] if spread else 0)
        for at in range(first, first + one.nodes):
            busy[at] += one.needs["CPU"]
            left[at] = {
                what: None if had is None else had - one.needs[what] for what, had in left[at].items()
            }
        found[one.name] = first
    return found


def _placed(drafts: list[_Draft], size: Size, of: str) -> dict[str, int]:
    """Return the first node of each step; PlanError with the sums where one would wait for the others to end."""
    memory = size.memory.mib if size.memory and size.memory.mib else None
    room = {"GPU": size.gpus_per_node, "CPU": _cpus_on_a_node(size), "MiB of memory": memory}
    found = _fitted(drafts, size.nodes, room)
    missing = [one for one in _shares(drafts) if one.name not in found]
    if not missing:
        return {**dict.fromkeys((one.name for one in drafts), 0), **found}
    sums: list[str] = []
    for what, each in room.items():
        if sums and what == "CPU" and not any(one.step.cpus_per_task for one in drafts):
            continue  # they come with the GPUs
        parts = {one.name: one.needs[what] * one.nodes for one in _shares(drafts)}
        total = sum(parts.values())
        if each is not None and total > each * size.nodes:
            added = " + ".join(f"{name} {amount}" for name, amount in parts.items() if amount)
            sums.append(
                f"{count(total, what) if what != 'MiB of memory' else f'{total} {what}'} ({added}) of {each * size.nodes}"
            )
    late = missing[0]
    if sums:
        raise PlanError(
            f"{of}steps: together they ask for {' and '.join(sums)}: {late.name} would wait until others end",
            hint="steps start together: give them less, or ask for more under resources; one that asks for nothing of its own "
            "may share the others' (overlap: true); one after the other: lines under script: |",
        )
    needs = ", ".join(
        count(amount, what) if what != "MiB of memory" else f"{amount} {what}"
        for what, amount in late.needs.items()
        if amount
    )
    raise PlanError(
        f"{of}steps: {late.name} needs {count(late.nodes, 'node')} with {needs} each, and the others leave no such "
        f"{'nodes' if late.nodes > 1 else 'node'}: it would wait until they end",
        hint="give the steps less or other numbers of nodes, or ask for more under resources",
    )


def _idle(drafts: list[_Draft], size: Size, of: str) -> Iterator[str]:
    """Yield what no step uses."""
    if not drafts:
        yield f"{of}no step runs there: it stays idle; give one component: {of.split()[1].rstrip(':')}"
        return
    used, gpus = sum(one.gpus * one.nodes for one in drafts), size.gpus_per_node * size.nodes
    if used < gpus:
        yield f"{of}{gpus - used} of {count(gpus, 'GPU')} are for no step; steps.NAME.gpus gives them to one"


def _gpu_word(cluster: Cluster, options: tuple[Option, ...]) -> str | None:
    """GPUs as the job's own option names them, without their number; None where srun cannot ask for any."""
    if cluster.dialect.gpus == "none":
        return None
    for option in options:
        if option.name in {"gres", "gpus", "gpus-per-node", "gpus-per-task"}:
            typed = re.search(r"(?:^|,)(?:gres:)?(?:gpu:)?([A-Za-z][\w.-]*):\d", option.value or "")
            in_gres = re.search(r"(?:^|,)gpu:([A-Za-z][\w.-]*):\d", option.value or "")
            found = in_gres if option.name == "gres" else typed
            if found and found[1] != "gpu":
                return f"gpu:{found[1]}"
    return "gpu"


def _planned(
    one: _Draft, number: int, first_node: int, gpu_word: str | None, cluster: Cluster, made: Settled
) -> PlannedStep:
    starter = launcher(one.launching.launcher)
    step, (size, _) = one.step, _component(made, number)
    all_of_it = one.alone and (one.cpus is None or (one.nodes, one.gpus) == (size.nodes, size.gpus_per_node))
    exact = not all_of_it and not step.overlap
    gres = (f"{gpu_word}:{one.gpus}" if one.gpus else "none") if exact and gpu_word else None
    own_gpus = None
    # A step that asks for none has none at some sites, also where it is alone, and at others all of the node: then steps
    # side by side would use the same.
    asks = cluster.dialect.gpus == "srun" or (cluster.dialect.gpus == "none" and exact)
    if asks:
        gpus = size.gpus_per_node if step.overlap else one.gpus
        own_gpus = gpus // one.tasks if gpus and not step.overlap and gpus % one.tasks == 0 else None
        gres = f"{gpu_word or 'gpu'}:{gpus}" if gpus and own_gpus is None else None if gpus else gres
    pmi = [f"--mpi={cluster.dialect.mpi}"] if starter.needs_pmi and cluster.dialect.mpi else []
    return PlannedStep.model_construct(
        name=one.name,
        command=step.command,
        component=number,
        first_node=first_node,
        nodes=one.nodes,
        gpus_per_node=size.gpus_per_node if step.overlap else one.gpus,
        tasks_per_node=one.tasks,
        processes_per_node=starter.processes(one.gpus, one.tasks),
        spawned_per_node=max(1, one.gpus) if one.launching.spawns else 0,
        cpus_per_task=one.cpus,
        memory=step.memory,
        launcher=one.launching.launcher,
        srun_options=(
            *([f"--gpus-per-task={own_gpus}"] if own_gpus else []),
            *pmi,
            *cluster.dialect.srun_options,
            *made.environment.srun_options,
            *step.launch.srun_options,
        ),
        gres=gres,
        own_gpus=own_gpus,
        exact=exact,
        background=step.background,
        overlap=step.overlap,
    )


def _reasons(job: Job, drafts: list[list[_Draft]], on: Mapping[str, str]) -> Iterator[Reason]:
    for number, there in enumerate(drafts):
        for one in there:
            has = [on[one.name] + (f" of component {number}" if job.components else "")]
            if one.step.overlap:
                has.append("sharing what the others have")
            else:
                has += (
                    [f"{count(one.gpus, 'GPU')} each" if one.nodes > 1 else count(one.gpus, "GPU")]
                    if one.gpus
                    else []
                )
                has += [f"{count(one.tasks, 'task')} x {count(one.cpus, 'CPU')}"] if one.cpus else []
                has += [one.step.memory.readable] if one.step.memory else []
            has += ["in the background"] if one.step.background else []
            yield Reason.of(
                f"step {one.name}", ", ".join(has), f"{one.launching.launcher}: {one.launching.why}"
            )
    if len(job.steps) > 1:
        names = ", ".join(map(variable_of, job.steps))
        yield Reason.of("addresses", names, "the first node of each step, for the others to find it")
