"""Plan and script -> a job in Slurm's queue and a run directory that records it; nothing is ever sent twice."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from slurmgpu.errors import InvalidInput, OutcomeUnknown, RunFailed, SlurmRefused, SlurmUnreachable
from slurmgpu.files.run_record import write_run
from slurmgpu.interrupts import as_interrupts
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.models.run import Run, Submitted
from slurmgpu.runs.directory import RunDirectory, new_run_directory
from slurmgpu.runs.preflight import check_before_submission, doubts
from slurmgpu.slurm import (
    Accepted,
    Outcome,
    Rejected,
    Slurm,
    Unknown,
    Unreachable,
    cluster_name_here,
    current_user,
)
from slurmgpu.version import __version__

if TYPE_CHECKING:
    from slurmgpu.runs.prepared import Prepared

__all__ = ["Submission", "submit_in", "submit_plan", "submit_prepared"]


# After a lost reply the controller may still be busy with the request: look for it a few times.
_LOOKS = (0.5, 1.5, 3.0, 5.0)


@dataclass(frozen=True)
class Submission:
    """A submission: plan, script, folder and files."""

    plan: Plan
    script: str
    folder: Path | None
    """The work folder on this machine; None when only the job knows it."""
    cwd: Path
    hold: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Other files that the job needs in its run directory, by path; they are there before the job is."""
    job_file: str | None = None
    """The job file that it was made of, as the record keeps it."""
    probe: bool = False
    told: Callable[[str], None] = lambda _: None
    """Hears of the run directory before Slurm is asked (whatever happens then, it is what finds the job), and what takes
    long."""

    @classmethod
    def of(
        cls,
        prepared: Prepared,
        *,
        told: Callable[[str], None] = lambda _: None,
        hold: bool = False,
        files: Mapping[str, bytes] = MappingProxyType({}),
        probe: bool = False,
    ) -> Submission:
        """Return the submission of a prepared job from the current folder; a probe is not recorded as its job file's."""
        path = None if probe else prepared.loaded.path
        return cls(
            plan=prepared.plan,
            script=prepared.render(),
            folder=prepared.folder,
            cwd=Path.cwd(),
            hold=hold,
            files=files,
            job_file=None if path is None else str(path.absolute()),
            probe=probe,
            told=told,
        )


def submit_prepared(
    prepared: Prepared,
    slurm: Slurm,
    say: Callable[[str], None],
    *,
    hold: bool = False,
    files: Mapping[str, bytes] = MappingProxyType({}),
    probe: bool = False,
) -> Run:
    """Submit a prepared job, and say what is to be said of that; the run. ``probe``: it asks for less than its job file says."""
    submission = Submission.of(prepared, told=say, hold=hold, files=files, probe=probe)
    with as_interrupts():
        run, said = submit_plan(submission, prepared.loaded.job, prepared.runs, slurm, os.environ)
    if said:
        say(said)
    for doubt in doubts(prepared.plan, prepared.folder):
        say(doubt)
    say(f"job {run.job_id} on cluster {run.cluster or 'unknown'}")
    if hold:
        say(f"it is held; `scontrol release {run.job_id}` lets it start")
    return run


def submit_plan(
    submission: Submission, job: Job, runs: Path, slurm: Slurm, environ: Mapping[str, str]
) -> tuple[Run, str]:
    """Submit from a new run directory in the folder ``runs``; the record, and what Slurm said besides.

    Raises SlurmRefused, SlurmUnreachable (nothing was submitted, no run directory is left) or
    OutcomeUnknown (the run directory stays: its path is what finds the job, if there is one).
    """
    check_before_submission(submission.plan, submission.folder, environ)
    directory = new_run_directory(runs, submission.plan, job, submission.script)
    return submit_in(directory, submission, slurm, environ)


def submit_in(
    directory: RunDirectory,
    submission: Submission,
    slurm: Slurm,
    environ: Mapping[str, str],
    *,
    earlier: Sequence[Submitted] = (),
    options: Sequence[str] = (),
) -> tuple[Run, str]:
    """Submit what lies in a run directory, after the submissions that it had before; errors as `submit_plan`.

    ``options`` of sbatch's win over the script's.
    """
    try:
        run, ours = _prepare(submission, directory, slurm, earlier, options)
    except BaseException as error:
        directory.remove()  # nothing was sent
        if isinstance(error, OSError):
            raise RunFailed(
                f"run directory {str(directory.path)!r} cannot be written: {error.strerror}",
                hint="make room there, or set runs: in the settings to another folder",
            ) from None
        raise
    submission.told(f"run directory {directory.path}")
    outcome: Outcome
    try:
        outcome = slurm.submit(
            directory.path / "script.sbatch",
            ours,
            cwd=submission.folder or submission.cwd,
            env={**environ, "SLURMGPU_RUN_DIR": str(directory.path)},
        )
    except SlurmUnreachable:
        directory.remove()  # sbatch was never started
        raise
    except KeyboardInterrupt:
        submission.told("interrupted; looking for the job in the queue (Ctrl-C again stops looking)")
        outcome = Unknown("sbatch was interrupted before it answered")
    except OSError as error:
        outcome = Unknown(f"sbatch's answer could not be read: {error.strerror}")
    return _conclude(outcome, run, directory, slurm)


def _prepare(
    submission: Submission,
    directory: RunDirectory,
    slurm: Slurm,
    earlier: Sequence[Submitted],
    more: Sequence[str],
) -> tuple[Run, list[str]]:
    """Write what the job needs, and the record; that, and the options of sbatch's."""
    plan, path = submission.plan, directory.path
    for name, content in submission.files.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(content)
    for folder in plan.log_folders:
        directory.keep_folder((submission.folder or submission.cwd) / folder)
    options = [*more, *(["--hold"] if submission.hold else [])]
    pattern = plan.output
    if pattern is None:
        pattern = f"{path}/logs/{'%A_%a' if plan.option('array') else '%j'}.out"
        options.append(f"--output={pattern}")
    export = plan.option("export")
    if export is not None and export.upper() != "ALL":
        # The job does not get the whole environment: this variable is named, too; NONE's user environment is kept.
        if "," in str(path):
            raise InvalidInput(
                f"runs: {str(path.parent)!r} contains a comma, which --export cannot carry; use another folder"
            )
        ours = f"SLURMGPU_RUN_DIR={path}"
        none = export.upper() == "NONE"
        options += [f"--export={ours}", "--get-user-env"] if none else [f"--export={export},{ours}"]
    env = os.environ if slurm.env is None else slurm.env
    several = plan.option("clusters") or env.get("SLURM_CLUSTERS")
    run = Run(
        name=plan.name,
        token=directory.token,
        cluster=None if several else cluster_name_here(slurm.env),
        state="submitting",
        submitted_at=datetime.now(timezone.utc),
        argv=["sbatch", "--parsable", *options, str(path / "script.sbatch")],
        script_sha256=hashlib.sha256(submission.script.encode()).hexdigest(),
        run_dir=str(path),
        stdout=pattern,
        stderr=plan.error,
        steps=[step.name for step in plan.steps],
        job_file=submission.job_file,
        probe=submission.probe,
        slurmgpu_version=__version__,
        earlier=list(earlier),
    )
    write_run(path, run)
    return run, options


def _conclude(outcome: Outcome, run: Run, directory: RunDirectory, slurm: Slurm) -> tuple[Run, str]:
    if isinstance(outcome, Rejected):
        directory.remove()
        advice = outcome.advice
        meaning = f"\n({advice.meaning})" if advice else ""
        raise SlurmRefused(
            f"Slurm refused the job: {outcome.text}{meaning}", hint=advice.act if advice else None
        )
    if isinstance(outcome, Unreachable):
        directory.remove()
        error = outcome.error
        raise SlurmUnreachable(f"nothing was submitted. {error.message}", hint=error.hint)
    if isinstance(outcome, Accepted):
        said = f"sbatch said: {outcome.text}" if outcome.text else ""
        return _record(run, directory, slurm, (outcome.job_id, outcome.cluster), said)
    try:
        found = _look_for(run, slurm)
    except KeyboardInterrupt:
        found = None
    if found is not None:
        said = f"sbatch's reply was lost ({outcome.text}), but the job is in the queue"
        return _record(run, directory, slurm, found, said)
    with suppress(OSError):  # the record then still says that it was being submitted
        write_run(directory.path, run.model_copy(update={"state": "unknown"}))
    raise OutcomeUnknown(
        f"it is not known whether Slurm has the job: {outcome.text}",
        hint=f"`slurmgpu runs settle {directory.path}` finds out; submit again only when it says that there is no job",
    )


def _record(
    run: Run, directory: RunDirectory, slurm: Slurm, found: tuple[int, str | None], said: str
) -> tuple[Run, str]:
    """Slurm has the job: whatever happens to the record, the id reaches the user."""
    job_id, cluster = found[0], found[1] or cluster_name_here(slurm.env)
    known = run.model_copy(update={"state": "submitted", "job_id": job_id, "cluster": cluster})
    try:
        write_run(directory.path, known)
    except OSError as error:
        lost = f"job {job_id} is submitted, but its record in {directory.path} cannot be written: {error.strerror}"
        said = "\n".join(filter(None, (said, lost)))
    return known, said


def _look_for(run: Run, slurm: Slurm) -> tuple[int, str | None] | None:
    for pause in _LOOKS:
        time.sleep(pause)
        found = slurm.find_by_script(
            run.script_path,
            user=current_user(),
            since=run.submitted_at - timedelta(minutes=2),
            # The script of a run that is resumed led to them, too.
            earlier={one.job_id for one in run.earlier},
        )
        if found.jobs:
            return found.jobs[0]
    return None
