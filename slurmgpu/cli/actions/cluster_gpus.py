"""What ``slurmgpu cluster gpus`` does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone

import click

from slurmgpu.monitoring.gpus_now import GpusNow, Mine, Row, gpus_now
from slurmgpu.monitoring.select import current_user
from slurmgpu.printable import printable
from slurmgpu.slurm import Slurm

SCHEMA = "slurmgpu.gpus/1"


def act(ctx: click.Context, as_json: bool) -> None:
    slurm = ctx.obj if isinstance(ctx.obj, Slurm) else Slurm()
    found = gpus_now(slurm.present(), current_user())
    now = datetime.now(timezone.utc)
    if as_json:
        click.echo(json.dumps(_document(found, now), indent=2))
        return
    for what, why in found.unknown.items():
        click.echo(f"note: {what}: unknown; {printable(why)}", err=True)
    click.echo(f"cluster {printable(found.cluster or 'unknown')}, {now.astimezone():%Y-%m-%d %H:%M:%S}")
    for line in _lines(found):
        click.echo(line.rstrip())


def _document(found: GpusNow, now: datetime) -> dict[str, object]:
    return {"schema": SCHEMA, "time": now.isoformat(timespec="seconds"), **asdict(found)}


def _lines(found: GpusNow) -> list[str]:
    if "nodes" in found.unknown:
        return ["which GPUs there are is not known"]
    if not found.types:
        return ["Slurm lists no GPUs on this cluster"]
    mine = {(one.partition, one.type): one for one in found.mine}
    head = (
        "GPU",
        "PARTITION",
        "TOTAL",
        "IN USE",
        "FREE",
        "ON ONE NODE",
        "NOT AVAILABLE",
        "YOURS NOW",
    )
    rows = [head, *(_cells(row, None) for row in found.types)]
    rows += [_cells(row, mine.get((row.partition or "", row.type))) for row in found.partitions]
    lines = _table(rows)
    lines += ["", *dict.fromkeys(line for row in found.types for line in _remarks(row))]
    lines += [_who(found)]
    return [line for number, line in enumerate(lines) if line or (number and lines[number - 1])]


def _cells(row: Row, mine: Mine | None) -> tuple[str, ...]:
    away = ", ".join(f"{count} {why}" for why, count in row.away.items())
    could = ""
    if mine is not None:
        could = "unknown" if mine.gpus is None else str(mine.gpus)
        could += f" ({printable(mine.why)})" if mine.why != "free" else ""
        could += "?" if not mine.known else ""
    name = printable(row.type) + (" (slice)" if row.slices else "")
    return (
        name, printable(row.partition) if row.partition else "all", str(row.total), str(row.used), str(row.free),
        str(row.block), away or "-", could or "-",
    )  # fmt: skip


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _remarks(row: Row) -> list[str]:
    found = []
    if row.stranded:
        what = " and ".join(row.stranded_for)
        found.append(
            f"{row.stranded} more {printable(row.type)} without a job, but 0 {what} left on those nodes: not free"
        )
    if row.shards:
        found.append(f"shards of {printable(row.type)}: {row.shards_free} of {row.shards} free")
    return found


def _who(found: GpusNow) -> str:
    if found.account is None:
        return "one job of yours: by what is free alone; no account of yours is known here"
    qos = f" and QOS {printable(found.qos)}" if found.qos else ""
    if any(not one.known for one in found.mine):
        return f"one job of yours: by what is free; the limits of account {printable(found.account)}{qos} are not known (?)"
    return f"one job of yours: with account {printable(found.account)}{qos}; jobs that wait may come first"
