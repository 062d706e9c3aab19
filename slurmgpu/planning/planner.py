"""Job x Cluster -> Plan: partition, nodes, CPUs, memory and launcher are derived where the job leaves them out."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from slurmgpu.amounts import count
from slurmgpu.errors import InvalidInput, PlanError
from slurmgpu.launchers import Launching, launcher
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.environment import Environment
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan, Reason
from slurmgpu.models.units import Memory
from slurmgpu.planning.binding import Starting, asked_again, bound, without
from slurmgpu.planning.choosing import by_preference, candidates, choose
from slurmgpu.planning.drafting import Draft
from slurmgpu.planning.launcher_choice import choose_launcher, outside_the_container, own_loop
from slurmgpu.planning.nodes import as_spelled, counted_in_cores, gres_type, takes_one_thread
from slurmgpu.planning.options import Layouted, options_of, passed_problems, unjudged
from slurmgpu.planning.remarks import array_remarks, other_types_seen, reasons, restart_remarks, warnings
from slurmgpu.planning.request import SHARED, Layout
from slurmgpu.planning.settled import (
    Settled,
    Size,
    Surroundings,
    judge_precision,
    name_of,
    refuse_timeout,
    resolve_environment,
    restart_of,
    sampled,
)

if TYPE_CHECKING:
    from slurmgpu.models.script_facts import ScriptFacts
    from slurmgpu.planning.cost import Cost

__all__ = ["make_plan", "partitions_that_fit", "settle"]


def make_plan(job: Job, cluster: Cluster, around: Surroundings) -> Plan:
    """Resolve the job on the cluster; PlanError names what does not fit and what would."""
    _check_array(job, cluster)
    if job.exact:
        from slurmgpu.planning import exact

        made = exact.settle(job, cluster, around)
    elif job.steps:
        from slurmgpu.planning import steps

        made = steps.settle(job, cluster, around, _derived)
    else:
        made = _derived(job, cluster, around)
    _check_staged_python(job, made)
    gpus = any(size.gpus_per_node for size in (made.size, *made.further))
    made = made._replace(sample=sampled(job, gpus, around.sampler))
    if cluster.farewell is not None:
        made = made._replace(warnings=(cluster.farewell, *made.warnings))
    return _plan_of(job, cluster, around.work_dir, made)


def _derived(job: Job, cluster: Cluster, around: Surroundings) -> Settled:
    if job.components:
        from slurmgpu.planning import components

        return components.settle(job, cluster, around, settle)
    return settle(job, cluster, around)


def _check_staged_python(job: Job, made: Settled) -> None:
    """PlanError where the processes of a job would not find an environment on their nodes' own disks."""
    if made.environment.python.stage is None:
        return
    field = "environment.python.stage: node"
    if job.steps or job.components:
        other = "steps" if job.steps else "components"
        raise PlanError(
            f"{field} and {other}: are both given, and each step would need it on nodes of its own",
            hint="leave stage out: the environment is then used where it is",
        )
    if made.size.nodes > 1 and not launcher(made.launching.launcher).on_every_node:
        raise PlanError(
            f"{field}: the command starts on the first of {made.size.nodes} nodes alone (launch: "
            f"{made.launching.launcher}), and what it starts on the others would not find it",
            hint="let slurmgpu start the processes, as in launch: torchrun or launch: srun, or leave stage out",
        )


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


def settle(job: Job, cluster: Cluster, around: Surroundings) -> Settled:
    """Derive what the job leaves out; PlanError names what does not fit and what would."""
    _check(job, around.work_dir)
    job = job.model_copy(update={"resources": as_spelled(cluster, job.resources)})
    if takes_one_thread(job.resources.hint, job.sbatch.get("threads-per-core")):
        cluster = counted_in_cores(cluster)
    name, environment = resolve_environment(job, cluster, around.environments)
    launchings = _Launchings(job, cluster, environment, around.script)

    def nearby() -> list[str]:
        from slurmgpu.planning.ways_out import ways_out  # only a refusal pays for it

        return ways_out(cluster, job.resources, launchings.tasks_on)

    chosen = choose(cluster, job.resources, launchings.tasks_on, force=around.force, ways_out=nearby)
    draft = chosen.draft
    launching = launchings.on(draft.layout)
    tasks, tasks_why = _tasks(job, launching, draft.layout.gpus_per_node)
    starter = launcher(launching.launcher)
    size = _size(draft, tasks, starter.processes(draft.layout.gpus_per_node, tasks))
    if job.train is not None:
        job.train.require_processes(size.nodes * size.processes_per_node)
        job.train.samples_at_a_time(size.nodes * size.processes_per_node)
    loop = own_loop(around.script) if job.train is None else None
    restart, restart_why = restart_of(job, loop)
    made = Layouted(
        name=name_of(job),
        draft=draft,
        partition_why=chosen.why,
        tasks_why=tasks_why,
        environment=environment,
        restarts=bool(restart.on),
        origins=around.origins,
        restart_why=restart_why,
        # sbatch expands nothing: a folder with a variable or ~ in it can only be entered by the script.
        chdir=None if _only_the_job_knows(around.work_dir) else around.work_dir,
    )
    starting = Starting(launching.launcher, environment, tasks, size.processes_per_node)
    own_gpus = _own_gpus(cluster, starting.by_srun, draft.layout, tasks)
    binding = bound(job, cluster, draft, starting)
    options = options_of(job, cluster, made)
    given = {option.name: option.value for option in options}
    partitions = [draft.partition] if draft.partition in cluster.partitions else []
    refused = [str(problem) for problem in passed_problems(cluster, partitions, given)]
    if refused and not around.force:
        raise PlanError(
            f"Slurm would refuse the job: {'; '.join(refused)}",
            hint="change the option, or leave it out; --force submits the job all the same",
        )
    only_slurm = ", ".join(f"--{name}" for name in unjudged(cluster, partitions, given))
    why = "only Slurm can: slurmgpu submit --dry-run asks it"
    not_judged = (Reason.of("not judged", only_slurm, why),) if only_slurm else ()
    return Settled(
        name=made.name,
        options=options,
        size=size,
        launching=launching,
        environment_name=name,
        environment=environment,
        restart=restart,
        own_loop=loop,
        log_folders=_log_folders(job, made),
        own_gpus=binding.own_gpus or own_gpus,
        srun_options=_srun_options(job, cluster, draft, own_gpus, starting, binding.words),
        cost=_cost(job, cluster, draft),
        reasons=(
            *reasons(job, cluster, draft, launching, size.processes_per_node, own_gpus),
            *binding.reasons,
            *not_judged,
        ),
        warnings=(
            *refused,
            *launching.warnings,
            *binding.warnings,
            # What is likely not meant.
            *(() if job.train is None else job.train.without_effect()),
            *array_remarks(job, around.script),
            *restart_remarks(job, around.script),
            *outside_the_container(environment),
            *_judged_precision(job, draft, around.force),
            *warnings(job, cluster, chosen),
            *other_types_seen(cluster, draft, by_srun=starting.by_srun),
        ),
    )


def partitions_that_fit(job: Job, cluster: Cluster, around: Surroundings) -> list[str]:
    """Return the partitions that would start the job, the best first; none on a cluster that is not described."""
    if job.exact or not cluster.known:
        return [name for name in [job.resources.partition] if name]
    _, environment = resolve_environment(job, cluster, around.environments)
    tasks_on = _Launchings(job, cluster, environment, around.script).tasks_on
    fitting = candidates(cluster, as_spelled(cluster, job.resources), tasks_on).fitting
    return [made.partition for made in by_preference(cluster, fitting) if made.partition]


def _only_the_job_knows(folder: str) -> bool:
    return folder.startswith("~") or ("$" in folder and re.search(r"\$[A-Za-z_{]", folder) is not None)


def _check(job: Job, work_dir: str) -> None:
    for field in ("script", "components", "steps"):
        if getattr(job, field):
            refuse_timeout(job, field)
    if job.script is not None and _only_the_job_knows(work_dir):
        raise PlanError(
            f"work_dir: {work_dir!r} is known to the job only, and a script runs as it is",
            hint="write the folder out, or leave work_dir out and begin the script with cd",
        )
    if job.command is None and job.train is None and job.script is None and not job.steps:
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
                layout=(layout.nodes, layout.gpus_per_node, self._job.resources.tasks_per_node),
                cluster=self._cluster,
            )
        return self._made[key]

    def tasks_on(self, layout: Layout) -> int:
        return _tasks(self._job, self.on(layout), layout.gpus_per_node)[0]


def _tasks(job: Job, launching: Launching, gpus_per_node: int) -> tuple[int, str]:
    name = launching.launcher
    return launcher(name).tasks(name, job.resources.tasks_per_node, gpus_per_node, launching.tasks_per_node)


def _size(draft: Draft, tasks: int, processes: int) -> Size:
    layout = draft.layout
    types = {draft.gpu_type} if draft.gpu_type else {group.gpu_type for group in draft.groups}
    return Size(
        nodes=layout.nodes,
        gpus_per_node=layout.gpus_per_node,
        gpu_type=next(iter(types)) if layout.gpus_per_node and len(types) == 1 else None,
        tasks_per_node=tasks,
        processes_per_node=processes,
        cpus_per_task=None if draft.cpus.amount is None else max(1, draft.cpus.amount // tasks),
        memory=None if draft.memory.amount is None else Memory(draft.memory.amount),
    )


def _judged_precision(job: Job, draft: Draft, force: bool) -> tuple[str, ...]:
    if job.train is None:
        return ()
    pinned = draft.gpu_type
    types = {pinned} if pinned else {group.gpu_type or "unnamed" for group in draft.groups}
    shared = draft.ask.whole or any(gres.name in SHARED for gres in draft.ask.gres)
    has_gpus = job.train.device != "cpu" and (draft.layout.gpus_per_node > 0 or shared)
    return judge_precision(job.train.precision, types, has_gpus=has_gpus, force=force)


def _own_gpus(cluster: Cluster, by_srun: bool, layout: Layout, tasks: int) -> int | None:
    """GPUs of each task of srun where the site gives them by the task; PlanError where they cannot be split."""
    style = cluster.dialect.gpus
    if not layout.gpus_per_node or style not in ("srun", "gpus-per-task"):
        return None
    if layout.gpus_per_node % tasks and (by_srun or style != "srun"):
        raise PlanError(
            f"resources.tasks_per_node: {tasks}: {cluster.name!r} gives each task its own GPUs, and "
            f"{count(layout.gpus_per_node, 'GPU')} a node cannot be split evenly over {tasks} tasks",
            hint="leave tasks_per_node out for one task per GPU",
        )
    # The batch shell has all GPUs of its node (seen on 20.11 to 26.05).
    return layout.gpus_per_node // tasks if by_srun else None


def _srun_options(
    job: Job,
    cluster: Cluster,
    draft: Draft,
    own_gpus: int | None,
    starting: Starting,
    binding: tuple[str, ...],
) -> tuple[str, ...]:
    needs_pmi = launcher(starting.name).needs_pmi
    # A job's own --gpus-per-task with a type leaves several tasks of a bare srun without any (seen on 22.05).
    typed = cluster.dialect.gpus == "gpus-per-task" and gres_type(cluster, draft.gpu_type) is not None
    again: tuple[str, ...] = ()
    if own_gpus and (typed or cluster.dialect.gpus == "srun"):
        again = asked_again(
            cluster, draft.partition if draft.ask.whole else None, draft.gpu_type,
            each=own_gpus, tasks=starting.tasks_per_node,
        )  # fmt: skip
    return (
        *again,
        *([f"--mpi={cluster.dialect.mpi}"] if needs_pmi and cluster.dialect.mpi else []),
        *without((*cluster.dialect.srun_options, *starting.environment.srun_options), job.resources),
        *binding,
        *job.launch.srun_options,
    )


def _cost(job: Job, cluster: Cluster, draft: Draft) -> Cost | None:
    if not cluster.known:
        return None
    from slurmgpu.planning.cost import cost_of  # only a described cluster pays for it

    partition = cluster.partitions.get(draft.partition or "")
    usual = (partition.limits.default_time or partition.limits.max_time) if partition else None
    time = job.resources.time or usual
    return cost_of(cluster, draft, time, tasks=job.array.tasks if job.array else 1)


def _log_folders(job: Job, made: Layouted) -> tuple[str, ...]:
    """Folders of the log files: Slurm makes none up to 22.05, and a job whose log cannot be opened dies without a word."""
    folders: dict[str, None] = {}
    for field_name, pattern in (("output", job.output), ("error", job.error)):
        if pattern is None:
            continue
        parent = posixpath.dirname(pattern).replace("%x", made.name)
        if "%" in parent.replace("%%", ""):
            raise PlanError(
                f"{field_name}: {pattern!r} has a pattern in its folder, and Slurm up to 22.05 makes no folders: no log, no job",
                hint="keep %-patterns to the file's own name; %x (the job's name) may be anywhere",
            )
        if made.chdir and re.search(r"[%\\]", made.chdir) and not pattern.startswith("/"):
            raise PlanError(
                f"{field_name}: {pattern!r} is against the work folder {made.chdir!r}, whose % or backslash Slurm would expand",
                hint=f"write {field_name} as an absolute path, or leave it out",
            )
        if parent:
            folders[posixpath.join(made.chdir or "", parent.replace("%%", "%"))] = None
    return tuple(folders)


def _plan_of(job: Job, cluster: Cluster, work_dir: str, made: Settled) -> Plan:
    """Return the plan of a job: its values come from a validated job and cluster, so nothing is checked again."""
    size, launching, restart, cost = made.size, made.launching, made.restart, made.cost
    asked = {option.name: option.value for option in made.options}
    login_shell = cluster.dialect.login_shell and not job.exact
    shell = "/bin/bash -l" if login_shell else "/bin/bash"
    return Plan.model_construct(
        cluster=cluster.name,
        name=made.name,
        partition=asked.get("partition"),
        **size._asdict(),
        spawned_per_node=max(1, size.gpus_per_node) if launching.spawns else 0,
        time=job.resources.time,
        options=made.options,
        components=made.components,
        launcher=launching.launcher,
        own_gpus=made.own_gpus,
        srun_options=made.srun_options,
        command=job.command,
        train=job.train.document() if job.train is not None else None,
        steps=made.steps,
        script=job.script,
        shebang=(job.shebang or shell) if job.exact or job.script is not None else None,
        environment=made.environment,
        environment_name=made.environment_name,
        stage=job.stage,
        debug=job.debug,
        profile=job.profile,
        sample=made.sample,
        local_scratch=cluster.software.local_scratch,
        variables={**_interface(job, cluster, size), **made.environment.variables, **job.variables},
        secrets=job.secrets,
        notify=job.notify,
        work_dir=work_dir,
        enters_work_dir=job.work_dir is not None if job.exact else job.script is None,
        exact=job.exact,
        output=asked.get("output"),
        error=asked.get("error"),
        log_folders=made.log_folders,
        restart_limit=restart.limit if restart.on else None,
        restart_on=restart.on,
        own_loop=made.own_loop,
        tended=_is_tended(job, made),
        login_shell=login_shell,
        address_suffix=None if job.exact else cluster.dialect.address_suffix,
        module_init=cluster.software.module_init,
        gpu_hours=cost.gpu_hours if cost else None,
        charge=cost.charge if cost else None,
        charge_unit=cost.unit if cost and cost.charge is not None else None,
        reasons=tuple(_reasons(made)),
        warnings=made.warnings,
    )


def _interface(job: Job, cluster: Cluster, size: Size) -> dict[str, str]:
    """Return the variables by which processes on several nodes are told their network; RCCL reads NCCL's."""
    name = cluster.software.network_interface
    if name is None or job.exact or job.script is not None or size.nodes == 1:
        return {}
    return {"NCCL_SOCKET_IFNAME": name, "GLOO_SOCKET_IFNAME": name}


def _is_tended(job: Job, made: Settled) -> bool:
    if job.steps or (job.components and not job.exact):
        return False  # what ends the steps of its components in time is the job's
    own_loop = made.own_loop is not None and not job.exact
    staged = job.stage is not None or made.environment.python.stage is not None
    return job.train is not None or own_loop or staged or "timeout" in made.restart.on


def _reasons(made: Settled) -> Iterator[Reason]:
    if not made.steps:
        yield Reason.of("launcher", made.launching.launcher, made.launching.why)
    yield from made.reasons
    if made.own_loop is not None:
        why = f"into the run directory, since {made.own_loop} imports it"
        yield Reason.of("slurmgpu.training", "copied", why)
    cost = made.cost
    if cost is None:
        return
    from slurmgpu.planning.cost import figure

    if cost.gpu_hours:
        hours = f"{figure(cost.gpu_hours)} at most"
        yield Reason.of("GPU-hours", hours, cost.gpu_hours_why)
    if cost.charge is not None:
        charge = f"{figure(cost.charge)} {cost.unit} at most"
        yield Reason.of("charge", charge, cost.charge_why)
