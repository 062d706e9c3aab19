"""``slurmgpu check``: hold batch scripts against what Slurm will make of them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from slurmgpu.cli.completing import clusters
from slurmgpu.errors import InvalidInput, did_you_mean
from slurmgpu.models.script_facts import ScriptFacts
from slurmgpu.planning.checklist import CHECKS
from slurmgpu.printable import printable
from slurmgpu.script.batch_script import parse_batch_script

if TYPE_CHECKING:
    from slurmgpu.models.cluster import Cluster
    from slurmgpu.script.rules.base import Finding, Severity


@click.command(short_help="Find what is wrong with batch scripts.")
@click.argument(
    "scripts",
    metavar="SCRIPT...",
    nargs=-1,
    required=True,
    type=click.Path(readable=False, allow_dash=True),
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
    cluster = _cluster(cluster_name)
    if cluster is not None and cluster.farewell is not None:
        click.echo(f"slurmgpu: warning: {cluster.farewell}", err=True)
    one = len(scripts) == 1 and not Path(scripts[0]).is_dir()
    checked: list[_Checked] = []
    unread: list[InvalidInput] = []
    modules: frozenset[str] | None = None
    python: dict[str, ScriptFacts] = {}
    for script in _each_script(scripts, unread):
        if script.endswith(".py"):
            loop = _findings_of_loop(script, severity, ignore, unread)
            checked += [] if loop is None else [_Checked(printable(script), loop)]
            continue
        try:
            text = _text(script)
        except InvalidInput as fault:
            unread.append(fault)
            continue
        # Asked once, where a script wants it; of another machine this one's modules say nothing.
        if modules is None and cluster is None and _MODULE.search(text):
            modules = known_modules(os.environ)
        found = _findings(text, cluster, severity, ignore, modules or frozenset(), python)
        checked.append(_Checked("<stdin>" if script == "-" else printable(script), found))
    if checked:
        _print_all(checked, as_json=as_json, one=one)
    if unread:  # said last, so that it is not overlooked
        hints = list(dict.fromkeys(fault.hint for fault in unread if fault.hint))
        raise InvalidInput("; ".join(fault.message for fault in unread), hint="; ".join(hints) or None)
    if any(finding.severity == "error" for each in checked for finding in each.found):
        raise click.exceptions.Exit(1)


_MODULE = re.compile(r"^\s*(?:module|ml)\s", re.MULTILINE)
_COLOURS = {"error": "red", "warning": "yellow", "hint": "cyan"}


class _Checked(NamedTuple):
    """A script, and what was found in it."""

    shown: str
    found: list[Finding]

    def document(self) -> dict[str, object]:
        findings = [one._asdict() for one in self.found]
        return {"script": self.shown, "counts": _counts(self.found), "findings": findings}


def findings(text: str, cluster_name: str | None) -> list[Finding]:
    """Return the findings in the text of a batch script, with the rules of a cluster if one is named."""
    return _findings(text, _cluster(cluster_name))


def _findings(
    text: str,
    cluster: Cluster | None,
    severity: Severity = "hint",
    ignore: tuple[str, ...] = (),
    modules: frozenset[str] = frozenset(),
    known: dict[str, ScriptFacts] | None = None,
) -> list[Finding]:
    from slurmgpu.runs.request_checks import facts_here
    from slurmgpu.script.check import check_script

    read = parse_batch_script(text)
    facts = facts_here(read, Path.cwd(), cluster, known, modules)
    if known is not None:
        known.update(facts.python)  # another script of the folder may start the same
    return check_script(read, facts, ignore=ignore, least=severity)


def _findings_of_loop(
    script: str, severity: Severity, ignore: tuple[str, ...], unread: list[InvalidInput]
) -> list[Finding] | None:
    """Return what the training loop of a Python script misses of the checklist; None where it cannot be read."""
    from slurmgpu.files.jobs import read_python
    from slurmgpu.script.rules.base import SEVERITIES, Finding

    facts = read_python([Path(script).name], Path(script).absolute().parent)
    if facts is None or not facts.parsed:
        why = "there is no such file, or it is not text" if facts is None else "its syntax is not Python's"
        beside = [one.name for one in Path(script).parent.glob("*.py")] if facts is None else []
        hint = did_you_mean(Path(script).name, beside) + "name a batch script, or a Python script"
        unread.append(InvalidInput(f"{script}: {why}", hint=hint))
        return None
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
    from slurmgpu.cli.job_source import refuse_notebook
    from slurmgpu.files.yaml import read_batch_script

    refuse_notebook(script)
    if Path(script).suffix in {".yaml", ".yml"}:
        raise InvalidInput(
            f"{script}: is not a batch script; its ending says that it is a job file",
            hint=f"slurmgpu plan {script} checks a job file; slurmgpu render {script} prints its batch script",
        )
    return read_batch_script(Path(script), any_bytes=True)


def _cluster(name: str | None) -> Cluster | None:
    """Return the cluster that is asked for; without the option the script is judged for any."""
    from slurmgpu.files.clusters import choose_cluster
    from slurmgpu.files.settings import load_settings

    if name is None:
        return None
    return choose_cluster(name, load_settings(Path.cwd()), os.environ)[0]


def _counts(found: list[Finding]) -> dict[str, int]:
    return {severity: sum(one.severity == severity for one in found) for severity in _COLOURS}


def _print_all(checked: list[_Checked], *, as_json: bool, one: bool) -> None:
    everything = [finding for each in checked for finding in each.found]
    if as_json and one:
        data = {"schema": "slurmgpu.check/1", **checked[0].document()}
    elif as_json:
        documents = [each.document() for each in checked]
        data = {"schema": "slurmgpu.checks/1", "counts": _counts(everything), "scripts": documents}
    if as_json:
        click.echo(json.dumps(data, indent=2))
        return
    for each in checked:
        _print(each.shown, each.found)
    _sum_up(checked[0].shown if one else f"{len(checked)} script{'s' * (len(checked) != 1)}", everything)


def print_findings(shown: str, found: list[Finding]) -> None:
    """Print what was found in the script of this name, for people."""
    _print(shown, found)
    _sum_up(shown, found)


def _print(shown: str, found: list[Finding]) -> None:
    for one in found:
        severity = click.style(f"{one.severity}: ", fg=_COLOURS[one.severity], bold=one.severity == "error")
        click.echo(f"{shown}:{one.line}: {severity}{one.rule}: {_plain(one.message)}")
        click.echo(f"    fix: {_plain(one.fix)}")


def _sum_up(what: str, found: list[Finding]) -> None:
    counts = ", ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in _counts(found).items())
    click.echo(f"{what}: {counts}", err=True)


def _plain(text: str) -> str:
    """Text of the script, in a message, on one line and fit for any terminal."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
