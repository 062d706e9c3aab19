"""An exact job: what stands in it is asked for, to the letter, and nothing else."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping

from slurmgpu.errors import InvalidInput, PlanError
from slurmgpu.launchers import Launching, launcher
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.environment import Environment
from slurmgpu.models.job import Job, Restart
from slurmgpu.models.options import ROWS
from slurmgpu.models.plan import Option
from slurmgpu.models.resources import Component, Resources, gpus_of_a_task
from slurmgpu.models.units import Duration, GpuRequest, Memory
from slurmgpu.planning.binding import Starting, asked_again, binding_words, check_starts
from slurmgpu.planning.guesses import without_guesses
from slurmgpu.planning.judging_options import handed_down, judge_options, judge_together
from slurmgpu.planning.launcher_choice import choose_launcher, outside_the_container, own_loop
from slurmgpu.planning.settled import (
    Settled,
    Size,
    Surroundings,
    judge_precision,
    name_of,
    refuse_timeout,
    resolve_environment,
    restart_of,
)

__all__ = ["ExactSize", "component_options", "exact_options", "settle"]


_SPELLED = (Duration, GpuRequest, Memory)
_OF_RESOURCES = [
    (field, row.option)
    for row in ROWS
    if row.option and (field := row.key.removeprefix("resources.")) != row.key
]
_WHY = "as it stands in the job (exact)"
# What launchers that run on every node must know as numbers.
_SIZES = ("nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "gres")


def settle(job: Job, cluster: Cluster, around: Surroundings) -> Settled:
    """Ask for what stands in the job and for nothing else; the cluster's dialect does not count.

    PlanError when two fields say the same option, there is nothing to run, or a component would never start there.
    """
    for field in ("script", "components"):
        if getattr(job, field):
            refuse_timeout(job, field)
    options = tuple(exact_options(job))
    components = tuple(tuple(component_options(one)) for one in job.components)
    overruled = _never_starts(cluster, job.resources, (options, *components), around.force)
    name, environment = resolve_environment(job, cluster, around.environments)
    size = ExactSize(job.resources)
    launching = _launching(job, environment, size, around)
    if job.train is not None:
        job.train.require_processes(size.nodes * size.processes(launching))
        job.train.samples_at_a_time(size.nodes * size.processes(launching))
        # Nothing is known of GPUs that the options do not name: whole nodes bring them, or a gres of another name.
        types = {size.gpu_type} if size.gpu_type else ()
        has_gpus = job.train.device != "cpu"
        overruled += job.train.without_effect()
        overruled += judge_precision(job.train.precision, types, has_gpus=has_gpus, force=around.force)
    _check_binding(job, environment, launching, size)
    own_gpus = _own_gpus(job, size, launching)
    again: tuple[str, ...] = ()
    if own_gpus:
        name = job.resources.partition or cluster.default_partition or ""
        partition = cluster.partitions.get(name)
        whole = job.resources.exclusive or bool(partition and partition.whole_nodes)
        tasks = size.gpus // own_gpus
        again = asked_again(cluster, name if whole else None, size.gpu_type, each=own_gpus, tasks=tasks)
    text = {option.name: option.value for option in options}
    folders, warnings = _log_folders(text)
    return Settled(
        name=text.get("job-name")
        or name_of(job),  # Slurm calls a job without --job-name by its script's file
        options=options,
        size=size.under(launching, job.resources),
        launching=launching,
        environment_name=name,
        environment=environment,
        restart=restart_of(job)[0] if job.restart is not None else Restart.model_construct(),
        own_loop=own_loop(around.script) if job.command is not None else None,
        log_folders=folders,
        srun_options=(
            *again,
            *binding_words(job.resources),
            *job.launch.srun_options,
        ),
        own_gpus=gpus_of_a_task(job.resources.gpu_bind) if job.resources.gpu_bind is not None else own_gpus,
        components=components,
        warnings=(*overruled, *launching.warnings, *outside_the_container(environment), *warnings),
    )


def _check_binding(job: Job, environment: Environment, launching: Launching, size: ExactSize) -> None:
    check_starts(job, Starting(launching.launcher, environment, size.tasks, size.processes(launching)))


def _own_gpus(job: Job, size: ExactSize, launching: Launching) -> int | None:
    """GPUs of each task of our srun, which asks for them again where the job counts them by the task.

    A type in the job's own `--gpus-per-task` leaves a bare srun's tasks without any (seen on 22.05), and a launcher that
    starts one task for all processes of a node needs the GPUs of all.
    """
    asked, starter = job.resources.gpus_per_task, launcher(launching.launcher)
    if asked is None or not starter.by_srun or job.script is not None or job.components:
        return None
    return size.gpus if starter.one_task_each else asked.count


def _never_starts(
    cluster: Cluster, resources: Resources, components: tuple[tuple[Option, ...], ...], force: bool
) -> tuple[str, ...]:
    """Return why it would never start, when that is overruled; PlanError when it is not."""

    def judged(on: Cluster) -> list[str]:
        found: list[str] = []
        given = handed_down([{option.name: option.value for option in one} for one in components])
        for number, options in enumerate(given):
            of = f"component {number}: " if len(components) > 1 else ""
            found += [f"{of}{problem}" for problem in judge_options(on, options)]
        return [*found, *map(str, judge_together(on, given))]

    found = judged(cluster)
    if found and (doubted := without_guesses(cluster, resources)) and not judged(doubted.cluster):
        why = "; ".join(f"{key}: {why}" for key, why in doubted.guesses.items())
        return tuple(f"{one}; that is a guess of the profile ({why})" for one in found)
    if found and not force:
        raise PlanError(
            f"the job as it is would never start on {cluster.name!r}: {'; '.join(found)}",
            hint="change what it asks for; or leave exact out of a job file, and the planner says what would fit; "
            "or --force asks for it all the same",
        )
    return tuple(found)


class ExactSize:
    """Nodes, tasks and GPUs as far as the job says them in numbers; what it does not say is Slurm's default."""

    def __init__(self, resources: Resources) -> None:
        self.nodes = resources.nodes or 1
        self.tasks = resources.tasks_per_node or max(1, (resources.tasks or 1) // self.nodes)
        in_gres = [entry for entry in resources.gres if entry.name == "gpu" and entry.count.isdigit()]
        requests = (resources.gpus_per_node, resources.gpus_per_task, resources.gpus)
        types = {one.type for one in (*requests, *in_gres) if one is not None and one.type}
        self.gpu_type = next(iter(types)) if len(types) == 1 else None
        if resources.gpus_per_node is not None:
            self.gpus = resources.gpus_per_node.count
        elif in_gres:
            self.gpus = sum(int(entry.count) for entry in in_gres)
        elif resources.gpus_per_task is not None:
            self.gpus = resources.gpus_per_task.count * self.tasks
        else:
            self.gpus = (resources.gpus.count if resources.gpus else 0) // self.nodes

    def processes(self, launching: Launching) -> int:
        """Processes on a node, whoever starts them."""
        return launcher(launching.launcher).processes(self.gpus, self.tasks)

    def under(self, launching: Launching, resources: Resources) -> Size:
        """Return the size that a launcher counts with."""
        return Size(
            nodes=self.nodes,
            gpus_per_node=self.gpus,
            gpu_type=self.gpu_type,
            tasks_per_node=1 if launcher(launching.launcher).one_task_each else self.tasks,
            processes_per_node=self.processes(launching),
            cpus_per_task=resources.cpus_per_task,
            memory=resources.memory,
        )


def _launching(job: Job, environment: Environment, size: ExactSize, around: Surroundings) -> Launching:
    if job.command is None and job.train is None and job.script is None:
        raise InvalidInput(
            "the job has neither command nor train nor script: there is nothing to run",
            hint="write command: [python, train.py], or the lines of a script under script: |",
        )
    chosen = choose_launcher(
        job,
        environment,
        around.script,
        layout=(size.nodes, size.gpus, size.tasks),
    )
    starter = launcher(chosen.launcher)
    unknown = [name for name in _SIZES if isinstance(job.sbatch.get(name), str)]
    if starter.on_every_node and unknown:
        raise PlanError(
            f"sbatch.{unknown[0]}: {job.sbatch[unknown[0]]!r}: launcher {chosen.launcher} must know nodes, tasks and "
            "GPUs as numbers",
            hint="write the number under resources:, or the lines that start the processes under script: |",
        )
    if starter.one_task_each and not size.gpus:
        warning = (
            f"the job names no GPUs, so {chosen.launcher} starts one process on each node; "
            "resources.gpus_per_node names them"
        )
        return chosen._replace(warnings=(*chosen.warnings, warning))
    return chosen


def exact_options(job: Job) -> Iterator[Option]:
    """Yield the options in the job, each as it is spelled there; PlanError when one is there twice."""
    given = [*_own_options(job), *_others(job.sbatch)]
    seen: set[str] = set()
    for name, value in given:
        if name in seen:
            raise PlanError(
                f"sbatch.{name}: {value!r}: another field of the job says --{name} too; keep one of the two",
                hint=f"leave sbatch.{name} out, or the field",
            )
        seen.add(name)
        yield Option.of(name, value, _WHY)


def _own_options(job: Job) -> Iterator[tuple[str, str | None]]:
    if job.name:
        yield "job-name", job.name
    yield from _of_resources(job.resources)
    yield from ((name, str(value)) for name in ("array", "dependency") if (value := getattr(job, name)))
    if job.restart is not None:
        yield ("requeue" if job.restart.on else "no-requeue"), None
    yield from ((name, value) for name in ("output", "error") if (value := getattr(job, name)))
    if job.mail is not None:
        if "type" in job.mail.model_fields_set or not job.mail.user:
            yield "mail-type", ",".join(job.mail.type)
        if job.mail.user:
            yield "mail-user", job.mail.user
    if job.comment:
        yield "comment", job.comment


def _of_resources(resources: Resources) -> Iterator[tuple[str, str | None]]:
    for field, option in _OF_RESOURCES:
        value = getattr(resources, field)
        if value is None or value is False or value == ():
            continue
        if field == "gres":
            yield option, ",".join(entry.as_written for entry in resources.gres)
        elif value is True:
            yield option, None
        else:
            yield option, value.as_written if isinstance(value, _SPELLED) else str(value)


def _others(sbatch: Mapping[str, str | int | bool]) -> Iterator[tuple[str, str | None]]:
    for name, value in sbatch.items():
        if value is not False:
            yield name, None if value is True else str(value)


def component_options(component: Component) -> Iterator[Option]:
    """Yield the options that stand in a further component."""
    given = [*_of_resources(component.resources), *_others(component.sbatch)]
    for name, value in given:
        yield Option.of(name, value, _WHY)


def _log_folders(options: Mapping[str, str | None]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the folders of the log files as far as their names are known here, and a warning where they are not."""
    folders: dict[str, None] = {}
    warnings: list[str] = []
    for name in ("output", "error"):
        parent = posixpath.dirname(options.get(name) or "")
        if options.get("job-name"):
            parent = parent.replace("%x", options["job-name"] or "")
        if re.search(r"[%\\]", parent.replace("%%", "")):
            warnings.append(
                f"{name}: {options[name]!r}: Slurm up to 22.05 makes no folders, so {parent!r} must be there"
            )
        elif parent:
            folder = posixpath.join(options.get("chdir") or "", parent)
            folders[folder.replace("%%", "%")] = None
    return tuple(folders), tuple(warnings)
