"""A request becomes a prepared job: loaded, planned, judged. Every way to start a job begins here."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from slurmgpu.errors import InvalidInput, PlanError
from slurmgpu.files.clusters import foreign_profiles
from slurmgpu.files.data import data_folder
from slurmgpu.files.jobs import LoadedJob
from slurmgpu.files.settings import runs_folder
from slurmgpu.files.trust import Trust, link_of_another
from slurmgpu.runs.requests import Say, load_request

if TYPE_CHECKING:
    from slurmgpu.runs.command_checks.command import Command
from slurmgpu.runs.prepared import Change, Prepared, plan_job

_OF_SLURMGPU = {"--follow", "--wait", "--dry-run", "--hold", "--json", "--cluster"}

Start = Literal["submit", "run"]


def prepare(
    given: dict[str, Any],
    say: Say,
    *,
    starts: Start | None = None,
    renders: bool = True,
    change: Change | None = None,
) -> Prepared:
    """Read, check and plan the job that file and options describe; warnings go to ``say``.

    A command that cannot work is refused where the job ``starts`` now, unless --force overrules. What the caller
    does not render is judged by its plan alone, which saves the time to load Jinja. ``change`` makes another job of it
    before it is planned.
    """
    prepared = plan_request(given, say, change)
    command = _judge_command(prepared, starts, say)
    if (starts == "submit" or not renders) and prepared.plan.environment.modules is not None:
        from slurmgpu.runs.command_checks.environment import missing_module

        slip = missing_module(prepared.plan, prepared.templates(), prepared.folder, os.environ)
        if slip is not None:  # said before the job waits in the queue for it
            say(f"warning: {slip.message}; {slip.hint}")
    if starts == "submit" and command.words:
        from slurmgpu.runs.command_checks.python import missing_imports

        if (slip := missing_imports(command)) is not None:
            say(f"warning: {slip.message}; {slip.hint}")
    if renders or prepared.has_own_templates:
        prepared = prepared._replace(rendered=(prepared.plan, prepared.render()))
    prepared = prepared._replace(refused=_judge_request(prepared, starts, say))
    if prepared.has_own_templates:
        from slurmgpu.runs.command_checks.judge import check_shell, unused_templates

        templates = prepared.templates()
        for slip in unused_templates(templates):
            say(f"warning: {slip.message}; {slip.hint}")
        if starts and prepared.plan.script is None:
            check_shell(prepared.render(), templates)
    return prepared


def plan_request(given: dict[str, Any], say: Say, change: Change | None = None) -> Prepared:
    """Read and plan the job that file and options describe, without a look at its command; warnings go to ``say``.

    ``change`` makes another job of it before it is planned.
    """
    loaded, source = load_request(given, say)
    prepared = plan_job(
        loaded, given.get("cluster"), cwd=Path.cwd(), force=bool(given.get("force")), change=change
    )._replace(template=given.get("template"), batch=source.batch)
    if prepared.unchosen:
        say(prepared.unchosen)
    _mention_files_of_others(loaded, say)
    for word in given.get("command") or ():
        if word in _OF_SLURMGPU:
            say(f"{word} comes after --, so it goes to the command; options of slurmgpu go before it")
    for warning in prepared.plan.warnings:
        say(f"warning: {warning}")
    return prepared


def _judge_command(prepared: Prepared, starts: Start | None, say: Say) -> Command:
    """Say what is wrong with the command, and return it; PlanError for what cannot work, where the job starts now."""
    from slurmgpu.runs.command_checks.judge import each_slip
    from slurmgpu.runs.preflight import check_task, command_of, doubts_about_task

    loaded, plan, cwd = prepared.loaded, prepared.plan, Path.cwd()
    origin = loaded.layered.origin(("command",))
    in_file = loaded.path is not None and origin is not None and origin.where == str(loaded.path)
    command = command_of(plan, loaded.work_dir, cwd, os.environ, in_file=in_file)
    if starts == "run" and command.folder is not None and not command.folder.is_dir():
        command = command._replace(folder=cwd)  # a run here stands in for a folder that is not here
    for of, slip in each_slip(command, batch=prepared.batch):
        if slip.sure and starts and not (prepared.around.force and slip.forceable):
            overrule = "\n--force starts the job all the same" if slip.forceable else ""
            raise PlanError(of + slip.message, hint=slip.hint + overrule)
        say(f"warning: {of}{slip.message}; {slip.hint}")
    if starts != "submit" and command.folder is not None and command.folder.is_dir():
        try:
            check_task(plan, command.folder)
        except PlanError as error:
            if starts is None:
                say(f"warning: {error.message}; {error.hint}")
        else:
            for doubt in doubts_about_task(plan, command.folder):
                say(doubt)
    return command


def _judge_request(prepared: Prepared, starts: Start | None, say: Say) -> bool:
    """Say what the rules of `slurmgpu check` find, and return whether an error is among it.

    PlanError for what cannot work, where the job starts now.
    """
    from slurmgpu.runs.request_checks import judge

    verdict = judge(prepared, Path.cwd())
    force = prepared.around.force
    if starts and not force:
        verdict.refuse("--force starts the job all the same")
    for remark in verdict.errors:
        say(f"{'warning' if force else 'error'}: {remark.message}; {remark.hint}")
    for remark in verdict.warnings:
        say(f"warning: {remark.message}; {remark.hint}")
    return bool(verdict.errors) and not force


def _mention_files_of_others(loaded: LoadedJob, say: Say) -> None:
    """Say which files of others are used, and which are not."""
    settings = loaded.settings
    profiles = [
        one for folder in settings.folders.values() for one in foreign_profiles(settings, folder / "clusters")
    ]
    for one in (*settings.unused, *profiles[:1]):
        folder = shlex.quote(str(one.path.parent))
        say(f"{one.path} is not used: it {one.why}; where you trust it: slurmgpu config trust {folder}")
    if "project" not in settings.folders and Path("slurmgpu.yml").is_file():
        here = Path.cwd() / "slurmgpu.yml"
        say(f"warning: {here} is not read: it is not called slurmgpu.yaml; mv slurmgpu.yml slurmgpu.yaml")
    with suppress(InvalidInput):  # a variable that is not set here is missed where the folder is made
        runs = runs_folder(settings.settings.runs, Path.cwd(), os.environ)
        if whose := link_of_another(runs):
            lands = f"what jobs write lands in {runs.resolve()}"
            say(f"warning: {runs} is a link, and it {whose}: {lands}; take it away, or set runs:")
        elif runs.is_dir() and (others := settings.trust.foreign(runs)):
            trust = f"where you trust them: slurmgpu config trust {shlex.quote(str(runs))}"
            say(f"warning: {runs} {others.why}: what somebody changes in a run there runs as you; {trust}")
    named = Trust.of([data_folder("jobs")]).foreign(loaded.path) if loaded.path else None
    for one in (*settings.of_others, *([named] if named else [])):
        say(f"{one.path} is used, and it {one.why}")
