"""The report on the machine where the doctor is called: measured here, judged by the other modules."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from slurmgpu.clusters.discover import look_around
from slurmgpu.clusters.pytorch import Tried, cannot_be_tried, try_environment
from slurmgpu.containers import runtime
from slurmgpu.doctor import machine, probe, scheduler
from slurmgpu.doctor.lines import Line, unknown
from slurmgpu.errors import InvalidInput, PlanError
from slurmgpu.files.clusters import choose_cluster
from slurmgpu.files.data import read_templates
from slurmgpu.files.jobs import LoadedJob, folder_here
from slurmgpu.files.settings import runs_folder
from slurmgpu.lines.command import python_command
from slurmgpu.models.cluster import GENERIC, Cluster
from slurmgpu.models.environment import Environment
from slurmgpu.models.job import Job
from slurmgpu.planning.settled import resolve_environment
from slurmgpu.runs.preflight import check_image
from slurmgpu.slurm import Health, Slurm, current_user

__all__ = ["environment_of", "is_sandbox", "lines_here", "needs_torch"]


def lines_here(loaded: LoadedJob, cluster_name: str | None, say: Callable[[str], None]) -> Iterator[Line]:
    """Yield the lines on this machine, for this job."""
    health = Slurm().health(current_user())
    try:
        cluster, chooser = choose_cluster(cluster_name, loaded.settings, os.environ)
        name, why = cluster.name, ""
    except InvalidInput as error:
        cluster, chooser, name, why = GENERIC, "", None, error.message
    yield from _slurm(health, loaded.job)
    yield scheduler.profile(name, why, cluster.slurm_name, health.cluster)
    if chooser and cluster is not GENERIC:
        days = cluster.source.days_old(datetime.date.today()) if cluster.source else None
        gone = sorted(set(cluster.partitions) - health.partitions) if health.partitions else []
        yield scheduler.profile_age(days, (cluster.slurm.release, health.release), gone)
    yield from _software(loaded, cluster, name, say)
    umask = os.umask(0o077)
    os.umask(umask)
    yield from machine.folders(_folders(loaded, cluster), umask)
    yield from machine.quota(probe.quota(str(Path.home())))


def _slurm(health: Health, job: Job) -> Iterator[Line]:
    yield scheduler.commands(health.missing)
    yield scheduler.controller(health.seconds, health.why, health.act, health.cluster)
    if health.seconds is None:
        return
    yield scheduler.release(health.release)
    yield scheduler.clock(health.offset, 0.5 + health.seconds / 2)
    yield scheduler.accounting(health.keeps_accounting, health.accounting_why)
    yield scheduler.account(
        health.accounts,
        health.accounts_why,
        kept=health.keeps_accounting,
        enforced="associations" in health.enforces,
        wanted=job.resources.account,
    )
    if job.resources.partition:
        yield scheduler.partition(job.resources.partition, health.partitions)


def _software(
    loaded: LoadedJob, cluster: Cluster, name: str | None, say: Callable[[str], None]
) -> Iterator[Line]:
    job = loaded.job
    here = look_around(os.environ, current_user()).software
    try:
        environment = environment_of(loaded, cluster)
    except PlanError:
        if name is None:  # the profile that has it is missing, as a line above says
            return
        raise
    needed = environment.modules.load if environment.modules else ()
    unusable = list(_not_there(environment, loaded))
    yield from unusable
    if any(line.level == "failure" for line in unusable):
        yield machine.containers(here.containers, environment)
        yield unknown("torch.version", "not tried: what would run it is not there")
        return
    tried = _tried(environment, cluster, loaded, say)
    modules_fail = tried.why if tried.version is None and tried.why.startswith("module ") else None
    yield machine.modules(here.module_system, needed, modules_fail)
    yield machine.containers(here.containers, environment)
    if modules_fail:
        return
    if environment.python.activated or environment.container or needed:
        where = "in the job's environment"
    else:
        where = environment.python.interpreter
    yield machine.python(tried.python, where)
    if cannot_be_tried(environment) or _without_runtime(environment):
        yield unknown("torch.version", f"only a job shows it: {tried.why}", "slurmgpu doctor --on-gpu")
        return
    wants_gpus = bool(job.resources.gpus or job.resources.gpus_per_node)
    yield machine.torch(
        tried.version,
        tried.why,
        built_for="cpu" if tried.cpu_only and not is_sandbox() else tried.built_for,
        needed=needs_torch(job),
        gpus=wants_gpus,
    )
    if tried.built_for:
        yield machine.driver_for_torch(tried.built_for, probe.gpus().get("driver"))


def _not_there(environment: Environment, loaded: LoadedJob) -> Iterator[Line]:
    """Yield the lines on the image's file and a missing interpreter, where this machine can know of them."""
    container, folder = environment.container, folder_here(loaded.work_dir, Path.cwd())
    if container is not None:
        if runtime(container.runtime).is_file(container.image) and not container.build:
            try:
                check_image(container, folder)
            except PlanError as error:
                why = error.message.removeprefix("environment.container.image: ")
                yield machine.image(container.image, why, error.hint or "")
            else:
                yield machine.image(container.image, "", "")
        return
    named = environment.python.interpreter
    if environment.modules or environment.python.activated or cannot_be_tried(environment) or "$" in named:
        return
    if named == "python3" and not needs_torch(loaded.job):
        return
    if "/" in named:
        path = Path(named).expanduser()
        there = os.path.exists(folder / path if folder else path)  # noqa: PTH110 - as in preflight
    else:
        there = shutil.which(named) is not None
    if not there:
        yield machine.interpreter(named)


def environment_of(loaded: LoadedJob, cluster: Cluster) -> Environment:
    """Return the job's environment, with the Python of its command; raise PlanError for an unknown name."""
    _, environment = resolve_environment(loaded.job, cluster, loaded.settings.settings.environments)
    python = python_command(loaded.job.command) if loaded.job.command else None
    if python is None:
        return environment
    own = environment.python.model_copy(update={"interpreter": python.interpreter})
    return environment.model_copy(update={"python": own})


def needs_torch(job: Job) -> bool:
    """Return True if the job is known to run Python: a training, a Python command, or a chosen environment."""
    command = python_command(job.command) if job.command else None
    return job.train is not None or command is not None or job.environment is not None


def _tried(
    environment: Environment, cluster: Cluster, loaded: LoadedJob, say: Callable[[str], None]
) -> Tried:
    why = cannot_be_tried(environment) or _without_runtime(environment)
    if why:
        return Tried(None, why)
    say("importing torch as a job would; a minute at most ...")
    with tempfile.TemporaryDirectory(prefix="slurmgpu-") as empty:
        folder = folder_here(loaded.work_dir, Path.cwd()) or Path(empty)
        templates = read_templates(*loaded.settings.template_sources(os.environ))
        return try_environment(environment, cluster, templates, folder, os.environ)


def _without_runtime(environment: Environment) -> str | None:
    """Return why the image cannot be entered here: no PATH or module of this machine has its program."""
    program = machine.program_of(environment)
    if program is None or environment.modules or shutil.which(program):
        return None
    return f"{program} is not on this machine"


def _folders(loaded: LoadedJob, cluster: Cluster) -> Iterator[dict[str, object]]:
    """Measure the folders that jobs use; of one that is still to be made, the nearest above it."""
    work = folder_here(loaded.work_dir, Path.cwd()) or Path.cwd()
    named = {
        "home": str(Path.home()),
        "work": str(work),
        "runs": str(runs_folder(loaded.settings.settings.runs, work, os.environ)),
        "scratch": os.path.expandvars(cluster.software.scratch or ""),
        "tmp": tempfile.gettempdir(),
    }
    for what, path in named.items():
        if path and "$" not in path:
            there = next(one for one in (Path(path), *Path(path).parents) if one.exists() or one == Path("/"))
            yield probe.folder(what, str(there if what == "runs" else path))


def is_sandbox() -> bool:
    """Return True if this Slurm is a sandbox of slurmgpu's, by its folder."""
    conf = os.environ.get("SLURM_CONF")
    if not conf:
        return False
    with suppress(OSError, ValueError, AttributeError):
        state = json.loads(Path(conf).with_name("state.json").read_text(encoding="utf-8"))
        return str(state.get("schema_name", "")).startswith("slurmgpu.sandbox/")
    return False
