"""From options and files to a plan that is judged, and on to its submission: what render, plan, submit and others share."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import click

from slurmgpu.amounts import count
from slurmgpu.cli.job_options import load_given
from slurmgpu.cli.terminal import Say, note, terminal_columns
from slurmgpu.errors import InvalidInput, PlanError, SlurmGpuError
from slurmgpu.files.clusters import foreign_profiles
from slurmgpu.files.data import data_folder
from slurmgpu.files.jobs import LoadedJob
from slurmgpu.files.settings import load_settings, runs_folder
from slurmgpu.files.trust import Trust, link_of_another
from slurmgpu.interrupts import as_interrupts
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.models.run import RUN_FILE, Run
from slurmgpu.runs.prepare import Prepared, prepare_here

if TYPE_CHECKING:
    from slurmgpu.runs.command_checks.command import Command
    from slurmgpu.runs.images import Making
    from slurmgpu.slurm import Slurm

Start = Literal["submit", "run"]
Change = Callable[[Job, Cluster], Job]
_OF_SLURMGPU = {"--follow", "--wait", "--dry-run", "--hold", "--json", "--cluster"}


def prepare(
    given: dict[str, Any],
    *,
    starts: Start | None = None,
    renders: bool = True,
    change: Change | None = None,
    say: Say = note,
) -> Prepared:
    """Read, check and plan the job that file and options describe; warnings go to ``say``.

    A command that cannot work is refused where the job ``starts`` now, unless --force overrules. What the caller
    does not render is judged by its outline where that is enough, which saves the time to load Jinja. ``change`` makes
    another job of it before it is planned.
    """
    prepared = plan_given(given, change, say)
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
    text = None if renders else prepared.outline()
    if text is None:
        text = prepared.render()
        prepared = prepared._replace(rendered=(prepared.plan, text))
    prepared = prepared._replace(refused=_judge_script(prepared, text, starts, say))
    if prepared.template or prepared.loaded.settings.templates:
        from slurmgpu.runs.command_checks.judge import check_shell, unused_templates

        templates = prepared.templates()
        for slip in unused_templates(templates):
            say(f"warning: {slip.message}; {slip.hint}")
        if starts and prepared.plan.script is None:
            check_shell(text, templates)
    return prepared


def plan_given(given: dict[str, Any], change: Change | None = None, say: Say = note) -> Prepared:
    """Read and plan the job that file and options describe, without a look at its command; warnings go to ``say``.

    ``change`` makes another job of it before it is planned.
    """
    loaded, source = load_given(given, say)
    prepared = prepare_here(
        loaded, given.get("cluster"), Path.cwd(), force=bool(given.get("force")), change=change
    )._replace(template=given.get("template"), batch=source.batch)
    if prepared.unchosen:
        say(prepared.unchosen)
    _mention_others(loaded, say)
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


def _judge_script(prepared: Prepared, script: str, starts: Start | None, say: Say) -> bool:
    """Say what the rules of `slurmgpu check` find, and return whether an error is among it.

    PlanError for what cannot work, where the job starts now.
    """
    from slurmgpu.runs.request_checks import judge

    verdict = judge(prepared, script, Path.cwd())
    force = prepared.around.force
    if starts and not force:
        verdict.refuse("--force starts the job all the same")
    for remark in verdict.errors:
        say(f"{'warning' if force else 'error'}: {remark.message}; {remark.hint}")
    for remark in verdict.warnings:
        say(f"warning: {remark.message}; {remark.hint}")
    return bool(verdict.errors) and not force


def _mention_others(loaded: LoadedJob, say: Say) -> None:
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


def check_whose(run_dir: Path, word: str) -> None:
    """Say so where others wrote what lies in a run directory; InvalidInput where ``word`` does not name it by its path."""
    from slurmgpu.jobs.select import names_folder

    trust = load_settings(Path.cwd()).trust
    files = (run_dir / name for name in (RUN_FILE, "script.sbatch", "job.yaml", "plan.json"))
    foreign = next(filter(None, map(trust.foreign, (run_dir, *files))), None)
    if foreign is None:
        return
    if not names_folder(word):
        raise InvalidInput(
            f"{word}: {foreign.path} {foreign.why}, and you did not name it on the command line; what is in it would run as you",
            hint=f"look into it, then name it: {shlex.quote(str(run_dir))}",
        )
    note(f"{foreign.path} is used, and it {foreign.why}")


def plan_text(plan: Plan, columns: int | None = None) -> str:
    """Return the plan as aligned lines: option, and why; reasons fold where a terminal's ``columns`` are given."""
    from slurmgpu.launchers import world_size

    rows = [(str(option), option.why) for option in plan.options]
    for number, component in enumerate(plan.components, start=1):
        rows += [("hetjob", f"component {number}"), *((str(option), option.why) for option in component)]
    rows += [(f"{reason.what}: {reason.value}", reason.why) for reason in plan.reasons]
    width = max(len(left) for left, _ in rows)
    processes = plan.started.total if plan.started else plan.spawned_per_node or world_size(plan)
    runs = f"{processes or 'unknown'} process{'' if processes == 1 else 'es'}"
    if plan.steps:
        runs = count(len(plan.steps), "step")
    shape = f"{count(plan.nodes, 'node')} x {count(plan.gpus_per_node, 'GPU')}, {runs}"
    head = f"{plan.name} on {plan.cluster}: {'what the job says, and nothing else' if plan.exact else shape}"
    return "\n".join([head, *(_row_text(left, why, width, columns) for left, why in rows)])


def _row_text(left: str, why: str, width: int, columns: int | None) -> str:
    room = (columns or 0) - width - 4
    if room < 24:  # no terminal, or one too narrow for two columns
        return f"  {left:<{width}}  {why}"
    lines = textwrap.wrap(why, room, break_long_words=False, break_on_hyphens=False)
    return f"  {left:<{width}}  " + f"\n{'':{width + 4}}".join(lines)


def mention_image(prepared: Prepared, say: Say = note) -> None:
    """Say what ``submit`` would pull, build or pack before the job, or why it would not."""
    making = None
    try:
        making = prepared.image_to_make(say)
    except PlanError as error:
        say(f"warning: {error.message}; {error.hint}")
    for one in (making, prepared.environment_to_pack()):
        if one is not None:
            say(one.told_before)


def with_image(prepared: Prepared, *, pull: bool, now: bool) -> tuple[Prepared, Making | None]:
    """Return the job with its image, which is pulled or built ``now`` where it has to be; and what that is."""
    making = prepared.image_to_make(note) if pull else None
    if making is not None and now:
        with as_interrupts():
            prepared = prepared.with_image(making, note)
    return prepared, making


def submit(
    prepared: Prepared,
    slurm: Slurm,
    *,
    hold: bool = False,
    files: Mapping[str, bytes] = MappingProxyType({}),
    probe: bool = False,
) -> Run:
    """Submit it, and say what is to be said of that; the run. ``probe``: it asks for less than its job file says."""
    from slurmgpu.runs.preflight import doubts
    from slurmgpu.runs.submit import Submission, submit_plan

    path = None if probe else prepared.loaded.path
    submission = Submission(
        plan=prepared.plan,
        script=prepared.render(),
        folder=prepared.folder,
        cwd=Path.cwd(),
        hold=hold,
        files=files,
        job_file=None if path is None else str(path.absolute()),
        probe=probe,
        told=note,
    )
    with as_interrupts():
        run, said = submit_plan(submission, prepared.loaded.job, prepared.runs, slurm, os.environ)
    if said:
        note(said)
    for doubt in doubts(prepared.plan, prepared.folder):
        note(doubt)
    note(f"job {run.job_id} on cluster {run.cluster or 'unknown'}")
    if hold:
        note(f"it is held; `scontrol release {run.job_id}` lets it start")
    return run


def show_submission(
    prepared: Prepared, slurm: Slurm, making: Making | None, asker: str = "submit --dry-run"
) -> None:
    """Show what would be submitted, and what Slurm says to it; an answer of no ends with 1."""
    from slurmgpu.runs.preflight import check_before_submission, doubts

    prepared.check_test_only(asker)
    script, folder = prepared.render(), prepared.folder
    click.echo(script, nl=False)
    click.echo(plan_text(prepared.plan, terminal_columns(sys.stderr)), err=True)
    check_before_submission(prepared.plan, folder, os.environ, image=making is None)
    for doubt in doubts(prepared.plan, folder):
        note(doubt)
    for one in (making, prepared.environment_to_pack()):
        if one is not None:
            note(one.told_before)
    with tempfile.TemporaryDirectory(prefix="slurmgpu-") as temporary:
        path = Path(temporary) / "script.sbatch"
        path.write_text(script, encoding="utf-8")
        answer = slurm.estimate(path, cwd=folder or Path.cwd())
    if not answer.accepted:
        meaning = f" ({answer.advice.meaning})" if answer.advice else ""
        raise SlurmGpuError(
            f"Slurm would refuse it: {answer.text}{meaning}",
            hint=answer.advice.act if answer.advice else None,
        )
    start = (
        f"{answer.start.astimezone():%Y-%m-%d %H:%M:%S}" if answer.start else "at a time that it does not say"
    )
    where = f" on {answer.node_list}" if answer.node_list else ""
    note(f"Slurm says: it would start {start}{where} in partition {answer.partition or 'unknown'}")
    note("nothing was submitted (Slurm's own test may pass a wrong account, QOS or time limit)")
