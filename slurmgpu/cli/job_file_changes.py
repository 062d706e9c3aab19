"""Write proposed values into a job file, and change nothing else there: `report --apply`, `probe --apply`, `bench --apply`."""

from __future__ import annotations

import difflib
import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click

from slurmgpu.errors import InvalidInput, SlurmGpuError
from slurmgpu.files.data import data_folder
from slurmgpu.files.editing import Place, with_values
from slurmgpu.files.jobs import load_job
from slurmgpu.files.layered import Layered
from slurmgpu.files.run_record import write_atomically
from slurmgpu.files.yaml import read_file, read_text, validate
from slurmgpu.jobs.report.advising import Proposal, memory_option
from slurmgpu.jobs.report.figures import Figures
from slurmgpu.jobs.report.gathering import JobReport, Reports
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.models.resources import Resources
from slurmgpu.models.run import Run
from slurmgpu.models.units import Duration, GpuRequest
from slurmgpu.printable import printable
from slurmgpu.runs.bench.verdict import Verdict
from slurmgpu.runs.directory import read_plan

# What a job is; its resources are what changes, and a name alone makes no other job of it.
_SAME = ("command", "train", "script", "steps", "array", "exact")


def apply_to_file(found: Reports, job_file: Path | None) -> None:
    """Write the next request of the only job into its file.

    Raises:
        InvalidInput: the file is not the one that the run was made of, or says something else than the run asked for.
        SlurmGpuError: it is not known which file that is.
    """
    if not found.jobs:
        return
    if len(found.jobs) > 1:
        raise InvalidInput(
            f"--apply: the word leads to {len(found.jobs)} jobs", hint="give one job id, or the run directory"
        )
    (report,) = found.jobs
    path = _file_of(report, job_file)
    if not report.advice.proposals:
        click.echo(printable(f"{path}: nothing is proposed, and nothing is changed"), err=True)
        return
    assert report.run is not None
    run_dir = Path(report.run.run_dir)
    then = validate(Job, read_file(run_dir / "job.yaml"), "job")
    write_request(report, path, then, read_plan(run_dir))


def write_request(report: JobReport, path: Path, then: Job, plan: Plan, *, beside: bool = False) -> None:
    """Write a next request into the job file, and show what changes, ``beside`` a result on stderr.

    ``then`` is the job that it follows from, with what options made of it, and ``plan`` how it was planned. InvalidInput
    where the file says something else by now.
    """
    assert report.run is not None
    run_dir, proposals = Path(report.run.run_dir), report.advice.proposals
    values = dict(_values(report, plan, _resources(path)))
    write_values(path, values, lambda: _check_same(path, then, run_dir, proposals), beside=beside)


def write_values(
    path: Path, values: Mapping[Place, str | int], check: Callable[[], None], *, beside: bool
) -> None:
    """Write values into a job file, and show what changes; ``check`` may refuse, before anything is written."""
    text, ending = read_text(path), _ending_of(path)
    if not values:
        return
    changed = with_values(text, str(path), values)
    if changed == text:
        click.echo(printable(f"{path}: asks for this already; nothing is changed"), err=True)
        return
    check()
    for line in difflib.unified_diff(
        text.splitlines(), changed.splitlines(), str(path), str(path), lineterm="", n=1
    ):
        click.echo(printable(line), err=beside)
    try:
        _replace_file(path, text, changed.replace("\n", ending))
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be written: {error.strerror}", hint="change it by hand, as shown"
        ) from None
    click.echo(printable(f"{path}: changed; slurmgpu plan {path} shows what it asks for now"), err=True)


def _ending_of(path: Path) -> str:
    """Return the file's line ending, CRLF if an editor of Windows wrote it; InvalidInput if lines end in several ways."""
    data = path.read_bytes()
    windows = data.count(b"\r\n")
    if windows == data.count(b"\r") == 0:
        return "\n"
    if windows == data.count(b"\r") == data.count(b"\n"):
        return "\r\n"
    raise InvalidInput(
        f"--apply: {path}: its lines end in several ways (LF, CRLF), and all would be changed",
        hint=f"make them one: sed -i 's/\\r$//' {shlex.quote(str(path))}",
    )


def _replace_file(path: Path, before: str, text: str) -> None:
    """Write the file anew; InvalidInput where it is write-protected, or somebody has changed it meanwhile."""
    mode = path.stat().st_mode & 0o777
    if not mode & 0o222:
        raise InvalidInput(f"{path} is write-protected", hint="chmod u+w, or change it by hand, as shown")
    if read_text(path) != before:
        raise InvalidInput(f"{path} has just been changed by somebody else", hint="look at it, and try again")
    write_atomically(path.resolve(), text)
    path.chmod(mode)


def _file_of(report: JobReport, named: Path | None) -> Path:
    run: Run | None = report.run
    job_id = report.figures.job.job_id
    if run is None:
        raise SlurmGpuError(
            f"--apply: job {job_id} has no run directory here: it was not submitted by slurmgpu, or that is gone",
            hint="write the proposed request into its script by hand",
        )
    if named is not None:
        check_own(named)
        return named
    if run.job_file is None:
        raise SlurmGpuError(
            f"--apply: {run.run_dir} does not say which job file it was made of: it was given by options, or from Python",
            hint="name the file: slurmgpu report JOB --apply job.yaml",
        )
    path = Path(run.job_file)
    check_own(path)
    return path


def check_own(path: Path) -> None:
    """InvalidInput for a job file that is not this user's to change."""
    if path.stat().st_uid != os.getuid() if path.exists() else False:
        raise InvalidInput(f"--apply: {path} is somebody else's", hint="copy it, and name the copy")
    if path.is_relative_to(data_folder("jobs")):
        raise InvalidInput(
            f"--apply: {path} ships with slurmgpu", hint=f"copy it first: slurmgpu jobs copy {path.stem}"
        )


def _check_same(path: Path, then: Job, run_dir: Path, proposals: tuple[Proposal, ...]) -> None:
    """InvalidInput where the file is not what the run was made of: it may have been changed since, or options won."""
    now = load_job(path, Layered({}, {}), cwd=Path.cwd(), environ=os.environ).job
    for name in _SAME:
        if getattr(now, name) != getattr(then, name):
            raise InvalidInput(
                f"--apply: {path} is not what {run_dir} ran: its {name} is another one",
                hint="name the file that the run was made of; where options changed the job, change its file by hand",
            )
    for name in sorted({name for one in proposals for name in _KEYS[one.field]}):
        before, after = getattr(then.resources, name), getattr(now.resources, name)
        if before != after:
            raise InvalidInput(
                f"--apply: {path} is not what {run_dir} ran: resources.{name} was {_value_in_words(before)}, and is "
                f"{_value_in_words(after)} there",
                hint="the file has been changed since, or an option won; change it by hand",
            )


def _value_in_words(value: object) -> str:
    return "not given" if value is None else str(value)


_KEYS = {
    "memory": ("memory", "memory_per_cpu", "memory_per_gpu"),
    "cpus": ("cpus_per_task", "cpus_per_gpu"),
    "gpus": ("gpus", "gpus_per_node", "nodes"),
    "time": ("time",),
    "workers": (),
    "accumulate": (),
}


def _resources(path: Path) -> Resources:
    return load_job(path, Layered({}, {}), cwd=Path.cwd(), environ=os.environ).job.resources


def _values(report: JobReport, plan: Plan, asked: Resources) -> Iterator[tuple[Place, str | int]]:
    """Yield the keys of the job file, and what they are to be; what cannot be said in one key is told.

    What follows from an amount that changes is kept: fewer GPUs or CPUs bring less of it with them.
    """
    figures = report.figures
    by_field = {one.field: one for one in report.advice.proposals}
    gpus, nodes = figures.job.gpus or 0, figures.job.nodes or 1
    fewer = dict(_gpus(asked, by_field["gpus"].proposed, figures)) if "gpus" in by_field else {}
    yield from fewer.items()
    after = by_field["gpus"].proposed if fewer else gpus
    dialect = report.cluster.dialect if report.cluster is not None else None
    tasks = max(1, plan.tasks_per_node)
    if asked.tasks_per_node is None and gpus and tasks * nodes == gpus:
        tasks = max(1, after // nodes)  # one for each GPU
    cpus = by_field["cpus"].proposed if "cpus" in by_field else figures.job.cpus or nodes
    follow = fewer and figures.job.cpus and (asked.cpus_per_task is None or tasks != plan.tasks_per_node)
    if ("cpus" in by_field or follow) and not (dialect and dialect.cpus == "none"):
        yield _cpus(asked, cpus, after, nodes, tasks)
    changes = "memory" in by_field or _memory_follows(asked, plan, bool(fewer), "cpus" in by_field)
    memory = by_field["memory"].proposed if "memory" in by_field else figures.memory
    if memory and changes and not (dialect and dialect.memory == "none"):
        yield _memory(asked, memory, max(1, cpus // nodes), max(1, after // nodes))
    if "time" in by_field:
        yield ("resources", "time"), str(Duration(by_field["time"].proposed))
    for name in ("workers", "accumulate"):
        if name in by_field:
            yield ("train", name), by_field[name].proposed


def _memory_follows(asked: Resources, plan: Plan, gpus_change: bool, cpus_change: bool) -> bool:
    """Return whether a change of its GPUs or CPUs alone would change the job's memory."""
    if asked.memory is not None:
        return False
    if asked.memory_per_gpu is not None:
        return gpus_change
    if asked.memory_per_cpu is not None:
        return gpus_change or cpus_change
    # Nothing is said: a share of the node by GPUs, or else Slurm's default, which may be one for each CPU or GPU.
    return gpus_change or (cpus_change and plan.memory is None)


def _gpus(asked: Resources, gpus: int, figures: Figures) -> Iterator[tuple[Place, str | int]]:
    nodes = figures.job.nodes or 1
    fits = gpus and (asked.nodes is None or gpus % asked.nodes == 0)
    if (
        not fits
        or (asked.gpus is None and asked.gpus_per_node is None)
        or (asked.gpus_per_node and gpus % nodes)
    ):
        click.echo(
            f"note: gpus: {figures.job.gpus} -> {gpus} is left to you: the file needs another shape for it",
            err=True,
        )
        return
    if asked.gpus is not None:
        yield ("resources", "gpus"), _with_type(asked.gpus, gpus)
    if asked.gpus_per_node is not None:
        yield ("resources", "gpus_per_node"), _with_type(asked.gpus_per_node, gpus // nodes)


def _with_type(request: GpuRequest, count: int) -> str | int:
    return f"{request.type}:{count}" if request.type else count


def _cpus(asked: Resources, cpus: int, gpus: int, nodes: int, tasks: int) -> tuple[Place, int]:
    if asked.cpus_per_task is None and gpus:
        return ("resources", "cpus_per_gpu"), math.ceil(cpus / gpus)
    return ("resources", "cpus_per_task"), math.ceil(cpus / (nodes * tasks))


def _memory(asked: Resources, memory: int, cpus: int, gpus: int) -> tuple[Place, str]:
    """``cpus`` and ``gpus``: those of a node, in the next request."""
    if asked.memory_per_cpu is not None:
        return ("resources", "memory_per_cpu"), memory_option(math.ceil(memory / cpus))
    if asked.memory_per_gpu is not None:
        return ("resources", "memory_per_gpu"), memory_option(math.ceil(memory / gpus))
    return ("resources", "memory"), memory_option(memory)


def file_to_change(what: str) -> Path:
    """Return the job file, before anything runs; InvalidInput where there is none to change."""
    path = Path(what)
    if path.suffix not in {".yaml", ".yml"} or not path.is_file():
        raise InvalidInput(
            f"--apply: {what} is no job file", hint="name one, as in slurmgpu bench task job.yaml --apply"
        )
    check_own(path)
    if not os.access(path, os.W_OK):
        raise InvalidInput(f"--apply: {path} cannot be written", hint="copy it, and measure the copy")
    return path


def apply_verdict(path: Path, verdict: Verdict, *, beside: bool) -> None:
    """Write what was proposed into the job file, and show what changes."""
    if not verdict.proposals:
        click.echo(printable(f"{path}: nothing is proposed, and nothing is changed"), err=True)
        return
    resources = load_job(path, Layered({}, {}), cwd=Path.cwd(), environ=os.environ).job.resources
    write_values(path, dict(_values_of_verdict(verdict, resources)), lambda: None, beside=beside)


def _values_of_verdict(verdict: Verdict, asked: Resources) -> Iterator[tuple[Place, str | int]]:
    for one in verdict.proposals:
        section, _, key = one.key.partition(".")
        if one.key != "resources.gpus":
            yield (section, key), one.value
            continue
        if asked.gpus is None or (asked.nodes or 1) != 1:
            click.echo(
                f"note: {one.key}: {one.value} is left to you: the file asks for its GPUs in another way",
                err=True,
            )
            continue
        yield (section, key), f"{asked.gpus.type}:{one.value}" if asked.gpus.type else one.value
