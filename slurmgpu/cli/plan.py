"""``slurmgpu plan``: print the plan of a job with its reasons."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmgpu.cli.job_options import JobCommand, job_options
from slurmgpu.cli.terminal import note, terminal_columns
from slurmgpu.errors import PlanError
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.runs.prepare import Prepared


@click.command(cls=JobCommand)
@job_options
@click.option(
    "--when", is_flag=True, help="Ask Slurm when it would start, on at most 5 partitions that it fits."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(given: dict[str, Any], when: bool, as_json: bool) -> None:
    """Print the plan of a job with its reasons; say what does not fit, and what would."""
    print_plan(given, when=when, as_json=as_json)


def print_plan(given: dict[str, Any], *, when: bool, as_json: bool) -> None:
    """Plan the job that is described, and print that."""
    from slurmgpu.cli.preparing import prepare, tell_of_image
    from slurmgpu.cli.submitting import plan_text

    prepared = prepare(given, renders=False)
    plan = prepared.plan
    tell_of_image(prepared)
    starts: dict[str, Any] = {"when": _starts(prepared), "balance": _balance(prepared)} if when else {}
    if as_json:
        data = {"schema": "slurmgpu.plan/1", **plan.model_dump(mode="json", by_alias=True), **starts}
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        click.echo(plan_text(plan, terminal_columns(sys.stdout)))
        if plan.train is not None:
            from slurmgpu.runs.bench.memory import measured_before

            for sentence in measured_before(prepared):
                click.echo(printable(f"  {sentence}"))
        if when:
            click.echo(_starts_text(starts["when"]))
            click.echo(_balance_text(starts["balance"]))
    if prepared.refused:  # as submit would end
        raise click.exceptions.Exit(PlanError.exit_code)


def _starts(prepared: Prepared) -> list[dict[str, Any]]:
    """Return Slurm's estimates for the partitions that fit, the planned one first."""
    from slurmgpu.runs.prepare import MOST_ASKED, estimates
    from slurmgpu.slurm import Slurm

    prepared.check_test_only("plan --when")
    names: list[str | None] = list(dict.fromkeys([prepared.plan.partition, *prepared.fitting()]))
    if prepared.plan.partition is None:  # none is named here: Slurm decides
        names = [None]
    if len(names) > MOST_ASKED:
        note(f"{len(names)} partitions fit; Slurm is asked about the first {MOST_ASKED}")
    folder = prepared.folder or Path.cwd()
    found = estimates(Slurm(), names, lambda name: prepared.on_partition(name).render(), folder)
    idle = Slurm().idle_nodes()
    rows = []
    for one in found:
        plan, estimate = prepared.on_partition(one.partition).plan, one.estimate
        partition = one.partition or estimate.partition
        rows.append(
            {
                "partition": partition,
                "idle_nodes": idle.get(partition or ""),
                "start": estimate.start.astimezone().isoformat() if estimate.start else None,
                "nodes": estimate.node_list,
                "gpu_hours": plan.gpu_hours,
                "charge": plan.charge,
                "charge_unit": plan.charge_unit,
                "refused": None if estimate.accepted else estimate.text,
            }
        )
    return rows


def _starts_text(rows: list[dict[str, Any]]) -> str:
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


def _balance(prepared: Prepared) -> dict[str, Any]:
    """Return what the job's account has left, in minutes of each resource, where sshare says so."""
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
