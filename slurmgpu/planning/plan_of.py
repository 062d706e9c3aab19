"""The one place where a Plan is made, whoever settled what stands in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from slurmgpu.lines.command import python_command
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.environment import Environment
from slurmgpu.models.job import Job, Restart
from slurmgpu.models.plan import Option, Plan, Reason
from slurmgpu.models.units import Memory
from slurmgpu.planning.launcher_choice import Launching

if TYPE_CHECKING:
    from slurmgpu.planning.cost import Cost

__all__ = ["Settled", "Size", "name_of", "plan_of"]

_SHELL = "/bin/bash"


class Size(NamedTuple):
    """What the launcher counts with."""

    nodes: int
    gpus_per_node: int
    gpu_type: str | None
    tasks_per_node: int
    processes_per_node: int
    cpus_per_task: int | None
    memory: Memory | None
    """On each node."""


class Settled(NamedTuple):
    """What was derived for a job, or taken from it as it stands."""

    name: str
    options: tuple[Option, ...]
    size: Size
    launching: Launching
    environment_name: str | None
    environment: Environment
    restart: Restart
    own_loop: str | None
    log_folders: tuple[str, ...]
    srun_options: tuple[str, ...]
    components: tuple[tuple[Option, ...], ...] = ()
    own_gpus: int | None = None
    cost: Cost | None = None
    reasons: tuple[Reason, ...] = ()
    """Besides those of the launcher, of the loop that travels and of the cost."""
    warnings: tuple[str, ...] = ()


def plan_of(job: Job, cluster: Cluster, work_dir: str, made: Settled) -> Plan:
    """The plan of a job.

    Every value comes from a validated job and cluster: nothing is checked a second time.
    """
    size, launching, restart, cost = made.size, made.launching, made.restart, made.cost
    asked = {option.name: option.value for option in made.options}
    login_shell = cluster.dialect.login_shell and not job.exact
    shell = _SHELL + (" -l" if login_shell else "")
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
        script=job.script,
        shebang=(job.shebang or shell) if job.exact or job.script is not None else None,
        environment=made.environment,
        environment_name=made.environment_name,
        variables={**made.environment.variables, **job.variables},
        secrets=job.secrets,
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
        gpu_hours=cost.gpu_hours if cost else None,
        charge=cost.charge if cost else None,
        charge_unit=cost.unit if cost and cost.charge is not None else None,
        reasons=tuple(_reasons(made)),
        warnings=made.warnings,
    )


def _is_tended(job: Job, made: Settled) -> bool:
    if job.components and not job.exact:
        return False  # what ends the steps of its components in time is the job's
    own_loop = made.own_loop is not None and not job.exact
    return job.train is not None or own_loop or "timeout" in made.restart.on


def _reasons(made: Settled) -> Iterator[Reason]:
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


def name_of(job: Job) -> str:
    """What the job is called: as it says itself, or after its script."""
    if job.name or job.script is not None:
        return job.name or "job"
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
