"""``slurmgpu check``: hold batch scripts against what Slurm will make of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmgpu.cli.completing import clusters
from slurmgpu.cli.terminal import echo_json
from slurmgpu.errors import InvalidInput, did_you_mean
from slurmgpu.models.script_facts import ScriptFacts
from slurmgpu.planning.checklist import CHECKS
from slurmgpu.printable import printable
from slurmgpu.script.batch_script import parse_batch_script

if TYPE_CHECKING:
    from slurmgpu.models.cluster import Cluster
    from slurmgpu.script.rules.base import Finding, Severity

_MODULE = re.compile(r"^\s*(?:module|ml)\s", re.MULTILINE)
_COLOURS = {"error": "red", "warning": "yellow", "hint": "cyan"}


@click.command(short_help="Find what is wrong with batch scripts.")
@click.argument(
    "scripts", metavar="SCRIPT...", nargs=-1, required=True, type=click.Path(readable=False, allow_dash=True)
)
@click.option(
    "--cluster",
    "cluster_name",
    metavar="NAME",
    help="Add the rules of a cluster: a profile's name or file.",
    shell_complete=clusters,
)
@click.option(
    "--severity",
    type=click.Choice(["error", "warning", "hint"]),
    default="hint",
    show_default=True,
    help="Show nothing less severe.",
)
@click.option("--ignore", metavar="RULE", multiple=True, help="Leave out a rule; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    scripts: tuple[str, ...],
    cluster_name: str | None,
    severity: Severity,
    ignore: tuple[str, ...],
    as_json: bool,
) -> None:
    """Find what is wrong with any batch scripts, before Slurm does; `-` reads standard input.

    Of a folder all batch scripts are checked that are in it and in its folders: files that start with `#!` and have an
    `#SBATCH` line. Of a Python script (`.py`) the training loop is read.

    An error: Slurm will not do what is written there. A warning: likely wrong. A hint: works, and could be better.
    Ends with exit code 1 where a script has errors, 2 where one cannot be read. The comment `# slurmgpu: ignore RULE` on
    a line, or on a line of its own above it, silences a rule there.
    """
    from slurmgpu.runs.command_checks.environment import known_modules
    from slurmgpu.script.rules import RULES

    for name in ignore:
        if name not in RULES:
            raise InvalidInput(
                f"option --ignore: there is no rule {name!r}",
                hint=f"{did_you_mean(name, RULES)}docs/check.md has the rules, and each finding names its rule",
            )
    cluster = chosen_cluster(cluster_name)
    if cluster is not None and cluster.farewell is not None:
        click.echo(f"slurmgpu: warning: {cluster.farewell}", err=True)
    one = len(scripts) == 1 and not Path(scripts[0]).is_dir()
    checked: list[tuple[str, list[Finding]]] = []
    unread: list[InvalidInput] = []
    modules: frozenset[str] | None = None
    python: dict[str, ScriptFacts] = {}
    for script in _each_script(scripts, unread):
        try:
            if script.endswith(".py"):
                found = _findings_of_loop(script, severity, ignore)
            else:
                text = _text(script)
                # Asked once, where a script wants it; of another machine this one's modules say nothing.
                if modules is None and cluster is None and _MODULE.search(text):
                    modules = known_modules(os.environ)
                found = findings(
                    text,
                    cluster,
                    least=severity,
                    ignore=ignore,
                    modules=modules or frozenset(),
                    python=python,
                )
        except InvalidInput as fault:
            unread.append(fault)
            continue
        checked.append(("<stdin>" if script == "-" else printable(script), found))
    everything = [finding for _, found in checked for finding in found]
    documents = [
        {"script": shown, "counts": _counts(found), "findings": [finding._asdict() for finding in found]}
        for shown, found in checked
    ]
    if checked and as_json:
        several = {"schema": "slurmgpu.checks/1", "counts": _counts(everything), "scripts": documents}
        data = {"schema": "slurmgpu.check/1", **documents[0]} if one else several
        echo_json(data, ensure_ascii=True)
    elif checked:
        for shown, found in checked:
            for line in finding_lines(shown, found):
                click.echo(line)
        what = checked[0][0] if one else f"{len(checked)} script{'s' * (len(checked) != 1)}"
        click.echo(counts_line(what, everything), err=True)
    if unread:  # said last, so that it is not overlooked
        hints = list(dict.fromkeys(fault.hint for fault in unread if fault.hint))
        raise InvalidInput("; ".join(fault.message for fault in unread), hint="; ".join(hints) or None)
    if any(finding.severity == "error" for finding in everything):
        raise click.exceptions.Exit(1)


def chosen_cluster(name: str | None) -> Cluster | None:
    """Return the cluster that is asked for; without a name the script is judged for any."""
    from slurmgpu.files.clusters import choose_cluster
    from slurmgpu.files.settings import load_settings

    return None if name is None else choose_cluster(name, load_settings(Path.cwd()), os.environ)[0]


def findings(
    text: str,
    cluster: Cluster | None,
    *,
    least: Severity = "hint",
    ignore: tuple[str, ...] = (),
    modules: frozenset[str] = frozenset(),
    python: dict[str, ScriptFacts] | None = None,
) -> list[Finding]:
    """Return the findings in the text of a batch script, with the rules of a cluster if there is one.

    ``python`` keeps what is known of the Python scripts of the folder, for another script may start the same.
    """
    from slurmgpu.runs.request_checks import facts_here
    from slurmgpu.script.check import check_script

    script = parse_batch_script(text)
    facts = facts_here(script, Path.cwd(), cluster, python, modules)
    if python is not None:
        python.update(facts.python)
    return check_script(script, facts, ignore=ignore, least=least)


def finding_lines(shown: str, found: list[Finding]) -> Iterator[str]:
    """Yield what was found in the script of this name, for people."""
    for one in found:
        severity = click.style(f"{one.severity}: ", fg=_COLOURS[one.severity], bold=one.severity == "error")
        yield f"{shown}:{one.line}: {severity}{one.rule}: {_plain(one.message)}"
        yield f"    fix: {_plain(one.fix)}"


def counts_line(what: str, found: list[Finding]) -> str:
    """Return how many findings of each severity there are."""
    counts = ", ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in _counts(found).items())
    return f"{what}: {counts}"


def _counts(found: list[Finding]) -> dict[str, int]:
    return {severity: sum(one.severity == severity for one in found) for severity in _COLOURS}


def _findings_of_loop(script: str, severity: Severity, ignore: tuple[str, ...]) -> list[Finding]:
    """Return what the training loop of a Python script misses of the checklist; InvalidInput where it cannot be read."""
    from slurmgpu.files.jobs import read_python
    from slurmgpu.script.rules.base import SEVERITIES, Finding

    facts = read_python([Path(script).name], Path(script).absolute().parent)
    if facts is None or not facts.parsed:
        why = "there is no such file, or it is not text" if facts is None else "its syntax is not Python's"
        beside = [one.name for one in Path(script).parent.glob("*.py")] if facts is None else []
        hint = did_you_mean(Path(script).name, beside) + "name a batch script, or a Python script"
        raise InvalidInput(f"{script}: {why}", hint=hint)
    found = []
    for slip in facts.slips:
        check = CHECKS[slip.check]
        if slip.check in ignore or SEVERITIES.index(check.severity) > SEVERITIES.index(severity):
            continue
        where = "" if slip.file == Path(script).name else f"{slip.file}:{slip.line}: "
        line = 1 if where else slip.line
        found.append(Finding(line, slip.check, check.severity, where + check.message, check.fix))
    return sorted(found)


def _each_script(scripts: tuple[str, ...], unread: list[InvalidInput]) -> Iterator[str]:
    """Yield the scripts that are named, and those of folders, each once."""
    from slurmgpu.files.yaml import batch_scripts_in

    seen: set[str] = set()
    for script in scripts:
        names = [script]
        if Path(script).is_dir():
            names = [str(path) for path in batch_scripts_in(Path(script))]
            if not names:
                unread.append(
                    InvalidInput(
                        f"{script}: no batch script is in this folder",
                        hint="a file that starts with #! and has an #SBATCH line counts; name any other file itself",
                    )
                )
        for name in names:
            if name not in seen:
                seen.add(name)
                yield name


def _text(script: str) -> str:
    from slurmgpu.files.yaml import read_batch_script
    from slurmgpu.runs.requests import refuse_notebook

    refuse_notebook(script)
    if Path(script).suffix in {".yaml", ".yml"}:
        raise InvalidInput(
            f"{script}: is not a batch script; its ending says that it is a job file",
            hint=f"slurmgpu plan {script} checks a job file; slurmgpu render {script} prints its batch script",
        )
    return read_batch_script(Path(script), any_bytes=True)


def _plain(text: str) -> str:
    """Return text of the script for a message, on one line and fit for any terminal."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
