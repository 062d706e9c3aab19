"""Cancelling jobs, and seeing in the queue that they end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from slurmgpu.errors import SlurmUnreachable
from slurmgpu.jobs.look import StatusReport, status
from slurmgpu.jobs.select import Selection
from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.slurm import JobId, Said, Slurm, check_signal

__all__ = ["Cancellation", "cancel"]

POLL = 1.0


@dataclass(frozen=True)
class Cancellation:
    """The outcome for one job that was to be cancelled."""

    job: str
    outcome: Literal["cancelled", "ending", "signalled", "finished", "missing", "refused", "unknown"]
    message: str
    jobs: tuple[JobStatus, ...] = ()
    """The cancelled jobs, as they were before."""


def cancel(
    slurm: Slurm,
    selections: Sequence[Selection],
    *,
    user: str | None,
    signal: str | None = None,
    wait: float = 10.0,
    pause: Callable[[float], None] = time.sleep,
) -> list[Cancellation]:
    """End the selected jobs, or with `signal` only signal their steps.

    Looks at the queue for up to `wait` seconds until none of them runs any more, at most once a second.
    Raises SlurmUnreachable when Slurm does not answer and nothing was cancelled, InvalidInput for a signal that is none.
    """
    check_signal(signal)  # A wrong signal is refused before anything is asked.
    try:
        report = status(slurm, user=user, selections=selections)
        if report.no_answer is not None:
            # Accounting alone does not tell: a job of that id may wait again, or be another one by now.
            raise report.no_answer
    except SlurmUnreachable as error:
        raise SlurmUnreachable(f"nothing was cancelled. {error.message}", hint=error.hint) from None
    results: list[Cancellation] = []
    targets: dict[str, list[JobStatus]] = {}
    for selection in selections:
        known = [job for job in report.jobs if job.source not in ("none", "run.json")]
        jobs = [job for job in known if selection.matches(job)]
        live = [job for job in jobs if not job.state.is_final and job.state is not JobState.UNKNOWN]
        if not live:
            results.append(_nothing_to_do(selection, jobs, report))
        for job in live:
            # For scancel: what the user wrote, or the whole array or heterogeneous job.
            text, job_id = selection.text, JobId.parse(job.job_id)
            target = job.job_id if job_id is None else str(job_id.number)
            if selection.job_id is not None:
                target = text.split("%")[0] + ("]" if "%" in text else "")
            targets.setdefault(target, []).append(job)
    if not targets:
        return results
    said = slurm.cancel(list(targets), signal)
    if signal is not None:
        return results + [_signalled(target, signal, said) for target in targets]
    everybody = any(job.user != user for jobs in targets.values() for job in jobs)
    # Their records in the queue, once none runs any more or the time is over; None where it does not answer.
    after: dict[str, list[JobStatus]] | None = None
    for poll in range(max(1, round(wait / POLL))):
        if poll:
            pause(POLL)
        try:
            queued, _ = slurm.queue(None if everybody else user)
        except SlurmUnreachable:
            continue
        after = {target: _covered(target, queued) for target in targets}
        if all(job.state.is_final for jobs in after.values() for job in jobs):
            break
    return results + [
        _ended(target, before, None if after is None else after[target], said)
        for target, before in targets.items()
    ]


def _nothing_to_do(selection: Selection, jobs: list[JobStatus], report: StatusReport) -> Cancellation:
    name = f"job {'named ' if selection.name is not None else ''}{selection.text}"
    if selection.run is not None and selection.run.job_id is not None:
        name = f"job {selection.run.job_id}"
    text = selection.text
    if text in report.unasked:
        silent = f"is not in the queue, and whether it has ended is not known: {report.silence}"
        return Cancellation(text, "unknown", f"{name} {silent}")
    if not jobs:
        return Cancellation(text, "missing", f"there is no {name}")
    if any(job.state is JobState.UNKNOWN for job in jobs):
        return Cancellation(text, "unknown", f"{name}: Slurm does not know its state")
    return Cancellation(text, "finished", f"{name} has already finished: {_states(jobs)}")


def _covered(target: str, jobs: list[JobStatus]) -> list[JobStatus]:
    wanted = JobId.parse(target)
    ids = [(job, JobId.parse(job.job_id)) for job in jobs]
    return [job for job, job_id in ids if wanted and job_id and wanted.covers(job_id)]


def _signalled(target: str, signal: str, said: Said) -> Cancellation:
    name = f"job {target}"
    if said.lost:
        lost = f"whether {signal.upper()} was sent to its steps is not known; scancel said: {said.text}"
        return Cancellation(target, "unknown", f"{name}: {lost}")
    if said.text:
        return Cancellation(target, "refused", f"{name}: scancel said: {said.text}")
    return Cancellation(target, "signalled", f"{name}: {signal.upper()} was sent to its steps")


def _ended(target: str, before: list[JobStatus], after: list[JobStatus] | None, said: Said) -> Cancellation:
    name, was, words = f"job {target}", _states(before), f"; scancel said: {said.text}" if said.text else ""
    asked = f"{name} was asked to end"
    if after is None:
        silent = f"the queue does not answer since: whether it does is not known (it was {was}{words})"
        return Cancellation(target, "unknown", f"{asked}, and {silent}")
    left = [job for job in after if not job.state.is_final]
    if after and all(job.state is JobState.COMPLETED for job in after):
        return Cancellation(target, "finished", f"{name} completed before it could be cancelled (was {was})")
    if not left:
        now = f", is {_states(after)}" if after else ""
        return Cancellation(target, "cancelled", f"{name} is cancelled (was {was}{now})", tuple(before))
    if all(job.state is JobState.COMPLETING for job in left):
        ending = f"{name} is ending: COMPLETING, its last processes still run (was {was})"
        return Cancellation(target, "ending", ending, tuple(before))
    now = _states(left)
    if said.text and not said.lost:
        refused = f"not cancelled (it is {now}): scancel said: {said.text}"
        return Cancellation(target, "refused", f"{name} is {refused}")
    shown = f"the queue still shows it (it is {now}, was {was}{words})"
    return Cancellation(target, "unknown", f"{asked}, but {shown}")


def _states(jobs: Iterable[JobStatus]) -> str:
    return ", ".join(sorted({job.state.value for job in jobs}))
