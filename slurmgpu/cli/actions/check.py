"""What ``slurmgpu check`` does."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal

import click

from slurmgpu.errors import InvalidInput, did_you_mean
from slurmgpu.files.batch import read_batch_script
from slurmgpu.files.clusters import choose_cluster
from slurmgpu.files.settings import load_settings
from slurmgpu.models.cluster import Cluster
from slurmgpu.scripts.batch_script import parse_batch_script
from slurmgpu.scripts.checking import check_script
from slurmgpu.scripts.rules import RULES
from slurmgpu.scripts.rules.base import Finding
from slurmgpu.submission.judging import facts_here

_COLOURS = {"error": "red", "warning": "yellow", "hint": "cyan"}


def act(
    script: str,
    cluster_name: str | None,
    severity: Literal["error", "warning", "hint"],
    ignore: tuple[str, ...],
    as_json: bool,
) -> None:
    for name in ignore:
        if name not in RULES:
            raise InvalidInput(
                f"option --ignore: there is no rule {name!r}",
                hint=f"{did_you_mean(name, RULES)}docs/check.md has the rules, and each finding names its rule",
            )
    if Path(script).suffix in {".yaml", ".yml"}:
        raise InvalidInput(
            f"{script}: is not a batch script; its ending says that it is a job file",
            hint=f"slurmgpu plan {script} checks a job file; slurmgpu render {script} prints its batch script",
        )
    text = read_batch_script(Path(script), any_bytes=True)
    found = findings(text, cluster_name, severity, ignore)
    shown = "<stdin>" if script == "-" else script
    if as_json:
        _print_json(shown, found)
    else:
        show(shown, found)
    if any(one.severity == "error" for one in found):
        raise click.exceptions.Exit(1)


def findings(
    text: str,
    cluster_name: str | None,
    severity: Literal["error", "warning", "hint"] = "hint",
    ignore: tuple[str, ...] = (),
) -> list[Finding]:
    """What is wrong with the text of a batch script, with the rules of a cluster where one is named."""
    read = parse_batch_script(text)
    facts = facts_here(read, Path.cwd(), _cluster(cluster_name))
    return check_script(read, facts, ignore=ignore, least=severity)


def _cluster(name: str | None) -> Cluster | None:
    """The cluster that is asked for; without the option the script is judged for any."""
    if name is None:
        return None
    return choose_cluster(name, load_settings(Path.cwd()), os.environ)[0]


def _counts(found: list[Finding]) -> dict[str, int]:
    return {severity: sum(one.severity == severity for one in found) for severity in _COLOURS}


def show(shown: str, found: list[Finding]) -> None:
    """Print what was found in the script of this name, for people."""
    for one in found:
        severity = click.style(f"{one.severity}: ", fg=_COLOURS[one.severity], bold=one.severity == "error")
        click.echo(f"{shown}:{one.line}: {severity}{one.rule}: {_plain(one.message)}")
        click.echo(f"    fix: {_plain(one.fix)}")
    counts = ", ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in _counts(found).items())
    click.echo(f"{shown}: {counts}", err=True)


def _plain(text: str) -> str:
    """Text of the script, in a message, on one line and fit for any terminal."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _print_json(shown: str, found: list[Finding]) -> None:
    findings = [one._asdict() for one in found]
    data = {"schema": "slurmgpu.check/1", "script": shown, "counts": _counts(found), "findings": findings}
    click.echo(json.dumps(data, indent=2))
