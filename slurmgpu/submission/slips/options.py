"""Options of a job that Slurm takes, and with which the job cannot work: a deadline, a signal, an input, a profiler."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta

from slurmgpu.models.units import Duration
from slurmgpu.submission.slips.command import Command, Slip, seen_from_here
from slurmgpu.submission.slips.nearby import is_there, meant

__all__ = ["option_slips"]

_UNITS = {"": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}


def _moment(text: str, now: datetime) -> datetime | None:
    """Return the time of an option such as ``--deadline`` in the local zone; None for the rarer spellings.

    Read are ``now+2hours``, ``HH:MM[:SS]`` (today, or tomorrow where it has passed) and ``YYYY-MM-DD[THH:MM[:SS]]``
    (sbatch(1), --begin).
    """
    if match := re.fullmatch(r"now(?:\+(\d+)(second|minute|hour|day|week|)s?)?", text):
        return now + timedelta(seconds=int(match[1] or 0) * _UNITS[match[2] or ""])
    if match := re.fullmatch(r"(\d{1,2}):(\d\d)(?::(\d\d))?", text):
        hour, minute, second = (int(part or 0) for part in match.groups())
        if hour > 23 or minute > 59 or second > 59:
            return None
        then = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return then if then > now else then + timedelta(days=1)
    try:
        return datetime.fromisoformat(text) if re.match(r"\d{4}-\d\d-\d\d(?:T|\Z)", text) else None
    except ValueError:
        return None


def option_slips(command: Command, now: datetime | None = None) -> Iterator[Slip]:
    """Yield what cannot work of a job's options here and now."""
    plan = command.plan
    now = now or datetime.now()  # as sbatch reads times: in the zone of this machine
    limit = plan.time.seconds if plan.time is not None else None
    end = _moment(plan.option("deadline") or "", now)
    if end is not None:
        shortest = Duration.parse(plan.option("time-min")).seconds if plan.option("time-min") else limit
        left = int((end - now).total_seconds())
        if left < (shortest or 1):
            said = (
                "is past"
                if left <= 0
                else f"leaves {Duration(left)}, and the job's time limit is {plan.time}"
            )
            yield Slip(
                f"deadline: {plan.option('deadline')} {said}: Slurm ends a job that cannot be done by its deadline unrun",
                "give a later one" + ("" if left <= 0 else ", or a shorter --time"),
            )
    signal = re.fullmatch(r"(?:[BR]+:)?(\w+)@(\d+)", plan.option("signal") or "")
    if signal and limit is not None and int(signal[2]) >= limit:
        yield Slip(
            f"signal: {signal[1]} is to come {signal[2]} s before the end, and the whole time limit is {limit} s: it comes "
            "when the job has just begun",
            "the number behind @ counts seconds: 120 is two minutes",
            sure=False,
        )
    log = plan.option("output") or ""
    is_source = re.search(r"\.(?:py|sh|slurm|sbatch|ya?ml|ipynb)\Z", log)
    if is_source and command.folder is not None and is_there(command.folder / log):
        yield Slip(f"output: the log would overwrite {log}", "name another file: -o logs/%j.out")
    name = plan.option("input") or ""
    if name and name.lower() != "none" and command.folder is not None and not re.search(r"[%$~]", name):
        path = command.folder / name
        if not is_there(path):
            yield Slip(
                f"input: {name!r} is not there (looked for {path}), and Slurm ends a job whose input it cannot open",
                f"{meant(name, path)}give a file, against the work folder",
                not command.blind and seen_from_here(path, command.folder),
            )
    profiler = plan.profile.with_ if plan.profile is not None else None
    brought = plan.environment.modules or plan.environment.container or plan.environment.python.activated
    if profiler and not brought and not shutil.which(profiler, path=command.environ.get("PATH")):
        yield Slip(
            f"profile: {profiler} is not on PATH here, and the job's script looks for it there",
            "name the module that brings it: environment.modules",
            sure=False,
        )
