"""The meaning of a JOB word (an id, a name, a run directory), the run of a job, and the job that a run became."""

from __future__ import annotations

import os
import pwd
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Literal

from slurmgpu.errors import InvalidInput
from slurmgpu.files.layered import Layered
from slurmgpu.files.run_record import read_run, write_run
from slurmgpu.models.run import EXIT_CODE_FILE, RUN_FILE, JobState, JobStatus, Run
from slurmgpu.slurm import JobId, Slurm, cluster_name_here, current_user

__all__ = [
    "IN_FLIGHT", "RUN_MARKS", "STAMPED", "Selection", "SettledRun", "belongs", "current_user", "is_of_this_cluster",
    "job_of_record", "names_folder", "note_jobs", "owner", "run_directories", "run_of", "scripts_of", "select", "settle",
    "since_moment", "user_number",
]  # fmt: skip

# Clocks of a login node and the controller differ; by this much an id may seem older than its submission.
_CLOCK_SLACK = timedelta(minutes=5)
IN_FLIGHT = timedelta(minutes=10)
"""A request that got lost on its way may still arrive; after this time it has, or never will."""
STAMPED = re.compile(r"(.+)-(\d{8}T\d{6}Z)-[0-9a-f]+", re.ASCII)
"""The name of a run directory: the job's name, the UTC time, a token."""
RUN_MARKS = (RUN_FILE, "script.sbatch", "train.json", "checkpoints")
"""Marks of a run directory: files of submission and local runs, and those that the entrypoint alone makes."""


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


_VALID = "Give a job id, a job name, or a directory that slurmgpu submit made."


def select(words: Sequence[str]) -> list[Selection]:
    """Decide what each word means; raises InvalidInput for a path that is not a run directory."""
    return [_select(word) for word in words]


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


def user_number(name: str | None) -> int | None:
    """Return the number of a user that Slurm names, this process's where it names none; None where nobody here is called so."""
    if name is None or name == current_user():
        return os.getuid()
    try:
        return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def owner(run: Run) -> str | None:
    """Return whose jobs to look through: mine, or everybody's where the run directory is somebody else's."""
    try:
        mine = Path(run.run_dir).stat().st_uid == os.getuid()
    except OSError:
        mine = False
    return current_user() if mine else None


# Runs


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
    # Asked of every row of a queue.
    runs = (word for word in words if word.startswith("/"))
    return [word for word in runs if os.path.isfile(f"{word.rpartition('/')[0]}/{RUN_FILE}")]  # noqa: PTH113


def run_directories(runs: Path, owner: int | None = None) -> Iterator[Path]:
    """Yield the run directories of a user (None: this one) in a folder, the newest first.

    By the time in their names; one made by hand by its last change. The folder may be shared, and a word must lead to
    nothing that somebody else has laid there.
    """
    owner = os.getuid() if owner is None else owner
    dated = []
    for path in runs.iterdir() if os.access(runs, os.R_OK | os.X_OK) and runs.is_dir() else ():
        try:
            if path.lstat().st_uid != owner:
                continue
            stamped = STAMPED.fullmatch(path.name)
            if stamped:
                dated.append((stamped[2], path.name, path))
            elif any((path / mark).exists() for mark in RUN_MARKS):
                changed = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
                dated.append((f"{changed:%Y%m%dT%H%M%SZ}", path.name, path))
        except OSError:
            continue  # removed this moment, or closed to this user
    yield from (path for _, _, path in sorted(dated, reverse=True))


@dataclass(frozen=True)
class SettledRun:
    """A run, and whether its job is known now."""

    run: Run
    outcome: Literal["job", "no job", "unknown"]
    why: str = ""
    """Of what is unknown, the reason; of a job, what could not be written."""
    silent: bool = False
    """True if Slurm did not answer, and may tell later."""


_LOOKED_AT: set[tuple[str | None, str | None]] = set()


def note_jobs(jobs: Iterable[JobStatus], env: Mapping[str, str] | None) -> None:
    """Write the ids of jobs that Slurm has just shown into the records of my runs that lack them.

    Whoever asked did so for another reason: what cannot be read or written is left as it is.
    """
    me = current_user()
    for job in jobs:
        looked_at = (job.script, job.submit_line)
        if looked_at == (None, None) or looked_at in _LOOKED_AT or job.user not in (None, me):
            continue  # a watch sees the same jobs again and again, and an array has one script for all its tasks
        _LOOKED_AT.add(looked_at)
        for script in scripts_of(job):
            job_id, folder = JobId.parse(job.job_id), Path(script).parent
            with suppress(InvalidInput, OSError):
                run = read_run(folder)
                lacks = run.job_id is None and run.script_path == script
                # Nobody else leads this process to a file of ours: the folder and the record in it are this user's.
                if job_id is None or not lacks or job_id.number in run.job_ids:
                    continue
                if {one.lstat().st_uid for one in (folder, folder / RUN_FILE)} == {os.getuid()}:
                    write_run(folder, _with_job(run, job_id.number, job.cluster or cluster_name_here(env)))


def settle(slurm: Slurm, folder: Path, now: datetime) -> SettledRun:
    """Ask queue and accounting which job a run became, and write it down; may be repeated at any time.

    Raises InvalidInput where ``folder`` has no record that can be read.
    """
    run = read_run(folder)
    if run.job_id is not None:
        return SettledRun(run, "job")
    here = cluster_name_here(slurm.env)
    if run.cluster is not None and here is not None and run.cluster != here:
        why = f"it was submitted on cluster {run.cluster}, and this machine asks {here}"
        return SettledRun(run, "unknown", why)
    earlier = set(run.job_ids)
    found = slurm.find_by_script(
        run.script_path, user=owner(run), since=run.submitted_at - timedelta(minutes=2), earlier=earlier
    )
    if found.jobs:
        number, cluster = found.jobs[0]
        return _written(folder, _with_job(run, number, cluster or here), "job")
    # A job's logs and exit codes lie in its run directory; of an array's task its log has the array's id.
    logs = [re.match(r"(\d{1,18})(?:_\d+)?\.out\Z", path.name, re.ASCII) for path in folder.glob("logs/*")]
    codes = [re.search(r"\.(\d{1,18})\Z", path.name, re.ASCII) for path in folder.glob(f"{EXIT_CODE_FILE}*")]
    left = sorted({int(match[1]) for match in (logs if any(logs) else codes) if match} - earlier)
    if len(left) == 1:
        return _written(folder, _with_job(run, left[0], run.cluster), "job")
    if not found.certain:
        return SettledRun(run, "unknown", "; ".join(found.notes), found.silent)
    if run.cluster is None:
        return SettledRun(run, "unknown", "its record does not say on which cluster it was submitted")
    if now - run.submitted_at < IN_FLIGHT:
        until = (run.submitted_at + IN_FLIGHT).astimezone()
        return SettledRun(run, "unknown", f"its job may still appear in the queue, until {until:%H:%M}")
    return _written(folder, run.model_copy(update={"state": "not submitted"}), "no job")


def _with_job(run: Run, number: int, cluster: str | None) -> Run:
    return run.model_copy(update={"state": "submitted", "job_id": number, "cluster": cluster})


def _written(folder: Path, run: Run, outcome: Literal["job", "no job"]) -> SettledRun:
    try:
        write_run(folder, run)
    except OSError as error:
        return SettledRun(run, outcome, f"its record cannot be written: {error.strerror}")
    return SettledRun(run, outcome)
