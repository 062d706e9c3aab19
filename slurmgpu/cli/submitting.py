"""Show and submit a prepared job: for `submit`, `probe` and `bench`."""

from __future__ import annotations

import os
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import click

from slurmgpu.amounts import count
from slurmgpu.cli.terminal import note, terminal_columns
from slurmgpu.errors import SlurmGpuError
from slurmgpu.interrupts import as_interrupts
from slurmgpu.launchers import started_processes, world_size
from slurmgpu.models.plan import Plan
from slurmgpu.models.run import Run
from slurmgpu.runs.images import Making
from slurmgpu.runs.preflight import check_before_submission, doubts
from slurmgpu.runs.prepare import Prepared
from slurmgpu.slurm import Slurm


def plan_text(plan: Plan, columns: int | None = None) -> str:
    """Return the plan as aligned lines: option, and why; reasons fold where a terminal's ``columns`` are given."""
    rows = [(str(option), option.why) for option in plan.options]
    for number, component in enumerate(plan.components, start=1):
        rows += [("hetjob", f"component {number}"), *((str(option), option.why) for option in component)]
    rows += [(f"{reason.what}: {reason.value}", reason.why) for reason in plan.reasons]
    width = max(len(left) for left, _ in rows)
    started = started_processes(plan)
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
