"""What a JOB word means (an id, a name, a run directory), and which jobs wait for which."""

from __future__ import annotations

import os
import pwd
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

from slurmgpu.errors import InvalidInput
from slurmgpu.files.layered import Layered
from slurmgpu.files.run_record import read_run
from slurmgpu.models.run import RUN_FILE, JobState, JobStatus, Run
from slurmgpu.slurm import JobId, cluster_name_here, current_user

__all__ = [
    "WAITS_FOR",
    "After",
    "Selection",
    "belongs",
    "connected",
    "current_user",
    "is_of_this_cluster",
    "job_of_record",
    "layers",
    "names_folder",
    "owner",
    "read_dependency",
    "run_of",
    "scripts_of",
    "select",
    "since_moment",
    "user_number",
]


# Clocks of a login node and the controller differ; by this much an id may seem older than its submission.
_CLOCK_SLACK = timedelta(minutes=5)


@dataclass(frozen=True)
class Selection:
    """One JOB word: exactly one of `job_id`, `name` and `run` is set."""

    text: str
    job_id: JobId | None = None
    name: str | None = None
    run: Run | None = None

    @property
    def id(self) -> JobId | None:
        """The job id that it leads to, if any."""
        if self.run is not None:
            return None if self.run.job_id is None else JobId(self.run.job_id)
        return self.job_id

    def matches(self, job: JobStatus) -> bool:
        """Return True if this word means that job; a run means its newest."""
        if self.name is not None:
            return job.name == self.name
        number = JobId.parse(job.job_id)
        if self.run is not None:
            earlier = {one.job_id for one in self.run.earlier}
            return _is_run(self.run, job) and (number is None or number.number not in earlier)
        return number is not None and self.job_id is not None and self.job_id.covers(number)


def belongs(run: Run, job: JobStatus) -> bool:
    """Return True if a job is one of a run's, the newest or an earlier one."""
    return _is_run(run, job) or any(_is_run(run.as_of(number), job) for number in run.job_ids)


def _is_run(run: Run, job: JobStatus) -> bool:
    """Return True if a job is this run's: by its script, else by its id, unless its time or its name is another one's.

    Ids are used again after some years, after a site starts anew or its controller has lost its state; a script's path is
    the run's own. A job that was put back into the queue has a later time, and its name.
    """
    path = run.script_path
    if job.script is not None:
        return job.script == path or job.script.startswith(path + " ")
    if job.submit_line is not None and path in job.submit_line:
        return True
    number = JobId.parse(job.job_id)
    if run.job_id is None or number is None or number.number != run.job_id:
        return False
    if job.submit is None:
        return True
    late = job.submit > run.submitted_at + _CLOCK_SLACK and job.name not in ("", run.name)
    return job.submit >= run.submitted_at - _CLOCK_SLACK and not late


def job_of_record(run: Run) -> JobStatus:
    """Return what a run's record alone says of its newest job: not its state."""
    number = "?" if run.job_id is None else str(run.job_id)
    return JobStatus(
        job_id=number, raw_id=run.job_id, name=run.name, state=JobState.UNKNOWN, source="run.json"
    )


def is_of_this_cluster(run: Run, env: Mapping[str, str] | None) -> bool:
    """Return True if a run's job ids are those of the cluster that Slurm's commands ask, as far as this machine's files tell."""
    if (os.environ if env is None else env).get("SLURM_CLUSTERS"):
        return False
    return run.cluster in {None, cluster_name_here(env)}


def run_of(job: JobStatus) -> Run | None:
    """Return the run that a job belongs to, by the path of its script."""
    script = next(iter(scripts_of(job)), None)
    return None if script is None else read_run(Path(script).parent)


def scripts_of(job: JobStatus) -> list[str]:
    """Return the paths that Slurm names as the job's script, or in its command, and that lie in a run directory."""
    words = [job.script or ""]
    if job.submit_line:
        try:
            words += shlex.split(job.submit_line)
        except ValueError:
            words += job.submit_line.split()
    return [word for word in words if word.startswith("/") and _is_in_a_run(word.rpartition("/")[0])]


def _is_in_a_run(folder: str) -> bool:
    """Asked of every row of a queue."""
    return os.path.isfile(f"{folder}/{RUN_FILE}")  # noqa: PTH113


def select(words: Sequence[str]) -> list[Selection]:
    """Decide what each word means; raises InvalidInput for a path that is not a run directory."""
    return [_select(word) for word in words]


_VALID = "Give a job id, a job name, or a directory that slurmgpu submit made."


def _select(word: str) -> Selection:
    if not word.strip():
        raise InvalidInput(f"{word!r} names no job", hint=_VALID)
    if job_id := JobId.parse(word):
        return Selection(word, job_id=job_id)
    if log := re.fullmatch(r"(?:.*?[-_.])?(\d+(?:_\d+)?)\.(?:out|err|log)", word):
        raise InvalidInput(f"{word} is a log, where a job is expected", hint=f"give its number: {log[1]}")
    if re.fullmatch(r"[\d_]+(?:[,-][\d_]+)+", word):
        first, _, last = word.partition("-")
        ids = range(int(first), int(last) + 1) if first.isdigit() and last.isdigit() else word.split(",")
        if 0 < len(ids) < 100:
            raise InvalidInput(f"{word}: separate ids by blanks", hint=f"write {' '.join(map(str, ids))}")
    if word.endswith((".yaml", ".yml")) and Path(word).is_file():
        from slurmgpu.files.jobs import load_job  # only a mistake pays for it
        from slurmgpu.planning.settled import name_of

        job = load_job(Path(word), Layered({}, {}), cwd=Path.cwd(), environ=os.environ).job
        runs = job.name or job.command or job.train or job.steps
        name = shlex.quote(name_of(job)) if runs else "NAME"
        hint = f"give the job's name: {name}, as in slurmgpu status {name}; slurmgpu submit {shlex.quote(word)} submits it"
        raise InvalidInput(f"{word} is a job file, where a job is expected", hint=hint)
    if not names_folder(word):
        return Selection(word, name=word)
    path = Path(word)
    if (path / RUN_FILE).is_file():
        return Selection(word, run=read_run(path))
    why = f"is not a run directory: there is no {RUN_FILE} in it" if path.exists() else "is not there"
    raise InvalidInput(f"{word} {why}", hint=_VALID)


def names_folder(word: str) -> bool:
    """Return True if a word is a path, or the bare name of a folder here.

    A bare name may be a job's, too: the folder counts only where somebody else has not laid it there to be taken for it.
    """
    if "/" in word or word in {".", ".."}:
        return True
    try:
        return Path(word).is_dir() and Path(word).lstat().st_uid == os.getuid()
    except OSError:
        return False


def user_number(name: str | None) -> int | None:
    """Return the number of a user that Slurm names, this process's where it names none; None where nobody here is called so."""
    if name is None or name == current_user():
        return os.getuid()
    try:
        return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def owner(run: Run) -> str | None:
    """Whose jobs to look through: mine, or everybody's where the run directory is somebody else's."""
    try:
        mine = Path(run.run_dir).stat().st_uid == os.getuid()
    except OSError:
        mine = False
    return current_user() if mine else None


# Slurm counts from 1970, in any zone, and knows nothing before.
_FIRST = datetime(1970, 1, 2, tzinfo=timezone.utc)
_AGO = re.compile(r"(\d{1,6})\s*(s|m|min|h|d|w)", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def since_moment(text: str, now: datetime) -> datetime:
    """Read `30s`, `30m`, `12h`, `1d`, `2w` (that long before now) or a past date such as 2025-11-21 or 2025-11-21T08:00.

    Raises InvalidInput for anything else.
    """
    match = _AGO.fullmatch(text.strip())
    hint = "use 30m, 12h, 1d, 2w, or a date such as 2025-11-21T08:00"
    try:
        if match:
            moment = now - timedelta(**{_UNITS[match[2]]: int(match[1])})
        else:
            moment = datetime.fromisoformat(text.strip()).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        raise InvalidInput(f"--since {text!r} is not a time", hint=hint) from None
    if moment > now + _CLOCK_SLACK:
        raise InvalidInput(f"--since {text!r} is in the future: nothing has happened since then", hint=hint)
    return max(moment, _FIRST)


WAITS_FOR = {
    "after": "{} to start",
    "afterany": "{} to end",
    "afterok": "{} to end well",
    "afternotok": "{} to fail",
    "aftercorr": "its task of {} to end well",
    "afterburstbuffer": "{} to free its burst buffer",
}
"""What a job waits for of another, by the kind of its dependency."""

_JOB = re.compile(r"([\d_*+]+)(?:\((\w+)\))?", re.ASCII)


class After(NamedTuple):
    """One job that another waits for."""

    kind: str
    """``afterok``, as Slurm writes it."""
    job: str
    """Its id as it is written: ``12``, ``12_3``, ``12_*``, ``12+5`` (five minutes after)."""
    how: str = ""
    """What Slurm says of it: ``unfulfilled``, ``failed``."""

    @property
    def number(self) -> int | None:
        """The number of the job or array; None of one that no job can have."""
        digits = re.match(r"\d{1,18}(?!\d)", self.job, re.ASCII)
        return int(digits[0]) if digits else None


def read_dependency(text: str) -> list[After]:
    """Return the jobs in ``afterok:12:13,afterany:14(unfulfilled)``; what is none, such as ``singleton``, is left out."""
    found = []
    for part in re.split(r"[,?]", text):
        kind, *jobs = part.strip().split(":")
        if kind.startswith("after"):
            matches = (_JOB.fullmatch(job) for job in jobs)
            found += [After(kind, match[1], match[2] or "") for match in matches if match]
    return found


def connected(start: int, before: Mapping[int, Iterable[int]]) -> set[int]:
    """Return all that ``start`` waits for or that waits for it, over any number of jobs between; itself too.

    ``before`` has, of each job, those that it waits for.
    """
    beside: dict[int, set[int]] = {}
    for job, others in before.items():
        for other in others:
            beside.setdefault(job, set()).add(other)
            beside.setdefault(other, set()).add(job)
    found, left = {start}, [start]
    while left:
        new = beside.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


def layers(jobs: Iterable[int], before: Mapping[int, Iterable[int]]) -> Sequence[list[int]]:
    """Return the jobs in columns, each one after all that it waits for; in a circle, which Slurm allows nobody, somewhere."""
    left, placed = sorted(jobs), set[int]()
    among = set(left)
    made = []
    while left:
        free = [job for job in left if all(one in placed or one not in among for one in before.get(job, ()))]
        column = free or left
        made.append(column)
        placed.update(column)
        left = [job for job in left if job not in placed]
    return made
