"""The tools for assistants: what the commands of the same name say, within what an assistant may see and spend."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from slurmgpu.cli import check, cluster, logs, report, status, why
from slurmgpu.cli.options import filters_in_words, job_filter, shared
from slurmgpu.cli.plan import plan_lines
from slurmgpu.cli.terminal import noted
from slurmgpu.errors import InvalidInput, OutcomeUnknown, PlanError, SlurmGpuError, SlurmRefused
from slurmgpu.files.data import example_names
from slurmgpu.files.settings import load_settings
from slurmgpu.files.trust import staying_below
from slurmgpu.files.yaml import refuse_too_many_lines
from slurmgpu.jobs.cancel import cancel as cancel_jobs
from slurmgpu.jobs.gpus_now import gpus_now
from slurmgpu.jobs.logs import GrowingLogs
from slurmgpu.jobs.look import status as look_up
from slurmgpu.jobs.select import current_user, select
from slurmgpu.mcp import fields
from slurmgpu.mcp.budget import Budget, Entry, hours, limit_of, new_entry, require_allowed
from slurmgpu.mcp.permitted import (
    check_is_script,
    check_script,
    check_since,
    gpu_seconds,
    inside,
    named_profile,
    own_jobs,
    stay_below,
)
from slurmgpu.mcp.server import OfferedTool
from slurmgpu.mcp.text import ToolOutput
from slurmgpu.runs.directory import new_run_directory
from slurmgpu.runs.preflight import check_before_submission, doubts
from slurmgpu.runs.prepare import prepare
from slurmgpu.runs.prepared import Prepared
from slurmgpu.runs.requests import Say, find_source
from slurmgpu.runs.submit import Submission, submit_in
from slurmgpu.slurm import JobId, Slurm

_SEARCHED = 5000  # lines of a log
_SUFFIXES = {".yaml", ".yml"}


class Notes(list[str]):
    """Remarks beside a result."""

    def say(self, text: str) -> None:
        """Add a remark, as the command line prints it."""
        self.append(noted(text))


def job_of(asked: fields.JobFields) -> dict[str, Any]:
    """Return the job's options as the command line has them; InvalidInput for files that may not be read."""
    given, file = asked.given(), asked.file
    own = asked.set.get("command")
    for word in (*(asked.command or ()), *(own if isinstance(own, list) else str(own or "").split())):
        if str(word).endswith((".py", ".sh")):
            stay_below(str(word), "command")
    stay_below(str(asked.set.get("work_dir") or "."), "work_dir")
    named_profile(given.get("cluster"))
    if file is not None:
        if file in example_names() and not Path(file).exists():
            return given  # one that ships with slurmgpu
        given["file"] = file = inside(file)
        if Path(file).suffix not in _SUFFIXES:
            check_is_script(file)
        return given
    found = find_source(given, Path.cwd(), os.environ)
    if found.batch is not None:
        raise InvalidInput(
            f"command: {found.batch[0]!r} is a batch script", hint="name it as file, without command"
        )
    if found.path is not None:
        inside(str(found.path), "job.yaml")
    return given


def show_plan(asked: fields.PlanFields) -> ToolOutput:
    """Show the plan of a job with its reasons."""
    notes = Notes()
    with staying_below(Path.cwd()):
        prepared = prepare(job_of(asked), renders=False, say=notes.say)
        prepared.mention_files_to_make(notes.say)
        output = ToolOutput.of((f"{line}\n" for line in plan_lines(prepared)), notes)
    return output._replace(code=PlanError.exit_code if prepared.refused else 0)


def show_script(asked: fields.PlanFields) -> ToolOutput:
    """Show the batch script of a job."""
    notes = Notes()
    with staying_below(Path.cwd()):
        prepared = prepare(job_of(asked), say=notes.say)
        prepared.mention_files_to_make(notes.say)
        return ToolOutput.of([prepared.render()], notes)


def show_findings(asked: fields.CheckFields) -> ToolOutput:
    """Show the findings in a batch script."""
    with staying_below(Path.cwd()):
        if asked.file is not None:
            shown = inside(asked.file)
            text = check_is_script(shown)
        else:
            shown, text = "<text>", refuse_too_many_lines(asked.text or "", "text")
        found = check.findings(text, check.chosen_cluster(named_profile(asked.cluster)))
        lines = (f"{line}\n" for line in check.finding_lines(shown, found))
        return ToolOutput.of(lines, [check.counts_line(shown, found)])


def show_why(asked: fields.WhyFields) -> ToolOutput:
    """Show why jobs wait, or why they failed."""
    own_jobs(asked.jobs, shared())
    notes, slurm = Notes(), shared()
    report, answers = why.explain_jobs(slurm, select(asked.jobs), user=current_user())
    lines = why.answer_lines(report, answers, slurm.oldest(), say=notes.append)
    return _output(lines, notes, missing=report.missing, unasked=report.unasked)


def show_status(asked: fields.StatusFields) -> ToolOutput:
    """Show the user's jobs."""
    check_since(asked.since)
    if asked.jobs:
        own_jobs(asked.jobs, shared())
    notes, settings = Notes(), load_settings(Path.cwd(), os.environ).settings
    filters = (asked.state, asked.partition, None, asked.name)
    columns, counts, selections = (
        status.chosen_columns(None, settings),
        job_filter(*filters),
        select(asked.jobs),
    )
    report = status.find_jobs(
        shared(settings),
        selections,
        user=current_user(),
        since=asked.since,
        columns=columns,
        run_for=status.run_finder(named=bool(selections)),
    )
    assert report is not None
    lines = status.report_lines(
        status.only_chosen(report, selections, counts),
        selections,
        columns=columns,
        by_state=asked.state is not None,
        filters=filters_in_words(*filters),
        say=notes.append,
    )
    return _output(lines, notes, missing=report.missing, unasked=report.unasked)


def show_report(asked: fields.ReportFields) -> ToolOutput:
    """Show what jobs used of what they asked for."""
    check_since(asked.since)
    if asked.jobs:
        own_jobs(asked.jobs, shared())
    notes, filters = Notes(), (asked.state, asked.partition, None, asked.name)
    counts, since = job_filter(*filters), report.moment_of(asked.since)
    profile = report.cluster_in_use(notes.append)
    found = report.find_reports(
        shared(), asked.jobs, user=current_user(), since=since, counts=counts, cluster=profile
    )
    by = filters_in_words(*filters)
    lines = report.report_lines(found, profile, each=asked.each, by=by, say=notes.append)
    unasked = found.unasked or (not asked.jobs and not found.available)
    return _output(lines, notes, missing=found.missing, unasked=unasked)


def show_gpus(_: fields.Nothing) -> ToolOutput:
    """Show which GPUs are free."""
    notes, slurm = Notes(), shared()
    found = gpus_now(slurm.present(), current_user())
    return _output(cluster.gpus_lines(found, slurm.oldest(), notes.append), notes)


def show_logs(asked: fields.LogsFields) -> ToolOutput:
    """Show the last lines of a job's logs."""
    own_jobs([asked.job], shared())
    notes, wanted = Notes(), logs.wanted_lines(asked.rank)
    found = logs.find_logs(shared(), select([asked.job]), logs.run_finder())
    found = logs.only_wanted(found, wanted, asked.stream)
    growing = GrowingLogs(several=len(found) > 1, filter_of=logs.wanted_filter(wanted))
    texts = logs.log_texts(found, _SEARCHED if asked.find else asked.lines, growing)
    codes: list[int] = []

    def pieces() -> Iterator[str]:
        yield from (text for text, _ in texts)
        # Only once all is read: of a log that is cut nothing is judged.
        logs.mention_empty(found, notes.say)
        codes.append(logs.outcome(found, wanted, growing, notes.say))

    output = ToolOutput.of(pieces(), notes)
    output = output._replace(code=sum(codes))
    find = asked.find
    return output if find is None else output._replace(only=lambda text: _with_text(text, find, asked))


def _output(lines: Iterable[str], notes: Notes, *, missing: object = (), unasked: object = ()) -> ToolOutput:
    """Return lines as an answer, which failed where Slurm does not know a job, or could not be asked for it."""
    output = ToolOutput.of((f"{line}\n" for line in lines), notes)
    return output._replace(code=1 if missing else OutcomeUnknown.exit_code if unasked else 0)


def _with_text(text: str, find: str, asked: fields.LogsFields) -> str:
    """Return the last of the lines with a text in them, and those around each."""
    lines = text.split("\n")
    found = [at for at, line in enumerate(lines) if find in line][-asked.lines :]
    shown = {at for one in found for at in range(one - asked.around, one + asked.around + 1)}
    kept = [line for at, line in enumerate(lines) if at in shown]
    return "\n".join(kept) or f"there is no line with {find!r} in the last {_SEARCHED:,}"


def submit_job(asked: fields.SubmitFields) -> ToolOutput:
    """Submit a job once, within the budget."""
    limit = limit_of(require_allowed("submit"))
    book = Budget(os.environ)
    what = _hash(asked)
    entry, notes = book.known(asked.once, what), Notes()
    if entry is None:
        entry = _submitted(asked, what, book, limit, notes.say)
    else:
        notes.say(f"it was submitted before, at {entry.time}; nothing was submitted now")
    left = f"{max(limit - book.spent(), 0) // 36 / 100:g}"
    lines = [
        f"job {entry.job_id} ({entry.name}), run directory {entry.run_dir}",
        f"{hours(entry.seconds)} GPU-hours are reserved for it; {left} of {hours(limit)} are left",
    ]
    return _output(lines, notes)


def _hash(asked: fields.SubmitFields) -> str:
    """Return a hash of the request and its folder, without the name that was made up for it."""
    text = json.dumps([str(Path.cwd()), asked.model_dump(exclude={"once"})], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()


def _submitted(asked: fields.SubmitFields, what: str, book: Budget, limit: int, say: Say) -> Entry:
    """Reserve, and submit; the entry of the job."""
    with staying_below(Path.cwd()):
        prepared = prepare(job_of(asked), starts="submit", say=say)
        _check_nothing_to_make(prepared, say)
        seconds, script = gpu_seconds(prepared), prepared.render()
        if starts := prepared.plan.restart_limit:
            say(
                f"it may start {starts + 1} times, and each counts (restart: {{limit: 1}} or restart: {{on: []}} reserves less)"
            )
        check_script(prepared.plan, script)
        check_before_submission(prepared.plan, prepared.folder, os.environ)
        doubted = doubts(prepared.plan, prepared.folder)
    directory = new_run_directory(prepared.runs, prepared.plan, prepared.loaded.job, script)
    entry = new_entry(seconds, what, prepared.plan.name, directory.path)
    try:
        other = book.reserve(asked.once, entry, limit)
    except BaseException:
        directory.remove()
        raise
    if other is not None:  # another server was quicker
        directory.remove()
        return other
    try:
        run, said = submit_in(directory, Submission.of(prepared, told=say), Slurm(), os.environ)
    except OutcomeUnknown:
        book.settle(asked.once, "unknown")
        raise
    except SlurmGpuError:
        # Submission takes the directory away where nothing was sent, or Slurm has refused it: then alone.
        if not directory.path.exists():
            book.settle(asked.once, "refused")
        raise
    try:
        book.settle(asked.once, "submitted", run.job_id)
    except SlurmGpuError as error:  # the job is there; its run directory tells so to the next call
        say(error.message)
    for remark in (*([said] if said else []), *doubted):
        say(remark)
    return entry.model_copy(update={"state": "submitted", "job_id": run.job_id})


def _check_nothing_to_make(prepared: Prepared, say: Say) -> None:
    """Raise PlanError where an image is to be pulled, or an environment packed: that takes long, and fills the user's disk."""
    making = prepared.image_to_make(say) or prepared.environment_to_pack()
    if making is not None:
        raise PlanError(
            f"submit: {making.told_before}; assistants do not do that",
            hint="the user submits it once with slurmgpu submit; what it makes is kept, and serves the next jobs",
        )


def cancel_own_jobs(asked: fields.CancelFields) -> ToolOutput:
    """End jobs of the user's own."""
    require_allowed("cancel")
    for word in asked.jobs:
        if JobId.parse(word) is None:
            raise InvalidInput(
                f"jobs: {word!r} is not a job's id", hint="give ids as status shows them: 112, or 112_3"
            )
    me, slurm, selections = current_user(), Slurm(), select(asked.jobs)
    found = look_up(slurm, user=me, selections=selections)
    if found.no_answer is not None:
        raise found.no_answer
    for job in found.jobs:
        # Who administers Slurm could end anybody's.
        if job.source not in ("none", "run.json") and job.user != me:
            raise PlanError(
                f"cancel: {job.job_id} is not a job of {me}; nothing was cancelled",
                hint="name the user's own jobs only; status lists them",
            )
    results = cancel_jobs(slurm, selections, user=me)
    outcomes = {result.outcome for result in results}
    code = SlurmRefused.exit_code if outcomes & {"missing", "refused"} else 0
    code = code or (OutcomeUnknown.exit_code if "unknown" in outcomes else 0)
    return _output((result.message for result in results), Notes())._replace(code=code)


TOOLS: dict[str, OfferedTool] = {
    "plan": OfferedTool(
        "The plan of a job: every sbatch option with its reason, GPU-hours, warnings; where it does not fit, what would.",
        fields.PlanFields, show_plan,
    ),
    "render": OfferedTool("The batch script of a job.", fields.PlanFields, show_script),
    "check": OfferedTool(
        "What is wrong with a batch script, each finding with its fix.", fields.CheckFields, show_findings, codes=False,
    ),
    "why": OfferedTool(
        "Why a job waits and what would let it start, or which rank failed first, its error and the fix.",
        fields.WhyFields, show_why,
    ),
    "report": OfferedTool(
        "What jobs used of what they asked for, and what to ask for next time.", fields.ReportFields, show_report,
    ),
    "status": OfferedTool(
        "The user's jobs: waiting, running, and finished since a day.",
        fields.StatusFields,
        show_status,
    ),
    "gpus": OfferedTool(
        "Which GPUs are free at this moment, by type and partition.",
        fields.Nothing,
        show_gpus,
    ),
    "logs": OfferedTool("The last lines of a job's logs.", fields.LogsFields, show_logs, keeps_end=True),
    "submit": OfferedTool(
        "Submit a job, once for each name in `once`, within the user's budget: GPUs x time limit x starts are reserved. It "
        "runs as the user, and costs them; ask them first.",
        fields.SubmitFields, submit_job, needs="submit",
    ),
    "cancel": OfferedTool(
        "End jobs of the user's own. Ask them first.",
        fields.CancelFields, cancel_own_jobs,
        needs="cancel",
    ),
}  # fmt: skip
