"""The logs of the jobs that words on the command line mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from slurmgpu.errors import SlurmGpuError, SlurmUnreachable
from slurmgpu.models.run import JobState, JobStatus, Run
from slurmgpu.monitoring.log_files import Log, logs_of, tasks_of
from slurmgpu.monitoring.select import Selection, is_of_this_cluster, job_of_record
from slurmgpu.monitoring.status import status
from slurmgpu.slurm import JobId, Slurm

__all__ = ["find_logs"]


def find_logs(
    slurm: Slurm,
    selections: Sequence[Selection],
    user: str | None,
    run_for: Callable[[JobStatus], Run | None],
    *,
    earlier: bool = True,
) -> list[Log]:
    """The logs of the jobs that some words mean; those that a run directory, or its record of a
    job id, leads to are found without Slurm.

    ``run_for`` finds the run of a job. With ``earlier`` a run directory's earlier jobs come first, oldest first.

    Raises SlurmUnreachable when a word is not a run directory and nothing answers; SlurmGpuError for an unknown job.
    """
    found: list[Log] = []
    for selection in selections:
        run = selection.run or _recorded(slurm, selection, run_for)
        here = _here(run, selection.job_id) if run is not None else []
        if run is not None and here:
            found += [*(_of_earlier(selection.run) if selection.run and earlier else []), *here]
            continue
        jobs, no_answer = _asked(slurm, user, selection)
        logs = [log for job in jobs if job.source != "none" for log in _logs(selection, job, run_for)]
        if not logs:
            logs = [log for job in jobs for log in _of_record(job, run_for)]
        if no_answer is not None:  # what accounting says of a job that waits may be old
            said = "the queue does not answer, and accounting says: "
            logs = [log._replace(why=said + log.why) if log.why else log for log in logs]
        older = _of_earlier(selection.run) if selection.run is not None else []
        there = older or any(log.path and log.path.exists() for log in logs)
        if run is not None and not there and not (selection.job_id and selection.job_id.tasks):
            logs = _left_behind(run) or logs
        logs = [*(older if earlier else []), *logs]
        if not logs and no_answer is not None:
            raise no_answer
        if not logs:
            raise SlurmGpuError(
                f"{selection.text}: Slurm knows no such job of yours",
                hint="slurmgpu status lists jobs; an older one is found by its run directory"
                + ("" if selection.job_id else ", or by its id"),
            )
        found += logs
    by_path: dict[Path | int, Log] = {}
    for number, log in enumerate(found):  # the components of a heterogeneous job write into one file
        by_path.setdefault(log.path or number, log)
    return list(by_path.values())


def _asked(
    slurm: Slurm, user: str | None, selection: Selection
) -> tuple[list[JobStatus], SlurmUnreachable | None]:
    """The jobs that a word means, and why they may not be all."""
    try:
        report = status(slurm, user=user, selections=[selection])
    except SlurmUnreachable as error:
        return [], error
    silence = SlurmUnreachable(f"{selection.text}: {report.silence}") if report.silence else None
    return report.jobs, report.no_answer or silence


def _recorded(slurm: Slurm, selection: Selection, run_for: Callable[[JobStatus], Run | None]) -> Run | None:
    """The run of a job that is named by its id, as this machine's files tell it; Slurm has not been asked."""
    if selection.job_id is None:
        return None
    number = selection.job_id.number
    run = run_for(JobStatus(job_id=str(number), raw_id=number, state=JobState.UNKNOWN, source="run.json"))
    return run.as_of(number) if run is not None and is_of_this_cluster(run, slurm.env) else None


def _here(run: Run, job_id: JobId | None) -> list[Log]:
    """The logs of a run's newest job, or of one task of it, where its record alone leads to them, and all are there."""
    patterns = [one for one in (run.stdout, run.stderr) if one is not None]
    if run.job_id is None or run.stdout is None or not all(one.startswith("/") for one in patterns):
        return []
    job = job_of_record(run)
    if job_id is not None and job_id.tasks:
        job = job.model_copy(update={"job_id": f"{job_id.number}_{job_id.tasks}", "raw_id": None})
    # Only the queue knows which tasks an array has, and the job id of each.
    unknown = ("%j", "%J") if job.raw_id is None else ("%a", "%A")
    if any(sign in one for one in patterns for sign in unknown):
        return []
    logs = logs_of(run, job)
    return logs if _there(logs) == logs else []


def _logs(selection: Selection, job: JobStatus, run_for: Callable[[JobStatus], Run | None]) -> list[Log]:
    """A job's logs, by the record of its own submission: the run may have been resumed since, with other names."""
    run = selection.run or run_for(job)
    job_id = JobId.parse(job.job_id)
    return logs_of(run.as_of(job_id.number) if run is not None and job_id is not None else run, job)


def _of_record(job: JobStatus, run_for: Callable[[JobStatus], Run | None]) -> list[Log]:
    """The logs of a job that Slurm does not know, where a run directory has its number and they are there."""
    run = run_for(job)
    number = JobId.parse(job.job_id)
    return _there(logs_of(run.as_of(number.number), job)) if run is not None and number is not None else []


def _there(logs: list[Log]) -> list[Log]:
    return [log for log in logs if log.path is not None and log.path.is_file()]


def _of_earlier(run: Run) -> list[Log]:
    """The logs that are left of the jobs that a run had before it was resumed."""
    logs = []
    for number in filter(None, (one.job_id for one in run.earlier)):
        then = run.as_of(number)
        tasks = sorted(Path(run.run_dir, "logs").glob(f"{number}_*"))
        logs += _there(logs_of(then, job_of_record(then)))
        logs += [Log(str(number), path) for path in tasks]
    return logs


def _left_behind(run: Run) -> list[Log]:
    """The logs in a run directory, whatever Slurm knows: those in its folder of logs, and those of submitit's tasks."""
    paths = sorted((Path(run.run_dir) / "logs").glob("*"))
    logs = [Log(str(run.job_id or run.name), path) for path in paths if path.is_file()]
    return logs + (tasks_of(run, run.job_id, str(run.job_id)) if run.job_id is not None else [])
