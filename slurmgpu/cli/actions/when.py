"""When a job would start, and what its account has left: what ``plan --when`` asks Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slurmgpu.cli.preparing import note
from slurmgpu.planning.cost import figure
from slurmgpu.runs.prepare import MOST_ASKED, Prepared, When, estimates
from slurmgpu.slurm import Slurm


def asked(prepared: Prepared) -> dict[str, object]:
    found = _ask(prepared)
    idle = Slurm().idle_nodes()
    return {"when": [_row(prepared, one, idle) for one in found], "balance": _balance(prepared)}


def _balance(prepared: Prepared) -> dict[str, object]:
    """What the job's account has left, in minutes of each resource, where sshare says so."""
    account = prepared.plan.option("account") or prepared.cluster.default_account
    if account is None:
        return {"account": None, "left": {}, "why": "the job names no account"}
    balance, why = Slurm().balance(account)
    if balance is not None and not balance.granted:
        why = "no limit of TRES-minutes is set for it (GrpTRESMins)"
    return {"account": account, "left": balance.left if balance else {}, "why": why or None}


def balance_text(balance: dict[str, Any]) -> str:
    if not balance["left"]:
        return f"what account {balance['account'] or '-'} has left: unknown ({balance['why']})"
    left = ", ".join(f"{figure(minutes / 60)} {name}-hours" for name, minutes in balance["left"].items())
    return f"account {balance['account']} has left: {left} (sshare: granted, less used, less reserved by running jobs)"


def _ask(prepared: Prepared) -> list[When]:
    """Slurm's estimates for the partitions that fit, the planned one first."""
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


def when_text(rows: list[dict[str, Any]]) -> str:
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
