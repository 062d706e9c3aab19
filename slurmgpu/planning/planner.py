"""Job x Cluster -> Plan: pure, and every derived value has its reason."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from typing_extensions import assert_never

from slurmgpu.errors import InvalidInput, PlanError
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.environment import Environment
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Launcher, Plan, Reason
from slurmgpu.models.resources import Resources
from slurmgpu.models.units import Duration, Memory
from slurmgpu.planning.ask import SHARED
from slurmgpu.planning.choosing import Chosen, by_preference, candidates, choose
from slurmgpu.planning.command import python_command
from slurmgpu.planning.drafting import Draft
from slurmgpu.planning.gpus import as_spelled
from slurmgpu.planning.launching import Launching, choose_launcher, outside_the_container, own_loop
from slurmgpu.planning.options import Layouted, options_of, partition_named
from slurmgpu.planning.request import Layout, count
from slurmgpu.planning.restarting import restart_of

if TYPE_CHECKING:
    from slurmgpu.planning.cost import Cost
    from slurmgpu.planning.reading import ScriptFacts

__all__ = ["Surroundings", "make_plan", "own_loop_reasons", "partitions_that_fit", "resolve_environment"]


class Surroundings(NamedTuple):
    """What the planner needs from outside, read at the border and handed in."""

    work_dir: str
    """The work folder, absolute; $NAME in it expands when the job runs."""
    environments: Mapping[str, Environment] = {}
    """Named environments of the settings; they win over the cluster's."""
    origins: Mapping[str, str] = {}
    """Where a value of the job was written that is in no job file and no option: `resources.account` -> file:line."""
    script: ScriptFacts | None = None
    """What the user's script shows; None: not read."""
    force: bool = False
    """Plan what cannot run all the same, and say why it cannot."""


def resolve_environment(
    job: Job, cluster: Cluster, named: Mapping[str, Environment]
) -> tuple[str | None, Environment]:
    """The environment's name, if it has one, and what it is; an unknown name is an error."""
    choice = job.environment
    if choice is None and not job.exact and job.script is None:
        choice = cluster.default_environment
    if choice is None:
        return None, Environment.model_construct()
    if isinstance(choice, Environment):
        return None, choice
    known = {**cluster.environments, **named}
    if choice not in known:
        has = f"it has {', '.join(sorted(known))}" if known else "none is defined"
        raise PlanError(
            f"environment: {choice!r} is not defined for cluster {cluster.name!r}; {has}",
            hint=f"--environment takes a name; for a folder: --set environment.python.venv={choice} (or conda=)"
            if "/" in choice
            else "define it under environments: in the cluster's profile or in slurmgpu.yaml beside the job, "
            "or write it inline: environment: {modules: {load: [...]}}",
        )
    return choice, known[choice]


def _name(job: Job) -> str:
    if job.name:
        return job.name
    if job.train is not None:
        return PurePosixPath(job.train.task.split(":")[0]).stem
    assert job.command is not None
    python = python_command(job.command)
    word = (python.script or python.module) if python else _script_in(job.command)
    return PurePosixPath(word or job.command[0]).name.removesuffix(".py") or "job"


def _script_in(words: tuple[str, ...]) -> str | None:
    """The Python file in a shell's ``-c`` text: every ``bash -c 'python train.py ...'`` would be called bash."""
    if len(words) < 3 or not re.fullmatch(r"-[a-z]*c", words[-2]):
        return None
    found = re.search(r"[\w./-]+\.py\b", words[-1])
    return found[0] if found else None


def _tasks(job: Job, launching: Launching, gpus_per_node: int) -> tuple[int, str]:
    asked = job.resources.tasks_per_node
    if launching.launcher == "torchrun":
        if asked not in (None, 1):
            raise PlanError(
                f"resources.tasks_per_node: {asked} and launcher torchrun exclude each other: "
                "torchrun itself starts a process per GPU",
                hint="leave tasks_per_node out, or use launch: srun",
            )
        return 1, "torchrun starts the processes of a node"
    if launching.launcher == "srun":
        return (
            (asked, "as asked")
            if asked
            else (launching.tasks_per_node, "one task per node")
            if launching.tasks_per_node
            else (max(1, gpus_per_node), "one task per GPU" if gpus_per_node else "one task")
        )
    return (asked, "as asked") if asked else (1, "one process")


def _processes(launching: Launching, gpus_per_node: int, tasks: int) -> int:
    if launching.launcher == "torchrun":
        return max(1, gpus_per_node)
    if launching.launcher == "srun":
        return tasks
    if launching.launcher == "plain":
        return 1
    assert_never(launching.launcher)


def _processes_reason(launching: Launching, layout: Layout, processes: int) -> Reason:
    if launching.spawns:
        total, why = max(1, layout.gpus_per_node), "the command starts one for each GPU of its node"
    elif launching.launcher == "plain" and layout.nodes > 1:
        total, why = processes, "on the first of the nodes"
    else:
        total, why = layout.nodes * processes, f"{count(layout.nodes, 'node')} x {processes}"
    return Reason.model_construct(what="processes", value=str(total), why=why)


def _warnings(cluster: Cluster, chosen: Chosen, resources: Resources) -> tuple[str, ...]:
    """What is legal and likely not meant."""
    draft = chosen.draft
    warnings = list(chosen.overruled)
    if draft.account.instead:
        warnings.append(
            f"account {draft.account.instead} is for other types of GPU; the job charges {draft.account.value}"
        )
    none_wanted = resources.gpus is not None or resources.gpus_per_node is not None  # gpus: 0
    shared = any(gres.name in SHARED for gres in draft.ask.gres)
    if not draft.layout.gpus_per_node and not none_wanted and not shared:
        warnings.append("no GPU is asked for; --gpus 1, or resources.gpus, asks for one")
    elif draft.layout.gpus_per_node and draft.cpus.amount is None and not cluster.known:
        warnings.append(
            "no CPUs are asked for, and Slurm's usual default is 1 a task; --cpus-per-gpu asks for more"
        )
    if draft.groups:
        from slurmgpu.planning.pinning import loose_types  # only a described cluster pays for it

        warnings += loose_types(cluster, draft)
    return tuple(warnings)


def _check_array(job: Job, cluster: Cluster) -> None:
    """PlanError when an index is over the site's limit, with the arrays that would do."""
    most = cluster.slurm.max_array_size
    if job.array is None or most is None:
        return
    largest = max(map(int, re.findall(r"\d+", job.array.indices)))
    if largest >= most:
        raise PlanError(
            f"array: {job.array} has the number {largest}, and {cluster.name!r} allows indices up to {most - 1} (MaxArraySize)",
            hint=f"submit several arrays of at most {most} tasks, such as -a 0-{most - 1}, each with an offset of its own "
            f"that the command adds: --set variables.OFFSET={most}",
        )


def _check_task(job: Job) -> None:
    if job.command is None and job.train is None:
        raise InvalidInput(
            "the job has neither command nor train: there is nothing to run",
            hint="write command: [python, train.py] in a job file (job.yaml in this folder is found by itself), or after --: "
            "slurmgpu submit --gpus 2 -- python train.py",
        )


class _Launchings:
    """The launcher on each layout, decided once."""

    def __init__(
        self, job: Job, cluster: Cluster, environment: Environment, script: ScriptFacts | None
    ) -> None:
        self._job, self._cluster, self._environment, self._script = job, cluster, environment, script
        self._made: dict[tuple[int, int], Launching] = {}

    def on(self, layout: Layout) -> Launching:
        key = (layout.nodes, layout.gpus_per_node)
        if key not in self._made:
            self._made[key] = choose_launcher(
                self._job,
                self._environment,
                self._script,
                nodes=layout.nodes,
                gpus_per_node=layout.gpus_per_node,
                tasks_per_node=self._job.resources.tasks_per_node,
                cluster=self._cluster,
            )
        return self._made[key]

    def tasks_on(self, layout: Layout) -> int:
        return _tasks(self._job, self.on(layout), layout.gpus_per_node)[0]


def make_plan(job: Job, cluster: Cluster, around: Surroundings) -> Plan:
    """Resolve the job on the cluster; PlanError names what does not fit and what would."""
    made = _planned(job, cluster, around)
    ended = cluster.farewell
    if ended is None or ended in made.warnings:
        return made
    return made.model_copy(update={"warnings": (ended, *made.warnings)})


def _planned(job: Job, cluster: Cluster, around: Surroundings) -> Plan:
    _check_array(job, cluster)
    if job.exact or job.script is not None or job.components:
        from slurmgpu.planning.exact import as_it_stands

        return as_it_stands(job, cluster, around)
    _check_task(job)
    job = job.model_copy(update={"resources": as_spelled(cluster, job.resources)})
    environment_name, environment = resolve_environment(job, cluster, around.environments)
    launchings = _Launchings(job, cluster, environment, around.script)

    def nearby() -> list[str]:
        from slurmgpu.planning.ways_out import ways_out  # only a refusal pays for it

        return ways_out(cluster, job.resources, launchings.tasks_on)

    chosen = choose(cluster, job.resources, launchings.tasks_on, force=around.force, ways_out=nearby)
    launching = launchings.on(chosen.draft.layout)
    return _finished(job, cluster, around, (environment_name, environment), chosen, launching)


def partitions_that_fit(job: Job, cluster: Cluster, around: Surroundings) -> list[str]:
    """The partitions that would start the job, the best first; none on a cluster that is not described."""
    if job.exact or not cluster.known:
        return [name for name in [job.resources.partition] if name]
    if job.script is not None:
        job = job.model_copy(update={"script": None, "shebang": None, "command": ("srun",)})
    _, environment = resolve_environment(job, cluster, around.environments)
    tasks_on = _Launchings(job, cluster, environment, around.script).tasks_on
    fitting = candidates(cluster, as_spelled(cluster, job.resources), tasks_on).fitting
    return [made.partition for made in by_preference(cluster, fitting) if made.partition]


def _finished(
    job: Job,
    cluster: Cluster,
    around: Surroundings,
    named_environment: tuple[str | None, Environment],
    chosen: Chosen,
    launching: Launching,
) -> Plan:
    environment_name, environment = named_environment
    draft = chosen.draft
    layout = draft.layout
    tasks, tasks_why = _tasks(job, launching, layout.gpus_per_node)
    processes = _processes(launching, layout.gpus_per_node, tasks)
    resumes_at = own_loop(around.script) if job.train is None else None
    restart, restart_why = restart_of(job, resumes_at)
    work_dir = around.work_dir
    made = Layouted(
        name=_name(job),
        draft=draft,
        partition_why=chosen.why,
        launcher=launching.launcher,
        tasks_why=tasks_why,
        environment=environment,
        restarts=bool(restart.on),
        origins=around.origins,
        restart_why=restart_why,
        # sbatch expands nothing: a folder with a variable or ~ in it can only be entered by the script.
        chdir=None if re.search(r"\$(?:[A-Za-z_]|\{)|\A~", work_dir) else work_dir,
    )
    if job.train is not None:
        job.train.micro_batch(layout.nodes * processes)
    own_gpus = _own_gpus(cluster, launching.launcher, layout, tasks)
    remarks = _judged_precision(job, draft, draft.gpu_type, around.force)
    options = options_of(job, cluster, made)
    gpu_type = draft.gpu_type or _common_type(draft)
    time = job.resources.time or _default_time(cluster, draft)
    cost = _cost(cluster, draft, time, job.array.tasks if job.array else 1)
    # Every value comes from a validated job and cluster: nothing is checked a second time.
    return Plan.model_construct(
        cluster=cluster.name,
        name=made.name,
        partition=partition_named(cluster, job.resources.partition, draft.partition),
        nodes=layout.nodes,
        gpus_per_node=layout.gpus_per_node,
        gpu_type=gpu_type if layout.gpus_per_node else None,
        tasks_per_node=tasks,
        processes_per_node=processes,
        spawned_per_node=max(1, layout.gpus_per_node) if launching.spawns else 0,
        cpus_per_task=None if draft.cpus.amount is None else max(1, draft.cpus.amount // tasks),
        memory=None if draft.memory.amount is None else Memory(draft.memory.amount),
        time=job.resources.time,
        options=options,
        launcher=launching.launcher,
        own_gpus=own_gpus,
        srun_options=(
            *([f"--gpus-per-task={own_gpus}"] if own_gpus and cluster.dialect.gpus == "srun" else []),
            *cluster.dialect.srun_options,
            *environment.srun_options,
            *job.launch.srun_options,
        ),
        command=job.command,
        train=job.train.document() if job.train is not None else None,
        environment=environment,
        environment_name=environment_name,
        variables={**environment.variables, **job.variables},
        secrets=job.secrets,
        work_dir=work_dir,
        output=job.output,
        error=job.error,
        log_folders=_log_folders(job, made),
        restart_limit=restart.limit if restart.on else None,
        restart_on=restart.on,
        own_loop=resumes_at,
        tended=job.train is not None or resumes_at is not None or "timeout" in restart.on,
        login_shell=cluster.dialect.login_shell,
        address_suffix=cluster.dialect.address_suffix,
        gpu_hours=cost.gpu_hours if cost else None,
        charge=cost.charge if cost else None,
        charge_unit=cost.unit if cost and cost.charge is not None else None,
        reasons=(
            Reason.model_construct(what="launcher", value=launching.launcher, why=launching.why),
            _processes_reason(launching, layout, processes),
            *own_loop_reasons(resumes_at),
            *(_step_reasons(cluster, own_gpus) if layout.gpus_per_node else ()),
            *_type_reasons(draft),
            *_environment_reasons(job, environment_name),
            *_left_out(job, cluster, draft),
            *_cost_reasons(cost),
        ),
        warnings=(
            *launching.warnings,
            *_same_tasks(job, around.script),
            *outside_the_container(environment),
            *remarks,
            *_warnings(cluster, chosen, job.resources),
        ),
    )


def _judged_precision(job: Job, draft: Draft, pinned: str | None, force: bool) -> tuple[str, ...]:
    if job.train is None or job.train.precision == "fp32":
        return ()
    from slurmgpu.planning.precision import judge_precision  # only a training pays for it

    types = {pinned} if pinned else {group.gpu_type or "unnamed" for group in draft.groups}
    shared = draft.ask.whole or any(gres.name in SHARED for gres in draft.ask.gres)
    has_gpus = job.train.device != "cpu" and (draft.layout.gpus_per_node > 0 or shared)
    return judge_precision(job.train.precision, types, has_gpus=has_gpus, force=force)


def _own_gpus(cluster: Cluster, launcher: Launcher, layout: Layout, tasks: int) -> int | None:
    """GPUs of each task of srun where the site gives them by the task; PlanError where they cannot be split."""
    style = cluster.dialect.gpus
    if not layout.gpus_per_node or style not in ("srun", "gpus-per-task"):
        return None
    if (
        style == "srun" and launcher == "plain"
    ):  # the batch shell has all GPUs of its node (seen on 20.11 to 26.05)
        return None
    if layout.gpus_per_node % tasks:
        raise PlanError(
            f"resources.tasks_per_node: {tasks}: {cluster.name!r} gives each task its own GPUs, and "
            f"{count(layout.gpus_per_node, 'GPU')} a node cannot be split evenly over {tasks} tasks",
            hint="leave tasks_per_node out for one task per GPU",
        )
    return layout.gpus_per_node // tasks


def _step_reasons(cluster: Cluster, own_gpus: int | None) -> tuple[Reason, ...]:
    """Where the job itself asks for no GPU: who gets them."""
    if cluster.dialect.gpus != "srun":
        return ()
    if own_gpus is None:
        value, why = "those of the whole node", f"{cluster.name} gives whole nodes, and GPUs to steps"
    else:
        value = f"{own_gpus} for each task"
        why = f"{cluster.name} gives GPUs to the tasks of a step: srun asks for them, not the job"
    return (Reason.model_construct(what="GPUs", value=value, why=why),)


def _default_time(cluster: Cluster, draft: Draft) -> Duration | None:
    partition = cluster.partitions.get(draft.partition or "")
    return (partition.limits.default_time or partition.limits.max_time) if partition else None


def _cost(cluster: Cluster, draft: Draft, time: Duration | None, tasks: int) -> Cost | None:
    if not cluster.known:
        return None
    from slurmgpu.planning.cost import cost_of  # only a described cluster pays for it

    return cost_of(cluster, draft, time, tasks=tasks)


def _cost_reasons(cost: Cost | None) -> tuple[Reason, ...]:
    if cost is None:
        return ()
    from slurmgpu.planning.cost import figure

    rows = []
    if cost.gpu_hours:
        rows.append(
            Reason.model_construct(
                what="GPU-hours", value=f"{figure(cost.gpu_hours)} at most", why=cost.gpu_hours_why
            )
        )
    if cost.charge is not None:
        rows.append(
            Reason.model_construct(
                what="charge", value=f"{figure(cost.charge)} {cost.unit} at most", why=cost.charge_why
            )
        )
    return tuple(rows)


def own_loop_reasons(where: str | None) -> tuple[Reason, ...]:
    """Why slurmgpu.training travels with the run."""
    if where is None:
        return ()
    why = f"into the run directory, since {where} imports it"
    return (Reason.model_construct(what="slurmgpu.training", value="copied", why=why),)


def _same_tasks(job: Job, script: ScriptFacts | None) -> tuple[str, ...]:
    """A warning where the tasks of an array have nothing to tell them apart."""
    if job.array is None or job.array.tasks < 2 or script is None or not script.same_in_all_tasks:
        return ()
    told = (*(job.command or ()), *job.variables.values())
    if any("SLURM_" in word for word in told):
        return ()
    return (
        f"nothing in the command or in {script.path} reads SLURM_ARRAY_TASK_ID: each of the {job.array.tasks} tasks "
        "would do the same; read it in the script (os.environ), or let a shell put it into the command: "
        f"-- bash -c 'python {script.path} --trial $SLURM_ARRAY_TASK_ID'",
    )


def _type_reasons(draft: Draft) -> tuple[Reason, ...]:
    if not draft.groups:
        return ()
    from slurmgpu.planning.pinning import type_reasons  # only a described cluster pays for it

    return type_reasons(draft)


def _environment_reasons(job: Job, name: str | None) -> tuple[Reason, ...]:
    """Why a job that names no environment has one."""
    if name is None or job.environment is not None:
        return ()
    why = "the profile's default_environment; environment: {} in the job sets up nothing"
    return (Reason.model_construct(what="environment", value=name, why=why),)


def _log_folders(job: Job, made: Layouted) -> tuple[str, ...]:
    """Folders of the log files: Slurm makes none, and a job whose log cannot be opened dies without a word."""
    folders: dict[str, None] = {}
    for field_name, pattern in (("output", job.output), ("error", job.error)):
        if pattern is None:
            continue
        parent = posixpath.dirname(pattern).replace("%x", made.name)
        if "%" in parent.replace("%%", ""):
            raise PlanError(
                f"{field_name}: {pattern!r} has a pattern in its folder, and Slurm makes no folders: no log, no job",
                hint="keep %-patterns to the file's own name; %x (the job's name) may stand anywhere",
            )
        if made.chdir and re.search(r"[%\\]", made.chdir) and not pattern.startswith("/"):
            raise PlanError(
                f"{field_name}: {pattern!r} is against the work folder {made.chdir!r}, whose % or backslash Slurm would expand",
                hint=f"write {field_name} as an absolute path, or leave it out",
            )
        if parent:
            folders[posixpath.join(made.chdir or "", parent.replace("%%", "%"))] = None
    return tuple(folders)


def _common_type(draft: Draft) -> str | None:
    types = {group.gpu_type for group in draft.groups}
    return next(iter(types)) if len(types) == 1 else None


def _left_out(job: Job, cluster: Cluster, draft: Draft) -> tuple[Reason, ...]:
    """The reasons for what is not asked of Slurm."""
    left: list[Reason] = []
    if draft.cpus.amount is None:
        left.append(Reason.model_construct(what="CPUs", value="not asked for", why=draft.cpus.why))
    if draft.memory.amount is None:
        left.append(Reason.model_construct(what="memory", value="not asked for", why=draft.memory.why))
    if job.resources.time is None:
        partition = cluster.partitions.get(draft.partition or "")
        default = partition.limits.default_time if partition else None
        why = (
            f"the partition's default of {default} applies"
            if default
            else "the partition's default applies; -t sets it"
        )
        left.append(Reason.model_construct(what="time", value="not asked for", why=why))
    return tuple(left)
