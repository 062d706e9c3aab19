"""The limits of an assistant: files and jobs that it may name, and jobs that it may ask for."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from slurmgpu.errors import InvalidInput, PlanError
from slurmgpu.jobs.look import status
from slurmgpu.jobs.select import current_user, select, since_moment
from slurmgpu.models.plan import Plan
from slurmgpu.runs.prepared import Prepared
from slurmgpu.script.batch_script import parse_batch_script
from slurmgpu.slurm import JobId, Slurm

_LARGEST_FILE = 1 << 20


_OLDEST = timedelta(days=31)


def inside(word: str, field: str = "file") -> str:
    """Return the path of a file below this folder, as it was given; InvalidInput for any other.

    Hidden files and folders are none of an assistant's business: keys and passwords lie there.
    """
    here = Path.cwd().resolve()
    try:
        real = (here / word).resolve()
        below = real.relative_to(here) if real.is_relative_to(here) else None
        if below is None or any(part.startswith(".") for part in below.parts):
            raise InvalidInput(
                f"{field}: {word!r} does not lie below the folder of this server, or is hidden",
                hint=f"name a file below {here}, by its path against that folder",
            )
        if not real.is_file():
            what = "is a folder or a device" if real.exists() else "is not there"
            raise InvalidInput(f"{field}: {word!r} {what}", hint=f"name a file below {here}")
        if real.stat().st_size > _LARGEST_FILE:
            raise InvalidInput(
                f"{field}: {word!r} is larger than {_LARGEST_FILE:,} bytes",
                hint="name a job file or a batch script",
            )
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, a circle of links
        raise InvalidInput(f"{field}: {word!r} cannot be looked at: {error}") from None
    return str(below)


def stay_below(word: str, field: str) -> None:
    """Raise InvalidInput for what is there and lies elsewhere: a plan looks into scripts, and its answer quotes them."""
    here = Path.cwd().resolve()
    real = (here / Path(os.path.expandvars(word)).expanduser()).resolve()
    if not real.is_relative_to(here):
        raise InvalidInput(
            f"{field}: {word!r} does not lie below the folder of this server",
            hint=f"name a path below {here}, or start the server in a folder above both",
        )


def named_profile(name: str | None) -> str | None:
    """Return the name of a cluster profile; InvalidInput where it is that of a file which may not be read."""
    if name is not None and Path(name).exists():
        inside(name, "cluster")
    return name


def check_is_script(file: str, field: str = "file") -> str:
    """Return the text of a batch script; InvalidInput for a file that is none: its lines would stand in what is said of it."""
    from slurmgpu.files.yaml import read_batch_script

    text = read_batch_script(Path(file), any_bytes=True)
    if not text.startswith("#!") and "#SBATCH" not in text:
        raise InvalidInput(
            f"{field}: {file!r} is no batch script: it has no first line with #! and no #SBATCH",
            hint="name a job file (.yaml) or a batch script",
        )
    return text


def own_jobs(words: Sequence[str], slurm: Slurm) -> None:
    """Raise InvalidInput where a word means a job of somebody else's, or a folder.

    Of others the log's path alone could lead to a file of the user's that they cannot read themselves.
    """
    for word in words:
        if "/" in word or word.startswith((".", "-", "~")) or (not JobId.parse(word) and Path(word).exists()):
            raise InvalidInput(
                f"jobs: {word!r} is the name of a file or folder, where a job's id or name is expected",
                hint="name the job by its id, as status shows it",
            )
    me = current_user()
    report = status(slurm, user=me, selections=select(words))
    for job in report.jobs:
        if job.source not in ("none", "run.json") and job.user != me:
            raise InvalidInput(
                f"jobs: {job.job_id} is not a job of {me}, and only the user's own are shown",
                hint="status without jobs lists them",
            )


def check_since(text: str | None) -> None:
    """Raise InvalidInput for a time so long ago that accounting would be busy for minutes."""
    now = datetime.now(timezone.utc)
    if text is not None and now - since_moment(text, now) > _OLDEST:
        raise InvalidInput(
            f"since: {text!r} is more than {_OLDEST.days} days ago", hint="ask for less, such as '7d'"
        )


HARMLESS = frozenset(
    {
        "begin", "contiguous", "deadline", "exclude", "gpu-freq", "kill-on-invalid-dep", "nice", "prefer", "signal", "switches",
        "tmp", "wckey",
    }
)  # fmt: skip
"""Options of sbatch that change neither how many GPUs a job gets nor for how long, nor where it is sent."""


def gpu_seconds(prepared: Prepared) -> int:
    """Return the most GPU-seconds that a job may use: GPUs x time limit x starts; PlanError where that is not known."""
    plan, job = prepared.plan, prepared.loaded.job
    for name in sorted({*job.sbatch, *(name for one in job.components for name in one.sbatch)} - HARMLESS):
        raise PlanError(
            f"sbatch.{name}: an option with which assistants submit nothing: what the job then gets is not worked out here",
            hint=f"leave it out; these may stand there: {', '.join(sorted(HARMLESS))}",
        )
    if prepared.unchosen is not None:
        raise PlanError(
            "budget: no cluster profile is chosen, and without one nobody knows whether a job gets whole nodes",
            hint="the user makes one, or chooses one: slurmgpu init, slurmgpu cluster use NAME",
        )
    if not plan.exact and plan.option("time") is None:
        raise PlanError(
            "budget: the job names no time limit, and Slurm's default is not the job's to rely on",
            hint="say time, such as '2:00:00'",
        )
    if plan.gpu_hours is None:
        raise PlanError(
            "budget: how many GPU-hours the job may use is not known: its time has no limit, it gets whole nodes of unknown "
            "size, or is taken as it stands (a batch script, exact: true)",
            hint="say gpus and time in a planned job; the user submits others: slurmgpu submit",
        )
    if not plan.gpu_hours:
        raise PlanError(
            "budget: the job asks for no GPUs, and a budget in GPU-hours cannot hold such jobs",
            hint="say gpus; the user submits jobs without GPUs: slurmgpu submit",
        )
    return math.ceil(plan.gpu_hours * 3600 - 1e-6) * (1 + (plan.restart_limit or 0))


def check_script(plan: Plan, script: str) -> None:
    """Raise PlanError where the script asks for something else than the plan: a template may add any line."""
    read = parse_batch_script(script)
    planned = (plan.options, *plan.components)
    found = [
        [(one.name, one.value) for one in read.directives if one.component == number]
        for number in range(read.components)
    ]
    if found != [[(one.name, one.value) for one in options] for options in planned]:
        raise PlanError(
            "submit: the script's #SBATCH lines are not those of the plan: a template changes them",
            hint="assistants submit what the plan says; the user submits the job: slurmgpu submit",
        )
