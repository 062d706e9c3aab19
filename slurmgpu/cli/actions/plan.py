"""What ``slurmgpu plan`` does."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from typing import Any, TextIO

import click

from slurmgpu.cli.preparing import prepare, tell_of_image
from slurmgpu.errors import PlanError
from slurmgpu.launchers import world_size
from slurmgpu.models.plan import Plan
from slurmgpu.planning.request import count
from slurmgpu.printable import printable
from slurmgpu.runs.prepare import Prepared


def act(given: dict[str, object], when: bool, as_json: bool) -> None:
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
        from slurmgpu.cli.actions.bench_memory import told_by_benches

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
