"""What ``slurmgpu cluster gpus`` does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
import datetime

import click

from slurmgpu.cli.shared_answers import ago, shared_slurm
from slurmgpu.jobs.gpus_now import GpusNow, Mine, Row, could, gpus_now, kind, notes, place, who
from slurmgpu.jobs.select import current_user
from slurmgpu.printable import printable

SCHEMA = "slurmgpu.gpus/1"


def act(ctx: click.Context, as_json: bool) -> None:
    slurm = shared_slurm(ctx)
    found = gpus_now(slurm.present(), current_user())
    age = slurm.oldest()
    asked = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=age)
    if as_json:
        click.echo(json.dumps(_document(found, asked, age), indent=2))
        return
    for what, why in found.unknown.items():
        click.echo(f"note: {what}: unknown; {printable(why)}", err=True)
    click.echo(
        f"cluster {printable(found.cluster or 'unknown')}, {asked.astimezone():%Y-%m-%d %H:%M:%S}{ago(age)}"
    )
    for line in _lines(found):
        click.echo(line.rstrip())


def _document(found: GpusNow, asked: datetime.datetime, age: float) -> dict[str, object]:
    told = {"time": asked.isoformat(timespec="seconds"), "age_seconds": round(age, 1)}
    return {"schema": SCHEMA, **told, **asdict(found)}


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
    lines += ["", *dict.fromkeys(line for row in found.types for line in notes(row))]
    lines += [who(found)]
    return [line for number, line in enumerate(lines) if line or (number and lines[number - 1])]


def _cells(row: Row, mine: Mine | None) -> tuple[str, ...]:
    away = ", ".join(f"{count} {why}" for why, count in row.away.items())
    why = f" ({printable(mine.why)})" if mine is not None and mine.why != "free" else ""
    return (
        kind(row), place(row), str(row.total), str(row.used), str(row.free), str(row.block), away or "-",
        f"{could(mine)}{why}" or "-",
    )  # fmt: skip


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
