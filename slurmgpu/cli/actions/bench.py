"""What ``slurmgpu bench`` does: a process that measures, and what it found, as table, CSV, page and JSON."""

from __future__ import annotations

import csv
import json
import os
import secrets
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmgpu.cli.actions.local import LOGIN_NICE, on_login_node
from slurmgpu.cli.actions.planned_training import planned
from slurmgpu.cli.preparing import note
from slurmgpu.errors import InvalidInput, RunFailed
from slurmgpu.files.layered import Layered
from slurmgpu.files.settings import runs_by_settings
from slurmgpu.monitoring.benching import networks, node, tries
from slurmgpu.monitoring.benching.page import page
from slurmgpu.monitoring.benching.results import SCHEMA, Results, read
from slurmgpu.monitoring.benching.verdict import judge
from slurmgpu.monitoring.benching.wording import is_busy, machine_line
from slurmgpu.printable import printable
from slurmgpu.submission.entrypoint import chosen_python
from slurmgpu.submission.preflight import check_task
from slurmgpu.submission.run_directory import copy_entrypoint

if TYPE_CHECKING:
    from slurmgpu.cli.bench import Described, Where

_ROWS, _ASKED = "rows.jsonl", "asked.json"
_SHORTEST, _LONGEST = 0.2, 600.0
_MOST = 1024
_PARTS = ("batch", "workers", "precision", "scaling")


def act_networks(
    only: Sequence[str], threads: str | None, precisions: Sequence[str], seconds: float, where: Where
) -> None:
    for name in only:
        if name not in networks.PUBLISHED:
            raise InvalidInput(
                f"--only {name}: there is no such network",
                hint=f"the networks are {', '.join(networks.PUBLISHED)}",
            )
    _check_seconds(seconds, "5 seconds")
    asked = {
        "kind": "networks",
        "networks": list(only),
        "threads": _numbers("--threads", threads),
        "gpus": None,
        "precisions": list(precisions) or ["fp32"],
        "seconds": seconds,
    }
    _measure(asked, where)


def _check_seconds(seconds: float, usual: str) -> None:
    if not _SHORTEST <= seconds <= _LONGEST:
        raise InvalidInput(
            f"--seconds {seconds:g}: each is measured for {_SHORTEST:g} to {_LONGEST:g} seconds",
            hint=f"leave it out for {usual}",
        )


def _numbers(option: str, text: str | None) -> list[int] | None:
    """Numbers from 1 on, with commas between, each once; None where the option is not given."""
    if text is None:
        return None
    found = [int(one) if one.isascii() and one.isdigit() else 0 for one in text.replace(" ", "").split(",")]
    if not all(1 <= one <= _MOST for one in found):
        raise InvalidInput(
            f"{option} {text}: these are numbers from 1 to {_MOST}, with commas between",
            hint=f"as in {option} 1,2,4",
        )
    return list(dict.fromkeys(found))


def act_node(folders: Sequence[str], where: Where) -> None:
    for folder in folders:
        if not Path(folder).is_dir():
            raise InvalidInput(f"--folder {folder}: there is no such folder", hint="name one that exists")
    _measure({"kind": "node", "folders": [str(Path(one).absolute()) for one in folders]}, where)


def act_task(
    asked: Described, parts: Sequence[str], processes: str | None, seconds: float, where: Where
) -> None:
    _check_seconds(seconds, "8 seconds")
    numbers = _numbers("--processes", processes)
    prepared = planned(asked, Layered({}, {}), 1)
    train = prepared.loaded.job.train
    assert train is not None
    assert prepared.folder is not None
    measured = {
        "kind": "task",
        "train": train.document(),
        "folder": str(prepared.folder),
        "samples": train.samples_at_a_time(1),
        "batch": train.batch_size,
        "processes": numbers,
        "parts": list(parts) or list(_PARTS),
        "seconds": seconds,
    }
    check_task(prepared.plan, prepared.folder)
    _measure(measured, where)


def _measure(asked: Mapping[str, object], where: Where) -> None:
    kind = str(asked["kind"])
    nice = LOGIN_NICE if on_login_node(where.here) else 0
    if nice:
        note(
            "measured at a low priority, for others use this machine: what is found is less than what it can do"
        )
    python = chosen_python(where.python, os.environ)
    folder = _new_folder(kind, where.to)
    (folder / _ASKED).write_text(json.dumps(asked), encoding="utf-8")
    code = _run(python, folder, nice)
    results = read(folder / _ROWS)
    if not results.machine:
        raise RunFailed(
            f"nothing was measured: {python} ended with code {code}",
            hint="its own words stand above; --python PATH takes another Python",
        )
    _write(kind, folder, results)
    if is_busy(results):
        note(
            f"the machine was busy as this began (load {results.machine.get('load')}): times may be too long"
        )
    if where.as_json:
        click.echo(json.dumps(_document(kind, results), indent=2))
    else:
        _print(kind, results)
        note(f"the page, the table and the rows are in {folder}")
    if not results.whole:
        note("it was cut short: what is missing was not measured")
        click.get_current_context().exit(1)


def _new_folder(kind: str, to: str | None) -> Path:
    if to is not None:
        folder = Path(to).absolute()
    else:
        now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        folder = (
            runs_by_settings(Path.cwd(), os.environ)(Path.cwd())
            / f"bench-{kind}-{now}-{secrets.token_hex(4)}"
        )
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise InvalidInput(
            f"--to {to}: it is there already", hint="name a folder that is not there yet"
        ) from None
    except OSError as error:
        raise RunFailed(f"{folder} cannot be made: {error.strerror}", hint="name another with --to") from None
    return folder


def _run(python: str, folder: Path, nice: int) -> int:
    """Measure in a process of its own, which says on standard error how far it is; its exit code."""
    command = [python, "-m", "slurmgpu_training.benching", str(folder / _ASKED), str(folder / _ROWS)]
    if nice:
        command = ["nice", "-n", str(nice), *command]
    with tempfile.TemporaryDirectory(prefix="slurmgpu-") as code:
        copy_entrypoint(Path(code))
        path = os.pathsep.join(filter(None, [code, os.environ.get("PYTHONPATH")]))
        try:
            started = subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": path})
        except OSError as error:
            raise RunFailed(f"{python} cannot be started: {error.strerror}") from None
        while True:
            try:
                return started.wait()
            except KeyboardInterrupt:  # it got the signal, too, and ends
                continue


def _document(kind: str, results: Results) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "kind": kind,
        "whole": results.whole,
        "machine": results.machine,
        "rows": results.rows,
    }


def _table(kind: str, results: Results) -> list[Sequence[str]]:
    if kind == "node":
        return [node.HEAD, *node.lines(results)]
    if kind == "task":
        return [tries.HEAD, *tries.lines(results)]
    found = networks.times(results)
    head = ("Network", "Mini-batch", *found.places, *networks.PUBLISHED_PLACES)
    return [head, *networks.lines(found)]


def _write(kind: str, folder: Path, results: Results) -> None:
    (folder / "page.html").write_text(page(kind, results), encoding="utf-8")
    with (folder / "table.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(_table(kind, results))


def _print(kind: str, results: Results) -> None:
    click.echo(printable(machine_line(results)))
    lines = _table(kind, results)
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    numbers_from = {"networks": 1, "node": 2, "task": 2}[kind]
    for at, line in enumerate(lines):
        cells = [
            cell.rjust(width) if number >= numbers_from else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text = printable("  ".join(cells).rstrip())
        click.echo(click.style(text, bold=True) if at == 0 else text)
    if kind == "task":
        verdict = judge(results)
        click.echo()
        for sentence in verdict.sentences:
            click.echo(printable(f"{sentence[:1].upper()}{sentence[1:]}."))
        for one in verdict.proposals:
            click.echo(
                click.style(printable(f"{one.key}: {one.value}"), bold=True) + printable(f"  ({one.why})")
            )
    if kind == "networks":
        click.echo("seconds per mini-batch, median; 2016: Shi et al., arXiv 1608.07249, Torch")
