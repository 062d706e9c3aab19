"""What a bench found, as table, CSV, page and JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from slurmgpu.cli.terminal import note
from slurmgpu.printable import printable
from slurmgpu.runs.bench.page import TRY_HEAD, Figure, figures, page, page_of_parts, try_lines, write_png
from slurmgpu.runs.bench.results import (
    NODE_HEAD,
    PUBLISHED,
    PUBLISHED_PLACES,
    Part,
    Results,
    is_busy,
    machine_line,
    missing,
    network_lines,
    node_lines,
    seconds,
    slow,
    times,
)
from slurmgpu.runs.bench.verdict import judge, ratios
from slurmgpu.training.formats.run_files import BENCH_SCHEMA

_NUMBERS_FROM = {"networks": 1, "node": 2, "task": 2}
_SOURCE = "Shi et al. (2016), arXiv 1608.07249, Torch"
_PUBLISHED = f"seconds per mini-batch, median; published: {_SOURCE}"


def print_results(kind: str, folder: Path, results: Results, *, as_json: bool) -> None:
    """Write the table and the page of what this machine measured, and print it."""
    tables = {"table": _table(kind, results), **_ratio_tables(kind, results)}
    _write(folder, page(kind, results), tables, figures(kind, results))
    _tell_if_busy(results)
    if as_json:
        click.echo(json.dumps({"schema": BENCH_SCHEMA, "kind": kind, **_figures(kind, results)}, indent=2))
        return
    _print(kind, results)
    if kind == "networks":
        click.echo(_PUBLISHED)
    note(f"the page, the table and the rows are in {folder}")


def print_parts(kind: str, folder: Path, parts: Sequence[Part], *, as_json: bool) -> None:
    """The same of a bench in jobs of its own: each job's under its name, and what is missing."""
    tables: dict[str, list[Sequence[str]]] = {}
    for part in parts:
        for name, (head, *lines) in {
            "table": _long_table(kind, part.results),
            **_ratio_tables(kind, part.results),
        }.items():
            tables.setdefault(name, [("On", *head)]).extend((part.job.on, *line) for line in lines)
    drawn = [
        one._replace(title=f"{part.job.on}: {one.title}")
        for part in parts
        for one in figures(kind, part.results)
    ]
    _write(folder, page_of_parts(kind, parts), tables, drawn)
    if as_json:
        jobs = [
            {"on": one.job.on, "run_dir": one.job.run_dir, "state": one.state, **_figures(kind, one.results)}
            for one in parts
        ]
        click.echo(json.dumps({"schema": BENCH_SCHEMA, "kind": kind, "jobs": jobs}, indent=2))
        return
    for part in parts:
        click.echo(click.style(printable(f"{part.job.on}: {part.state}"), bold=True))
        if part.results.machine:
            _tell_if_busy(part.results)
            _print(kind, part.results)
        click.echo()
    for sentence in (*slow(parts), *missing(parts)):
        click.echo(printable(f"{sentence}."))
    if kind == "networks":
        click.echo(_PUBLISHED)
    note(f"the page and the table are in {folder}")


def _figures(kind: str, results: Results) -> dict[str, object]:
    found: dict[str, object] = {"whole": results.whole, "machine": results.machine, "rows": results.rows}
    if kind == "networks":
        found["published"] = {
            "source": _SOURCE,
            "places": PUBLISHED_PLACES,
            "seconds": PUBLISHED,
        }
    if kind == "task":
        verdict = judge(results)
        found["sentences"] = verdict.sentences
        found["proposals"] = [one._asdict() for one in verdict.proposals]
        found["ratios"] = [one._asdict() for one in ratios(results)]
    return found


def _tell_if_busy(results: Results) -> None:
    if is_busy(results):
        load = results.machine.get("load")
        note(f"the machine was busy as this began (load {load}): times may be too long")


def _table(kind: str, results: Results) -> list[Sequence[str]]:
    if kind == "node":
        return [NODE_HEAD, *node_lines(results)]
    if kind == "task":
        return [TRY_HEAD, *try_lines(results)]
    found = times(results)
    head = ("Network", "Mini-batch", *found.places, *PUBLISHED_PLACES)
    return [head, *network_lines(found)]


def _long_table(kind: str, results: Results) -> list[Sequence[str]]:
    """Return the table with the same columns on every machine: of networks, a line for each place."""
    if kind != "networks":
        return _table(kind, results)
    found = times(results)
    lines = [
        (name, place, seconds(value)) for name, of in found.seconds.items() for place, value in of.items()
    ]
    return [("Network", "Where", "Seconds"), *lines]


def _ratio_tables(kind: str, results: Results) -> dict[str, list[Sequence[str]]]:
    return {one.name: [one.head, *one.lines] for one in ratios(results)} if kind == "task" else {}


def _write(
    folder: Path, html: str, tables: Mapping[str, Sequence[Sequence[str]]], drawn: Sequence[Figure]
) -> None:
    """Write the files; what was measured is shown on the terminal even where they cannot be."""
    try:
        (folder / "page.html").write_text(html, encoding="utf-8")
        for name, lines in tables.items():
            with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows(lines)
        write_png(folder / "plots.png", drawn)
    except OSError as error:
        note(f"{folder}: the page and the table could not be written: {error.strerror}")


def _print(kind: str, results: Results) -> None:
    click.echo(printable(machine_line(results)))
    _print_table(_table(kind, results), _NUMBERS_FROM[kind])
    if kind != "task":
        return
    for one in ratios(results):
        click.echo(f"\n{one.title}")
        _print_table([one.head, *one.lines], 1)
        if one.note:
            click.echo(one.note)
    verdict = judge(results)
    click.echo()
    for sentence in verdict.sentences:
        click.echo(printable(f"{sentence[:1].upper()}{sentence[1:]}."))
    for each in verdict.proposals:
        click.echo(
            click.style(printable(f"{each.key}: {each.value}"), bold=True) + printable(f"  ({each.why})")
        )


def _print_table(lines: Sequence[Sequence[str]], numbers_from: int) -> None:
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    for at, line in enumerate(lines):
        cells = [
            cell.rjust(width) if number >= numbers_from else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text = printable("  ".join(cells).rstrip())
        click.echo(click.style(text, bold=True) if at == 0 else text)
