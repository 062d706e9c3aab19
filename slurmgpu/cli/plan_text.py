"""A plan as text, and what Slurm would say to it: `plan`, `submit --dry-run`, `probe --dry-run`."""

from __future__ import annotations

import os
import sys
import textwrap
from typing import TYPE_CHECKING

import click

from slurmgpu.amounts import count
from slurmgpu.cli.terminal import note, terminal_columns
from slurmgpu.errors import SlurmGpuError
from slurmgpu.launchers import started_processes, world_size
from slurmgpu.models.plan import Plan

if TYPE_CHECKING:
    from slurmgpu.runs.prepared import Prepared
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
    shape = f"{count(plan.nodes, 'node')} x {count(plan.gpus_per_node, 'GPU')}, {runs}"
    head = f"{plan.name} on {plan.cluster}: {'what the job says, and nothing else' if plan.exact else shape}"
    return "\n".join([head, *(_row_text(left, why, width, columns) for left, why in rows)])


def _row_text(left: str, why: str, width: int, columns: int | None) -> str:
    room = (columns or 0) - width - 4
    if room < 24:  # no terminal, or one too narrow for two columns
        return f"  {left:<{width}}  {why}"
    lines = textwrap.wrap(why, room, break_long_words=False, break_on_hyphens=False)
    return f"  {left:<{width}}  " + f"\n{'':{width + 4}}".join(lines)


def show_submission(
    prepared: Prepared, slurm: Slurm, *, pull: bool = True, asker: str = "submit --dry-run"
) -> None:
    """Show what would be submitted, and what Slurm says to it; an answer of no ends with 1."""
    from slurmgpu.runs.preflight import check_before_submission, doubts

    prepared.check_test_only(asker)
    image = prepared.image_to_make(note) if pull else None
    folder = prepared.folder
    click.echo(prepared.render(), nl=False)
    click.echo(plan_text(prepared.plan, terminal_columns(sys.stderr)), err=True)
    check_before_submission(prepared.plan, folder, os.environ, image=image is None)
    for doubt in doubts(prepared.plan, folder):
        note(doubt)
    for one in (image, prepared.environment_to_pack()):
        if one is not None:
            note(one.told_before)
    answer = prepared.estimate(slurm)
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
