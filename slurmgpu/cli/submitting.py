"""What ``slurmgpu plan`` does.

What ``slurmgpu submit`` does with a plan.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

import click

from slurmgpu.cli.preparing import note, prepare, tell_of_image
from slurmgpu.errors import InvalidInput, PlanError, SlurmGpuError, SlurmUnreachable
from slurmgpu.interrupts import as_interrupts
from slurmgpu.jobs.look import status
from slurmgpu.jobs.select import select
from slurmgpu.launchers import world_size
from slurmgpu.models.job import Dependency
from slurmgpu.models.plan import Plan
from slurmgpu.models.run import JobState, Run
from slurmgpu.planning.request import count
from slurmgpu.printable import printable
from slurmgpu.runs.images import Making
from slurmgpu.runs.preflight import check_before_submission, doubts
from slurmgpu.runs.prepare import Prepared
from slurmgpu.runs.submit import Submission, submit_plan
from slurmgpu.slurm import Slurm


def act_plan(given: dict[str, object], when: bool, as_json: bool) -> None:
    prepared = prepare(given, renders=False)
    plan = prepared.plan
    tell_of_image(prepared)
    said: dict[str, Any] = {}
    if when:
        from slurmgpu.cli.actions.when import asked

        said = asked(prepared)
    if as_json:
        data = {"schema": "slurmgpu.plan/1", **plan.model_dump(mode="json", by_alias=True), **said}
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        _show(prepared, said)
    if prepared.refused:  # as submit would end
        raise click.exceptions.Exit(PlanError.exit_code)


def _show(prepared: Prepared, said: dict[str, Any]) -> None:
    plan = prepared.plan
    click.echo(plan_text(plan, terminal_columns(sys.stdout)))
    if plan.train is not None:
        from slurmgpu.runs.bench.memory import told_by_benches

        for sentence in told_by_benches(prepared):
            click.echo(printable(f"  {sentence}"))
    if said:
        from slurmgpu.cli.actions.when import balance_text, when_text

        click.echo(when_text(said["when"]))
        click.echo(balance_text(said["balance"]))


def plan_text(plan: Plan, columns: int | None = None) -> str:
    """The plan as aligned lines: option, and why; reasons fold where a terminal's ``columns`` are given."""
    rows = [(str(option), option.why) for option in plan.options]
    for number, component in enumerate(plan.components, start=1):
        rows += [("hetjob", f"component {number}"), *((str(option), option.why) for option in component)]
    rows += [(f"{reason.what}: {reason.value}", reason.why) for reason in plan.reasons]
    width = max(len(left) for left, _ in rows)
    started = plan.started
    processes = started.total if started else plan.spawned_per_node or world_size(plan)
    runs = f"{processes or 'unknown'} process{'' if processes == 1 else 'es'}"
    if plan.steps:
        runs = count(len(plan.steps), "step")
    head = f"{plan.name} on {plan.cluster}: " + (
        "what the job says, and nothing else"
        if plan.exact
        else f"{count(plan.nodes, 'node')} x {count(plan.gpus_per_node, 'GPU')}, " + runs
    )
    return "\n".join([head, *(_row_text(left, why, width, columns) for left, why in rows)])


def _row_text(left: str, why: str, width: int, columns: int | None) -> str:
    room = (columns or 0) - width - 4
    if room < 24:  # no terminal, or one too narrow for two columns
        return f"  {left:<{width}}  {why}"
    lines = textwrap.wrap(why, room, break_long_words=False, break_on_hyphens=False)
    return f"  {left:<{width}}  " + f"\n{'':{width + 4}}".join(lines)


def terminal_columns(stream: TextIO) -> int | None:
    """The width of a terminal; None where a stream is not one."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def act_submit(
    given: dict[str, object], dry_run: bool, wait: bool, follow: bool, hold: bool, via: str, as_json: bool
) -> None:
    if as_json and dry_run:
        raise InvalidInput(
            "--json prints the record of a run, and --dry-run makes none",
            hint="leave one out; slurmgpu plan --json prints the plan",
        )
    prepared, making = with_image(prepare(given, starts="submit"), pull=bool(given["pull"]), now=not dry_run)
    slurm = Slurm()
    if not given.get("job__force"):
        check_dependency(slurm, prepared.loaded.job.dependency)
    packed = None
    if via == "submitit":
        from slurmgpu.runs.by_submitit import attach, pack_command

        packed = pack_command(prepared.plan)
        prepared = prepared._replace(plan=packed.plan)
    if dry_run:
        show(prepared, slurm, making)
        return
    with as_interrupts():
        prepared.pack(note)
    run = submit(prepared, slurm, hold=hold, files=packed.files if packed is not None else {})
    click.echo(run.to_json() if as_json else f"{run.job_id}\n", nl=False)
    if packed is not None:
        attach(packed, run)
    if wait or follow:
        from slurmgpu.cli.waiting import wait_for_job

        click.get_current_context().exit(wait_for_job(run, follow))


def check_dependency(slurm: Slurm, dependency: Dependency | None) -> None:
    """PlanError for a dependency on a job that Slurm does not know, or whose end has decided that this one never starts.

    sbatch takes both, and depending on its release, and on how long ago the job ended, starts this one at once or never
    (seen on 22.05 and 26.05).
    """
    ids = dependency.job_ids if dependency is not None else []
    if not ids:
        return
    try:
        found = status(slurm, user=None, selections=select(ids), detail="sparing")
    except SlurmUnreachable:  # sbatch may answer all the same
        return
    unknown = found.missing
    if unknown:
        raise PlanError(
            f"dependency {dependency}: Slurm knows no job {', '.join(unknown)}",
            hint="slurmgpu status --since 7d lists your jobs; --force submits it all the same",
        )
    ended: dict[str, set[JobState]] = {}
    for job in found.jobs:
        ended.setdefault(re.split(r"[_+]", job.job_id)[0], set()).add(job.state)
    for kind, named in re.findall(r"(afterok|afternotok)((?::[\d_]+)+)", str(dependency)):
        for one in named.strip(":").split(":"):
            states = ended.get(one) or set()
            good = states == {JobState.COMPLETED}
            if states and all(state.is_final for state in states) and good != (kind == "afterok"):
                raise PlanError(
                    f"dependency {kind}:{one}: job {one} has ended ({', '.join(sorted(state.value for state in states))}), so "
                    "this job would never start",
                    hint=f"afterany:{one} starts it whatever became of that job; slurmgpu why {one} says what did",
                )


def with_image(prepared: Prepared, *, pull: bool, now: bool) -> tuple[Prepared, Making | None]:
    """The job with its image, which is pulled or built ``now`` where it has to be; and what that is."""
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


def show(prepared: Prepared, slurm: Slurm, making: Making | None, asker: str = "submit --dry-run") -> None:
    """Show what would be submitted, and what Slurm says to it; an answer of no ends with 1."""
    prepared.check_test_only(asker)
    script = prepared.render()
    click.echo(script, nl=False)
    click.echo(plan_text(prepared.plan, terminal_columns(sys.stderr)), err=True)
    folder = prepared.folder
    check_before_submission(prepared.plan, folder, os.environ, image=making is None)
    for doubt in doubts(prepared.plan, folder):
        note(doubt)
    if making is not None:
        note(making.told_before)
    packing = prepared.environment_to_pack()
    if packing is not None:
        note(packing.told_before)
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
    where = f" on {answer.node_list}" if answer.node_list else ""
    start = (
        f"{answer.start.astimezone():%Y-%m-%d %H:%M:%S}" if answer.start else "at a time that it does not say"
    )
    note(f"Slurm says: it would start {start}{where} in partition {answer.partition or 'unknown'}")
    note("nothing was submitted (Slurm's own test may pass a wrong account, QOS or time limit)")
