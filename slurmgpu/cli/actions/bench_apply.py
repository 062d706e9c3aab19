"""What ``slurmgpu bench --apply`` does: what follows from the bench goes into the job file, and nothing else changes there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from slurmgpu.cli.actions.report_apply import check_own, write_values
from slurmgpu.errors import InvalidInput
from slurmgpu.files.editing import Place
from slurmgpu.files.jobs import load_job
from slurmgpu.files.layered import Layered
from slurmgpu.models.resources import Resources
from slurmgpu.printable import printable
from slurmgpu.runs.bench.verdict import Verdict


def file_to_change(what: str) -> Path:
    """The job file, before anything runs; InvalidInput where there is none to change."""
    path = Path(what)
    if path.suffix not in {".yaml", ".yml"} or not path.is_file():
        raise InvalidInput(
            f"--apply: {what} is no job file", hint="name one, as in slurmgpu bench task job.yaml --apply"
        )
    check_own(path)
    if not os.access(path, os.W_OK):
        raise InvalidInput(f"--apply: {path} cannot be written", hint="copy it, and measure the copy")
    return path


def apply_verdict(path: Path, verdict: Verdict, *, beside: bool) -> None:
    """Write what was proposed into the job file, and show what changes."""
    if not verdict.proposals:
        click.echo(printable(f"{path}: nothing is proposed, and nothing is changed"), err=True)
        return
    resources = load_job(path, Layered({}, {}), cwd=Path.cwd(), environ=os.environ).job.resources
    write_values(path, dict(_values(verdict, resources)), lambda: None, beside=beside)


def _values(verdict: Verdict, asked: Resources) -> Iterator[tuple[Place, str | int]]:
    for one in verdict.proposals:
        section, _, key = one.key.partition(".")
        if one.key != "resources.gpus":
            yield (section, key), one.value
            continue
        if asked.gpus is None or (asked.nodes or 1) != 1:
            click.echo(
                f"note: {one.key}: {one.value} is left to you: the file asks for its GPUs in another way",
                err=True,
            )
            continue
        yield (section, key), f"{asked.gpus.type}:{one.value}" if asked.gpus.type else one.value
