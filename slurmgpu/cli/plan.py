"""``slurmgpu plan``: print the plan of a job with its reasons."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from slurmgpu.cli.job_options import JobCommand, job_options
from slurmgpu.cli.terminal import echo_json, note, terminal_columns
from slurmgpu.errors import PlanError
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.runs.prepared import Prepared

_MOST_ASKED = 5
"""The most partitions that are asked for: each costs Slurm a call and a job id."""


@click.command(cls=JobCommand)
@job_options
@click.option(
    "--when", is_flag=True, help="Ask Slurm when it would start, on at most 5 partitions that it fits."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(given: dict[str, Any], when: bool, as_json: bool) -> None:
    """Print the plan of a job with its reasons; say what does not fit, and what would."""
    from slurmgpu.runs.prepare import prepare

    prepared = prepare(given, note, renders=False)
    prepared.mention_files_to_make(note)
    starts: dict[str, Any] = {"when": _starts(prepared), "balance": _balance(prepared)} if when else {}
    if as_json:
        plan = prepared.plan.model_dump(mode="json", by_alias=True)
        data = {"schema": "slurmgpu.plan/1", **plan, **starts}
        echo_json(data)
    else:
        for line in plan_lines(prepared, terminal_columns(sys.stdout)):
            click.echo(line)
        if when:
            for line in _lines_of_starts(**starts):
                click.echo(line)
    if prepared.refused:  # as submit would end
        raise click.exceptions.Exit(PlanError.exit_code)


def plan_lines(prepared: Prepared, columns: int | None = None) -> Iterator[str]:
    """Yield the plan with its reasons, and what benches of its training have found; ``columns`` of a terminal."""
    from slurmgpu.cli.plan_text import plan_text

    yield plan_text(prepared.plan, columns)
    if prepared.plan.train is not None:
        from slurmgpu.runs.bench.memory import measured_before

        for sentence in measured_before(prepared):
            yield printable(f"  {sentence}")


def _starts(prepared: Prepared) -> list[dict[str, Any]]:
    """Return Slurm's estimates for the partitions that fit, the planned one first."""
    from slurmgpu.slurm import Slurm

    prepared.check_test_only("plan --when")
    names: list[str | None] = list(dict.fromkeys([prepared.plan.partition, *prepared.fitting()]))
    if prepared.plan.partition is None:  # none is named here: Slurm decides
        names = [None]
    if len(names) > _MOST_ASKED:
        note(f"{len(names)} partitions fit; Slurm is asked about the first {_MOST_ASKED}")
    slurm = Slurm()
    there = [prepared.on_partition(name) for name in names[:_MOST_ASKED]]
    found = [one.estimate(slurm) for one in there]
    idle = slurm.idle_nodes()
    rows = []
    for name, one, estimate in zip(names, there, found, strict=False):
        plan, partition = one.plan, name or estimate.partition
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


def _lines_of_starts(when: list[dict[str, Any]], balance: dict[str, Any]) -> Iterator[str]:
    from slurmgpu.planning.cost import figure

    table = [("partition", "idle nodes", "would start", "costs at most", "")]
    for row in when:
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
    yield ""
    for cells in table:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=False)]
        yield "  ".join([*padded, cells[4]]).rstrip()
    yield "Slurm's own estimate (sbatch --test-only): no promise; it may pass a wrong account, QOS or time limit."
    account = balance["account"]
    if not balance["left"]:
        yield f"what account {account or '-'} has left: unknown ({balance['why']})"
        return
    left = ", ".join(f"{figure(minutes / 60)} {name}-hours" for name, minutes in balance["left"].items())
    yield f"account {account} has left: {left} (sshare: granted, less used, less reserved by running jobs)"
