"""A look at jobs: one squeue and one sacct, side by side, joined, and completed by what the jobs' run directories hold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Literal

from slurmgpu.errors import SlurmRefused, SlurmUnreachable, nearest
from slurmgpu.jobs.causes import with_cause, with_whole_exit_code
from slurmgpu.jobs.select import Selection, job_of_record, note_jobs, run_of, scripts_of
from slurmgpu.jobs.table import known
from slurmgpu.models.run import JobState, JobStatus, JobUse, LiveUse, Run
from slurmgpu.runs.metrics import folder_of, progress_of
from slurmgpu.runs.samples import summary
from slurmgpu.slurm import (
    TAKEN_OFF,
    Accounting,
    JobId,
    Slurm,
    Step,
    cluster_name_here,
    even,
    highest_exit_code,
)

__all__ = ["Detail", "StatusReport", "last_known", "merge", "status", "with_progress", "without_rash_ends"]

_SAME_SUBMISSION = timedelta(seconds=60)
_FROM_ACCOUNTING = ("state_text", "elapsed", "start", "end", "exit_code", "signal", "node_list")
# Ends of one run of a job after which Slurm may let it run again; of a cancelled one, processes may still live.
_MAY_GO_ON = frozenset({JobState.PREEMPTED, JobState.NODE_FAIL, JobState.BOOT_FAIL, JobState.CANCELLED})
_MAY_GO_ON_FOR = timedelta(hours=1)


def merge(
    queued: list[JobStatus] | None, accounted: list[JobStatus], user: str | None
) -> tuple[list[JobStatus], list[tuple[str, JobStatus]]]:
    """Join what the queue and accounting say; returns jobs, and notes with the job each is about.

    `queued` is None when the queue could not be asked; `user` is whose jobs it was asked for (None:
    everybody's). The queue's word counts for a job that it lists: accounting lags at the start, and at the
    end it says CANCELLED while processes still run.
    """
    lone_cluster = next((job.cluster for job in accounted if job.cluster), None)
    by_key = {(job.cluster or lone_cluster, job.job_id): job for job in accounted}
    merged: dict[tuple[str | None, str], JobStatus] = {}
    arrays: dict[tuple[str | None, int | None], list[str]] = {}
    components = set()
    for job in queued or []:
        key = (job.cluster or lone_cluster, job.job_id)
        merged[key] = _completed_by(job, by_key.get(key))
        waiting = arrays.setdefault((key[0], job.array_job_id), [])
        if job.state.is_waiting:
            waiting.append(job.job_id)
        if "+" in job.job_id:
            components.add((key[0], job.raw_id))
    notes: list[tuple[str, JobStatus]] = []
    for key, job in by_key.items():
        if key in merged:
            continue
        if job.array_job_id is None and job.job_id.isdigit() and (key[0], int(job.job_id)) in arrays:
            continue  # For a moment accounting has a row of the last task that does not yet say that it is one.
        if job.job_id.isdigit() and (key[0], int(job.job_id)) in components:
            continue  # Until a heterogeneous job starts, 26.05 has each component in accounting as a job of its own.
        waits_together = job.array_tasks is not None and not job.array_tasks.isdigit()
        if waits_together and not job.state.is_final and (key[0], job.array_job_id) in arrays:
            continue  # The queue already lists these tasks, in parts that accounting has not heard of yet.
        if not job.state.is_final and _is_among(job, arrays.get((key[0], job.array_job_id), ())):
            continue  # A task that was released, or requeued, is by itself in accounting, and squeue shows it with the others.
        put_back = job.state is JobState.REQUEUED and job.end is not None
        if queued is not None and put_back and user in (None, job.user):
            # Cancelled before it was back in the queue, a job has no further row (seen on 20.11, 22.05 and 26.05).
            job = job.model_copy(update={"state": JobState.CANCELLED})
        elif queued is not None and not job.state.is_final and user in (None, job.user):
            lost = job.model_copy(update={"state": JobState.UNKNOWN})
            said = f"accounting says {job.state_text or 'nothing'}"
            notes.append((f"job {job.job_id}: {said}, but the queue has no such job", lost))
            job = lost
        merged[key] = job
    return list(merged.values()), notes


def _is_among(task: JobStatus, waiting: Iterable[str]) -> bool:
    """Return True if a task is one of those that wait together; squeue cuts a long list of these short."""
    one = JobId.parse(task.job_id)
    if one is None or not (one.tasks or "").isdigit():
        return False
    many = (JobId.parse(row) for row in waiting)
    return any(row is not None and (row.covers(one) or "..." in (row.tasks or "")) for row in many)


def _completed_by(queued: JobStatus, accounted: JobStatus | None) -> JobStatus:
    """Return the queue's record, with accounting's figures where both say that the job has ended, and how."""
    if accounted is None or not queued.state.is_final or accounted.state is not queued.state:
        return queued
    if queued.submit and accounted.submit and accounted.submit < queued.submit - _SAME_SUBMISSION:
        return queued  # an earlier job of this id, or an earlier run of this one: accounting lags
    fields = ((name, getattr(accounted, name)) for name in _FROM_ACCOUNTING)
    update = {name: value for name, value in fields if value is not None} | {"source": "squeue+sacct"}
    if (queued.exit_code or 0) - TAKEN_OFF == accounted.exit_code:
        update["exit_code"] = queued.exit_code
    if queued.exit_code is None:
        update["exit_code_cut"] = accounted.exit_code_cut
    return queued.model_copy(update=update)


def without_rash_ends(
    jobs: list[JobStatus], now: datetime
) -> tuple[list[JobStatus], list[tuple[str, JobStatus]]]:
    """Return the jobs without ends that may be none: accounting alone tells them, and the queue, which would know, is silent."""
    found, doubts = [], []
    for job in jobs:
        recent = job.end is None or job.end > now - _MAY_GO_ON_FOR
        if job.state in _MAY_GO_ON and recent:
            said = f"accounting says {job.state_text or job.state.value}, and the queue, which knows whether it goes on"
            job = job.model_copy(update={"state": JobState.UNKNOWN, "exit_code": None, "signal": None})
            doubts.append((f"job {job.job_id}: {said}, does not answer", job))
        found.append(job)
    return found, doubts


DEFAULT_SINCE = timedelta(days=1)

Detail = Literal["usual", "use", "sparing"]
"""``use``: with what ended jobs used, which ``usual`` has for jobs that are named. ``sparing``: accounting is left alone as
long as the queue says of all jobs that are named that they have not ended."""

# Each costs some reads of files, on file systems that may be slow.
_MOST_WITH_PROGRESS = 100
_MOST_WITH_CAUSE = 200


@dataclass(frozen=True)
class StatusReport:
    """Jobs as Slurm reports them at one moment."""

    cluster: str | None
    time: datetime
    """When Slurm was asked; of several answers, the oldest."""
    jobs: list[JobStatus]
    notes: list[str]
    """Remarks on the answer: what could not be asked, read or found."""
    missing: list[str] = field(default_factory=list)
    """The JOB words that lead to no job that Slurm knows, though it was asked."""
    unasked: list[str] = field(default_factory=list)
    """The JOB words for which queue or accounting did not answer, so that nobody knows whether there is such a job."""
    no_answer: SlurmUnreachable | None = None
    """Why the queue could not be asked."""
    silence: str = ""
    """The part that did not answer, where that leaves words unasked."""
    age: float = 0.0
    """Seconds since then: another process of the user's may have asked."""
    since: datetime | None = None
    """Jobs that ended before may be missing; None: all that were asked for are there."""


def status(
    slurm: Slurm,
    *,
    user: str | None,
    selections: Sequence[Selection] = (),
    since: datetime | None = None,
    live: bool = False,
    detail: Detail = "usual",
    run_for: Callable[[JobStatus], Run | None] = run_of,
) -> StatusReport:
    """Ask Slurm about a user's jobs (None: everybody's), or about those selected: one squeue and one sacct.

    `since` (default: a day ago) bounds what accounting is asked for; jobs selected by id alone are found
    whatever their age. `run_for` finds the run of a job, where only that can tell its exit code.
    Raises SlurmUnreachable when neither the controller nor accounting answers.
    """
    first = len(slurm.shelf.ages) if slurm.shelf else 0
    now = datetime.now(timezone.utc)
    use = bool(selections) or live or detail == "use"
    question = _Question(slurm, user, selections, since or now - DEFAULT_SINCE, use)
    jobs, doubts = question.answer(now, sparing=detail == "sparing")
    accounting, no_answer = question.accounting, question.no_answer
    notes = [*accounting.notes, *question.notes]
    if no_answer is not None:
        if not accounting.available:
            raise no_answer
        notes.append(f"{no_answer.message}  What follows comes from accounting, and may be out of date.")
    silence = no_answer.message if no_answer else accounting.notes[0] if accounting.silent else ""

    if since is not None:  # the queue remembers jobs for some minutes, accounting asks by days
        jobs = [
            job
            for job in jobs
            if not job.state.is_final
            or job.end is None
            or job.end >= since
            or any(one.name is None and one.matches(job) for one in selections)
        ]
    found, absent = jobs, []
    if selections:
        found = [job for job in jobs if any(one.matches(job) for one in selections)]
        for one in selections:
            if not any(map(one.matches, found)):
                absent.append(one.text)
                notes.append(_why_absent(one, jobs, no_answer is None, not accounting.silent, user))
                if one.name is None:
                    found.append(_unknown_job(one))
    shown = {id(job) for job in found} if doubts else set()
    notes += [note for note, job in doubts if id(job) in shown]

    note_jobs(found, slurm.env)
    if use and accounting.available:
        found = _with_use_of_ended(accounting, found)
    found = with_progress(found, ended=use)

    def find_run(job: JobStatus) -> Run | None:
        named = (one.run for one in selections if one.run and one.matches(job))
        return next(named, None) or run_for(job)

    found = [with_whole_exit_code(job, find_run) for job in found]
    ended = [job.raw_id for job in found if job.state.is_final and job.raw_id is not None]
    newest = set(sorted(ended, reverse=True)[:_MOST_WITH_CAUSE])
    found = [with_cause(job, find_run) if job.raw_id in newest else job for job in found]
    if live:
        found, live_notes = _with_live_use(slurm, found)
        notes += live_notes

    clusters = sorted({job.cluster for job in jobs if job.cluster})
    age = slurm.oldest(first)
    complete_since: datetime | None = question.since  # the queue alone forgets each job after a while
    if not accounting.available:
        complete_since = now
    elif selections and all(one.id for one in selections):
        complete_since = None
    return StatusReport(
        cluster=",".join(clusters) if clusters else cluster_name_here(slurm.env),
        time=now - timedelta(seconds=age),
        jobs=sorted(found, key=_order),
        notes=notes,
        missing=[] if silence else absent,
        unasked=absent if silence else [],
        no_answer=no_answer,
        silence=silence if silence and absent else "",
        age=age,
        since=complete_since,
    )


def last_known(
    slurm: Slurm,
    *,
    user: str | None,
    selections: Sequence[Selection] = (),
    since: datetime | None = None,
    detail: Detail = "usual",
) -> StatusReport | None:
    """Return what Slurm said when this was asked last on this machine, without asking; None where it never was.

    For people to look at while Slurm is silent: what has become of the jobs since, nobody knows.
    """
    if slurm.shelf is None:
        return None
    kept = Slurm(slurm.run, slurm.env, shelf=replace(slurm.shelf, kept_only=True, ages=[], heard={}))
    try:
        return status(kept, user=user, selections=selections, since=since, detail=detail)
    except (SlurmUnreachable, SlurmRefused):
        return None


def _why_absent(
    selection: Selection, jobs: list[JobStatus], queue_told: bool, accounting_told: bool, user: str | None
) -> str:
    if not queue_told:
        return f"job {selection.text}: accounting does not know it, and the queue could not be asked: it may be there"
    if not accounting_told:
        return f"job {selection.text}: the queue does not list it, and accounting could not be asked: it may have ended"
    if selection.name is None:
        return f"job {selection.text}: neither the queue nor accounting knows it"
    whose = " of yours" if user is not None else ""
    near = nearest(selection.name, {job.name for job in jobs if job.name})
    guess = f"; did you mean {near!r}?" if near else ""
    return f"there is no job{whose} named {selection.name!r} in the queue or in recent accounting{guess}"


def _unknown_job(selection: Selection) -> JobStatus:
    """Return the record of a job that Slurm does not know: never a success, never a failure."""
    run = selection.run
    if run is None:
        return JobStatus(job_id=selection.text, state=JobState.UNKNOWN, source="none")
    recorded = {"cluster": run.cluster, "submit": run.submitted_at, "script": run.script_path}
    return job_of_record(run).model_copy(update=recorded)


def _order(job: JobStatus) -> tuple[bool, int, int, str]:
    """Unfinished jobs first, each kind by id."""
    if job.job_id.isdecimal():
        return job.state.is_final, int(job.job_id[:18]), 1 << 62, job.job_id
    job_id = JobId.parse(job.job_id)
    number = job_id.number if job_id else 0
    task = int(job_id.tasks) if job_id and job_id.tasks and job_id.tasks.isdigit() else 1 << 62
    return job.state.is_final, number, task, job.job_id


# Asking


class _Question:
    """A question to queue and accounting, about a user's jobs or those selected, and their answers."""

    def __init__(
        self, slurm: Slurm, user: str | None, selections: Sequence[Selection], since: datetime, use: bool
    ) -> None:
        self.slurm, self.user, self.selections, self.since, self.use = slurm, user, selections, since, use
        self.queued: list[JobStatus] | None = None
        self.notes: list[str] = []
        """The queue's."""
        self.no_answer: SlurmUnreachable | None = None
        """Why the queue has not told."""
        self.accounting = Accounting()

    def answer(self, now: datetime, *, sparing: bool) -> tuple[list[JobStatus], list[tuple[str, JobStatus]]]:
        """Ask both, and return the jobs, and doubts: each a note and the job that it is about.

        ``sparing`` leaves accounting alone as long as the queue says that no job that is named has ended. Only a fresh answer
        may report a job as unknown: it may have come since an answer that another process asked for.
        """
        jobs, doubts = self._answer_once(now, sparing)
        shelf = self.slurm.shelf
        gone = any(not any(map(one.matches, jobs)) for one in self.selections)
        if shelf is None or shelf.kept_only or not gone or not self.slurm.oldest():
            return jobs, doubts
        shelf.only_from_now()
        shelf.ages.clear()
        return self._answer_once(now, sparing)

    def _answer_once(
        self, now: datetime, sparing: bool
    ) -> tuple[list[JobStatus], list[tuple[str, JobStatus]]]:
        slurm = self.slurm
        if sparing:
            self._ask_queue()
            self.accounting = Accounting() if self._none_has_ended() else self._ask_accounting()
        else:
            self._ask_both()
            self._add_jobs_of_others()
        jobs, doubts = merge(self.queued, self.accounting.jobs, self.user)
        if not slurm.doubted.issuperset(job.job_id for _, job in doubts):
            # What accounting calls unfinished may have been submitted since the queue was asked.
            if slurm.shelf is not None:
                slurm.shelf.only_since("sacct")
            self._ask_queue()
            self._add_jobs_of_others()
            jobs, doubts = merge(self.queued, self.accounting.jobs, self.user)
            slurm.doubted.update(job.job_id for _, job in doubts)
        return without_rash_ends(jobs, now) if self.no_answer is not None else (jobs, doubts)

    def _ask_queue(self) -> None:
        try:
            (self.queued, self.notes), self.no_answer = self.slurm.queue(self.user), None
        except SlurmUnreachable as error:
            self.queued, self.notes, self.no_answer = None, [], error

    def _ask_accounting(self) -> Accounting:
        ids = [one.id.number for one in self.selections if one.id]
        runs = [one.run for one in self.selections if one.run]
        try:
            if self.selections and len(ids) == len(self.selections):
                return self.slurm.accounting(ids=list(dict.fromkeys(ids)), use=self.use)
            since = min([self.since, *(run.submitted_at - timedelta(minutes=5) for run in runs)])
            lost = any(run.job_id is None for run in runs)
            return self.slurm.accounting(user=self.user, since=even(since), submit_line=lost, use=self.use)
        except SlurmUnreachable as error:
            return Accounting(notes=[f"accounting is not available: {error.message}"], available=False)

    def _ask_both(self) -> None:
        """Ask both side by side: where Slurm is slow, a person waits once."""
        errors: list[BaseException] = []

        def ask() -> None:
            try:
                self.accounting = self._ask_accounting()
            except BaseException as error:
                errors.append(error)

        # A daemon: Ctrl-C does not wait for its answer.
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        self._ask_queue()
        thread.join()
        if errors:
            raise errors[0]

    def _none_has_ended(self) -> bool:
        """Return True if every job that is named is in the queue and has not ended; of an array it may have forgotten tasks."""
        if self.queued is None or not self.selections:
            return False
        found = [[job for job in self.queued if one.matches(job)] for one in self.selections]
        ended = (job.state.is_final or job.array_job_id is not None for jobs in found for job in jobs)
        return all(found) and not any(ended)

    def _add_jobs_of_others(self) -> None:
        """Add the jobs of others that are named by id: for one that waits, accounting knows no reason, or nothing yet."""
        if self.user is None or self.queued is None:
            return
        known = [job for job in self.accounting.jobs if job.user == self.user or job.state.is_final]
        parsed = (JobId.parse(job.job_id) for job in (*self.queued, *known))
        numbers = {one.number for one in parsed if one is not None}
        unknown = [one for one in self.selections if one.id is not None and one.id.number not in numbers]
        if not unknown:
            return
        with suppress(SlurmUnreachable):
            jobs, _ = self.slurm.queue(None)
            self.queued = [*self.queued, *(job for job in jobs if any(one.matches(job) for one in unknown))]


# What the jobs use, and how far they are


def _with_use_of_ended(accounting: Accounting, jobs: list[JobStatus]) -> list[JobStatus]:
    """Add what ended jobs used; where accounting has not heard of a job's steps, nothing is known."""
    derived = {job.job_id: job.derived_exit_code for job in accounting.jobs}
    steps_of: dict[str, list[Step]] = {}
    for step in accounting.steps:
        steps_of.setdefault(step.job_id, []).append(step)
    found = []
    for job in jobs:
        steps = steps_of.get(job.job_id)
        if job.state.is_final and steps is not None:
            times = known(step.cpu_seconds for step in steps)
            used = JobUse(
                max_rss=max(known(step.max_rss for step in steps), default=None),
                cpu_seconds=sum(times) if times else None,
                average_cpus=sum(times) / job.elapsed if times and job.elapsed else None,
                gpu_memory=max(known(step.gpu_memory for step in steps), default=None),
            )
            code = highest_exit_code(derived.get(job.job_id), steps)
            job = job.model_copy(update={"used": used, "derived_exit_code": code})
        found.append(job)
    return found


def _with_live_use(slurm: Slurm, jobs: list[JobStatus]) -> tuple[list[JobStatus], list[str]]:
    """Add what running jobs use now, by asking their nodes; return notes on those that did not answer, too."""
    running = [job.raw_id for job in jobs if job.state is JobState.RUNNING and job.raw_id is not None]
    try:
        steps, notes = slurm.live_use(running)
    except SlurmUnreachable as error:
        return jobs, [error.message]
    found = []
    for job in jobs:
        own = [step for step in steps if step.job_id == job.raw_id]
        if own:
            times = known(
                None if one.tasks is None or one.average_cpu is None else one.tasks * one.average_cpu
                for one in own
            )
            use = LiveUse(
                max_rss=max(known(one.max_rss for one in own), default=None),
                cpu_seconds=sum(times) if times else None,
                average_cpus=sum(times) / job.elapsed if times and job.elapsed else None,
            )
            job = job.model_copy(update={"live": use})
        found.append(job)
    return found, notes


def with_progress(jobs: Iterable[JobStatus], *, ended: bool) -> list[JobStatus]:
    """Add progress and samples from the run directories: of the jobs that run, and where ``ended`` of the others too."""
    left = _MOST_WITH_PROGRESS
    found = []
    for job in jobs:
        looks = job.state in (JobState.RUNNING, JobState.COMPLETING) or (ended and job.state.is_final)
        script = next(iter(scripts_of(job)), None) if looks and left and job.raw_id is not None else None
        if script is not None and job.raw_id is not None:
            left -= 1
            run_dir = Path(script).parent
            progress, sampled = progress_of(folder_of(run_dir, job)), summary(run_dir, job.raw_id)
            job = job.model_copy(update={"progress": progress, "sampled": sampled})
        found.append(job)
    return found
