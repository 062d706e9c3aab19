"""``slurmgpu plan``: print the plan of a job with its reasons."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any, TextIO

import click

from slurmgpu.cli.job_options import JobCommand, job_options

if TYPE_CHECKING:
    from slurmgpu.models.plan import Plan
    from slurmgpu.submission.estimating import When
    from slurmgpu.submission.preparing import Prepared


def plan_text(plan: Plan, columns: int | None = None) -> str:
    """The plan as aligned lines: option, and why; reasons fold where a terminal's ``columns`` are given."""
    from slurmgpu.launchers import world_size
    from slurmgpu.planning.request import count

    rows = [(str(option), option.why) for option in plan.options]
    for number, component in enumerate(plan.components, start=2):
        rows += [("hetjob", f"component {number}"), *((str(option), option.why) for option in component)]
    rows += [(f"{reason.what}: {reason.value}", reason.why) for reason in plan.reasons]
    width = max(len(left) for left, _ in rows)
    processes = plan.spawned_per_node or world_size(plan)
    head = f"{plan.name} on {plan.cluster}: " + (
        "what stands in the job, and nothing else"
        if plan.exact
        else f"{count(plan.nodes, 'node')} x {count(plan.gpus_per_node, 'GPU')}, "
        f"{processes} process{'es' if processes > 1 else ''}"
    )
    return "\n".join([head, *(_row_text(left, why, width, columns) for left, why in rows)])


def _row_text(left: str, why: str, width: int, columns: int | None) -> str:
    room = (columns or 0) - width - 4
    if room < 24:  # no terminal, or one too narrow for two columns
        return f"  {left:<{width}}  {why}"
    lines = textwrap.wrap(why, room, break_long_words=False, break_on_hyphens=False)
    return f"  {left:<{width}}  " + f"\n{'':{width + 4}}".join(lines)


def terminal_columns(stream: TextIO) -> int | None:
    """The width of a terminal; None where a stream is none."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


@click.command(cls=JobCommand)
@job_options
@click.option(
    "--when", is_flag=True, help="Ask Slurm when it would start, on at most 5 partitions that it fits."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(given: dict[str, object], when: bool, as_json: bool) -> None:
    """Print the plan of a job with its reasons; say what does not fit, and what would."""
    from slurmgpu.cli.preparing import prepare

    prepared = prepare(given, renders=False)
    plan = prepared.plan
    rows, balance = _asked(prepared) if when else (None, None)
    if as_json:
        data = {"schema": "slurmgpu.plan/1", **plan.model_dump(mode="json")}
        if rows is not None:
            data |= {"when": rows, "balance": balance}
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    click.echo(plan_text(plan, terminal_columns(sys.stdout)))
    if rows is not None:
        click.echo(_when_text(rows))
        click.echo(_balance_text(balance or {}))


def _asked(prepared: Prepared) -> tuple[list[dict[str, object]], dict[str, object]]:
    from slurmgpu.slurm import Slurm

    found = _ask(prepared)
    idle = Slurm().idle_nodes()
    return [_row(prepared, one, idle) for one in found], _balance(prepared)


def _balance(prepared: Prepared) -> dict[str, object]:
    """What the job's account has left, in minutes of each resource, where sshare says so."""
    from slurmgpu.slurm import Slurm

    account = prepared.plan.option("account") or prepared.cluster.default_account
    if account is None:
        return {"account": None, "left": {}, "why": "the job names no account"}
    balance, why = Slurm().balance(account)
    if balance is not None and not balance.granted:
        why = "no limit of TRES-minutes is set for it (GrpTRESMins)"
    return {"account": account, "left": balance.left if balance else {}, "why": why or None}


def _balance_text(balance: dict[str, Any]) -> str:
    from slurmgpu.planning.cost import figure

    if not balance["left"]:
        return f"what account {balance['account'] or '-'} has left: unknown ({balance['why']})"
    left = ", ".join(f"{figure(minutes / 60)} {name}-hours" for name, minutes in balance["left"].items())
    return f"account {balance['account']} has left: {left} (sshare: granted, less used, less reserved by running jobs)"


def _ask(prepared: Prepared) -> list[When]:
    """Slurm's estimates for the partitions that fit, the planned one first."""
    from pathlib import Path

    from slurmgpu.cli.preparing import note
    from slurmgpu.slurm import Slurm
    from slurmgpu.submission.estimating import MOST_ASKED, estimates

    prepared.check_test_only("plan --when")
    names: list[str | None] = list(dict.fromkeys([prepared.plan.partition, *prepared.fitting()]))
    if prepared.plan.partition is None:  # none is named here: Slurm decides
        names = [None]
    if len(names) > MOST_ASKED:
        note(f"{len(names)} partitions fit; Slurm is asked about the first {MOST_ASKED}")
    folder = prepared.folder or Path.cwd()
    return estimates(Slurm(), names, lambda name: prepared.on_partition(name).render(), folder)


def _row(prepared: Prepared, when: When, idle: dict[str, int]) -> dict[str, object]:
    plan = prepared.on_partition(when.partition).plan
    start = when.estimate.start
    partition = when.partition or when.estimate.partition
    return {
        "partition": partition,
        "idle_nodes": idle.get(partition or ""),
        "start": start.astimezone().isoformat() if start else None,
        "nodes": when.estimate.node_list,
        "gpu_hours": plan.gpu_hours,
        "charge": plan.charge,
        "charge_unit": plan.charge_unit,
        "refused": None if when.estimate.accepted else when.estimate.text,
    }


def _when_text(rows: list[dict[str, Any]]) -> str:
    from slurmgpu.planning.cost import figure

    table = [("partition", "idle nodes", "would start", "costs at most", "")]
    for row in rows:
        start = row["start"][:16].replace("T", " ") if row["start"] else "unknown"
        cost = f"{figure(row['gpu_hours'])} GPU-hours" if row["gpu_hours"] is not None else "unknown"
        if row["charge"] is not None:
            cost += f", {figure(row['charge'])} {row['charge_unit']}"
        remark = (
            f"Slurm refuses it: {row['refused']}" if row["refused"] else f"on {row['nodes'] or 'unknown'}"
        )
        idle = "unknown" if row["idle_nodes"] is None else str(row["idle_nodes"])
        table.append((row["partition"] or "-", idle, "never" if row["refused"] else start, cost, remark))
    widths = [max(len(row[column]) for row in table) for column in range(4)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]])
        for row in table
    ]
    lines.append(
        "Slurm's own estimate (sbatch --test-only): no promise; it may pass a wrong account, QOS or time limit."
    )
    return "\n" + "\n".join(line.rstrip() for line in lines)
