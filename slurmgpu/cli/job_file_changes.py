"""Write proposed values into a job file, and change nothing else there: `report --apply`, `probe --apply`, `bench --apply`."""

from __future__ import annotations

import difflib
import math
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import click

from slurmgpu.cli.terminal import echo_error
from slurmgpu.errors import InvalidInput, SlurmGpuError
from slurmgpu.files.data import data_folder
from slurmgpu.files.editing import with_values
from slurmgpu.files.jobs import load_job
from slurmgpu.files.layered import Key, Layered
from slurmgpu.files.trust import write_atomically
from slurmgpu.files.yaml import read_file, read_text, validate
from slurmgpu.jobs.report.advising import memory_option
from slurmgpu.jobs.report.gathering import JobReport, Reports
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.models.units import Duration, GpuRequest
from slurmgpu.printable import printable
from slurmgpu.runs.bench.verdict import Verdict
from slurmgpu.runs.directory import read_plan

Values = dict[Key, str | int]

# What a job is; its resources are what changes, and a name alone makes no other job of it.
_SAME = ("command", "train", "script", "steps", "array", "exact")
# The keys of a job file's resources that say a proposed amount.
_KEYS = {
    "memory": ("memory", "memory_per_cpu", "memory_per_gpu"),
    "cpus": ("cpus_per_task", "cpus_per_gpu"),
    "gpus": ("gpus", "gpus_per_node", "nodes"),
    "time": ("time",),
    "workers": (),
    "accumulate": (),
}


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
    run = report.run
    if run is None:
        raise SlurmGpuError(
            f"--apply: job {report.figures.job.job_id} has no run directory here: it was not submitted by slurmgpu, or that "
            "is gone",
            hint="write the proposed request into its script by hand",
        )
    if job_file is None and run.job_file is None:
        raise SlurmGpuError(
            f"--apply: {run.run_dir} does not say which job file it was made of: it was given by options, or from Python",
            hint="name the file: slurmgpu report JOB --apply job.yaml",
        )
    path = job_file or Path(run.job_file or "")
    check_own(path)
    if not report.advice.proposals:
        echo_error(printable(f"{path}: nothing is proposed, and nothing is changed"))
        return
    run_dir = Path(run.run_dir)
    write_request(report, path, validate(Job, read_file(run_dir / "job.yaml"), "job"), read_plan(run_dir))


def write_request(report: JobReport, path: Path, then: Job, plan: Plan, *, beside: bool = False) -> None:
    """Write a next request into the job file, and show what changes, ``beside`` a result on stderr.

    ``then`` is the job that it follows from, with what options made of it, and ``plan`` how it was planned. InvalidInput
    where the file says something else by now.
    """
    assert report.run is not None
    run_dir = Path(report.run.run_dir)

    def check() -> None:
        """Raise InvalidInput where the file is not what the run was made of: it may have been changed since, or options won."""
        now = _job_in(path)
        for name in _SAME:
            if getattr(now, name) != getattr(then, name):
                raise InvalidInput(
                    f"--apply: {path} is not what {run_dir} ran: its {name} is another one",
                    hint="name the file that the run was made of; where options changed the job, change its file by hand",
                )
        for name in sorted({name for one in report.advice.proposals for name in _KEYS[one.field]}):
            before, after = getattr(then.resources, name), getattr(now.resources, name)
            if before != after:
                was, now_is = ("not given" if one is None else str(one) for one in (before, after))
                raise InvalidInput(
                    f"--apply: {path} is not what {run_dir} ran: resources.{name} was {was}, and is {now_is} there",
                    hint="the file has been changed since, or an option won; change it by hand",
                )

    _write_values(path, _values(report, plan, _job_in(path)), check, beside=beside)


def _job_in(path: Path) -> Job:
    return load_job(path, Layered({}, {}), cwd=Path.cwd(), environ=os.environ).job


def _write_values(path: Path, values: Values, check: Callable[[], None], *, beside: bool) -> None:
    """Write values into a job file, and show what changes; ``check`` may refuse, before anything is written."""
    text, data = read_text(path), path.read_bytes()
    # An editor of Windows writes CRLF.
    windows, returns = data.count(b"\r\n"), data.count(b"\r")
    if windows != returns or windows not in (0, data.count(b"\n")):
        raise InvalidInput(
            f"--apply: {path}: its lines end in several ways (LF, CRLF), and all would be changed",
            hint=f"make them one: sed -i 's/\\r$//' {shlex.quote(str(path))}",
        )
    if not values:
        return
    changed = with_values(text, str(path), values)
    if changed == text:
        echo_error(printable(f"{path}: asks for this already; nothing is changed"))
        return
    check()
    both = text.splitlines(), changed.splitlines()
    for line in difflib.unified_diff(*both, str(path), str(path), lineterm="", n=1):
        click.echo(printable(line), err=beside)
    try:
        mode = path.stat().st_mode & 0o777
        if not mode & 0o222:
            raise InvalidInput(f"{path} is write-protected", hint="chmod u+w, or change it by hand, as shown")
        if read_text(path) != text:
            raise InvalidInput(
                f"{path} has just been changed by somebody else", hint="look at it, and try again"
            )
        write_atomically(path.resolve(), changed.replace("\n", "\r\n" if windows else "\n"))
        path.chmod(mode)
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be written: {error.strerror}", hint="change it by hand, as shown"
        ) from None
    echo_error(printable(f"{path}: changed; slurmgpu plan {path} shows what it asks for now"))


def check_own(path: Path) -> None:
    """Raise InvalidInput for a job file that is not this user's to change."""
    if path.exists() and path.stat().st_uid != os.getuid():
        raise InvalidInput(f"--apply: {path} is somebody else's", hint="copy it, and name the copy")
    if path.is_relative_to(data_folder("jobs")):
        raise InvalidInput(
            f"--apply: {path} ships with slurmgpu", hint=f"copy it first: slurmgpu jobs copy {path.stem}"
        )


def _values(report: JobReport, plan: Plan, job: Job) -> Values:
    """Return the keys of the job file, and what they are to be; what cannot be said in one key is told.

    What follows from an amount that changes is kept: fewer GPUs or CPUs bring less of it with them.
    """
    figures, asked = report.figures, job.resources
    proposed = {one.field: one.proposed for one in report.advice.proposals}
    dialect = report.cluster.dialect if report.cluster is not None else None
    gpus, nodes = figures.job.gpus or 0, figures.job.nodes or 1
    values: Values = {}
    if "gpus" in proposed:
        number = proposed["gpus"]
        fits = number and (asked.nodes is None or number % asked.nodes == 0)
        said = asked.gpus is not None or asked.gpus_per_node is not None
        if not fits or not said or (asked.gpus_per_node and number % nodes):
            echo_error(
                f"note: gpus: {figures.job.gpus} -> {number} is left to you: the file needs another shape for it"
            )
        else:
            gpus = number
            if asked.gpus is not None:
                values["resources", "gpus"] = _with_type(asked.gpus, number)
            if asked.gpus_per_node is not None:
                values["resources", "gpus_per_node"] = _with_type(asked.gpus_per_node, number // nodes)
    fewer = bool(values)
    tasks = max(1, plan.tasks_per_node)
    if asked.tasks_per_node is None and figures.job.gpus and tasks * nodes == figures.job.gpus:
        tasks = max(1, gpus // nodes)  # one for each GPU
    cpus = proposed.get("cpus", figures.job.cpus or nodes)
    follow = fewer and figures.job.cpus and (asked.cpus_per_task is None or tasks != plan.tasks_per_node)
    if ("cpus" in proposed or follow) and not (dialect and dialect.cpus == "none"):
        if asked.cpus_per_task is None and gpus:
            values["resources", "cpus_per_gpu"] = math.ceil(cpus / gpus)
        else:
            values["resources", "cpus_per_task"] = math.ceil(cpus / (nodes * tasks))
    memory = proposed.get("memory", figures.memory)
    # Whether a change of its GPUs or CPUs alone would change the job's memory. Where nothing is said it is a share of the
    # node by GPUs, or else Slurm's default, which may be one for each CPU or GPU.
    by_cpus = asked.memory_per_cpu is not None or (asked.memory_per_gpu is None and plan.memory is None)
    follows = asked.memory is None and (fewer or ("cpus" in proposed and by_cpus))
    if memory and ("memory" in proposed or follows) and not (dialect and dialect.memory == "none"):
        if asked.memory_per_cpu is not None:
            values["resources", "memory_per_cpu"] = memory_option(math.ceil(memory / max(1, cpus // nodes)))
        elif asked.memory_per_gpu is not None:
            values["resources", "memory_per_gpu"] = memory_option(math.ceil(memory / max(1, gpus // nodes)))
        else:
            values["resources", "memory"] = memory_option(memory)
    if "time" in proposed:
        values["resources", "time"] = str(Duration(proposed["time"]))
    for name in ("workers", "accumulate"):
        if name in proposed:
            values["train", name] = proposed[name]
    return values


def _with_type(request: GpuRequest, count: int) -> str | int:
    return f"{request.type}:{count}" if request.type else count


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
        echo_error(printable(f"{path}: nothing is proposed, and nothing is changed"))
        return
    asked = _job_in(path).resources
    values: Values = {}
    for one in verdict.proposals:
        section, _, key = one.key.partition(".")
        if one.key != "resources.gpus":
            values[section, key] = one.value
        elif asked.gpus is None or (asked.nodes or 1) != 1:
            echo_error(
                f"note: {one.key}: {one.value} is left to you: the file asks for its GPUs in another way"
            )
        else:
            values[section, key] = f"{asked.gpus.type}:{one.value}" if asked.gpus.type else one.value
    _write_values(path, values, lambda: None, beside=beside)
