"""``slurmgpu doctor``: whether this place is fit to run the user's jobs, and what to do where it is not."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import click

from slurmgpu.cli.job_options import JobCommand, job_options
from slurmgpu.cli.terminal import echo_json, note
from slurmgpu.doctor.lines import Level, Line, counts
from slurmgpu.printable import printable


@click.command(cls=JobCommand)
@job_options
@click.option(
    "--on-gpu", is_flag=True, help="Probe the nodes that such a job gets, by a job of some minutes."
)
@click.option(
    "--within",
    metavar="MINUTES",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    help="With --on-gpu: cancel the job after so long.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(given: dict[str, Any], on_gpu: bool, within: int, as_json: bool) -> None:
    """Find out whether this cluster is ready to run your jobs, and what to do if it is not.

    Looks at Slurm, accounts, the cluster's profile, modules, Python, torch and folders on this machine, in the job's
    environment where one is named. With --on-gpu a short job looks at the nodes instead: their GPUs, folders, the
    processes' share, and the way between the nodes. Exit codes: 0 no failure was found; 1 one was.
    """
    from slurmgpu.runs.requests import load_request

    loaded, cluster_name = load_request(given, note)[0], given.get("cluster")
    if on_gpu:
        from slurmgpu.doctor.on_nodes import probe_nodes

        probed = probe_nodes(
            loaded, cluster_name, force=bool(given.get("force")), within=within * 60.0, say=note
        )
        _print_lines(probed.lines, {"job_id": probed.job_id, "measured": probed.measured}, as_json)
        return
    from slurmgpu.doctor.here import lines_here

    _print_lines(list(lines_here(loaded, cluster_name, note)), {}, as_json)


_MARKS: dict[Level, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "warning": ("warning", "yellow"),
    "failure": ("FAILURE", "red"),
    "unknown": ("unknown", "cyan"),
}
_WIDTH = 80


def _print_lines(lines: Sequence[Line], more: dict[str, object], as_json: bool) -> None:
    """Print the lines; the command ends with 1 where a failure is among them."""
    number = counts(lines)
    if as_json:
        document = {
            "schema": "slurmgpu.doctor/1",
            "counts": number,
            "lines": [line._asdict() for line in lines],
            **more,
        }
        echo_json(document)
    else:
        for text in _text(lines):
            click.echo(text)
        words = {"warning": "warnings", "failure": "failures"}
        said = [
            f"{number[level]} {words.get(level, level) if number[level] != 1 else level}"
            for level in ("failure", "warning", "unknown", "ok")
            if number[level] or level == "ok"
        ]
        click.echo(f"\n{', '.join(said)}")
    if number["failure"]:
        click.get_current_context().exit(1)


def _text(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the lines in three columns that fit a terminal: how it came out, which check, what was found and what to do."""
    columns = min(shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH, 120)
    width = max(len(line.check) for line in lines)
    for where, group in groupby(lines, key=lambda line: line.where):
        yield click.style(where or "this machine", bold=True)
        for line in group:
            mark, colour = _MARKS[line.level]
            head = f"  {click.style(f'{mark:<7}', fg=colour)}  {line.check:<{width}}  "
            texts = []
            for text, arrow in ((line.found, ""), (line.act, "-> ")):
                hang = " " * len(arrow)
                texts += textwrap.wrap(
                    printable(text),
                    columns - width - 13,
                    initial_indent=arrow,
                    subsequent_indent=hang,
                    break_on_hyphens=False,
                )
            yield head + f"\n{'':{width + 13}}".join(texts)
