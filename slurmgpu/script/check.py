"""Holds a script against all rules; what the rules need to know of the disk is asked first, and handed in."""

from __future__ import annotations

import re
from collections.abc import Collection

from slurmgpu.script.batch_script import Script
from slurmgpu.script.rules import RULES
from slurmgpu.script.rules.base import SEVERITIES, Facts, Finding, Severity, View
from slurmgpu.script.rules.logs import paths_to_look_at

__all__ = ["check_script", "paths_of", "python_scripts", "shell_scripts"]


_IGNORE = r"#\s*slurmgpu:\s*ignore[ =]+([\w, -]+)"


def paths_of(script: Script, folder: str) -> set[str]:
    """Return the absolute paths of which the rules want to know what they are, when sbatch is called in ``folder``."""
    return paths_to_look_at(View(script, Facts(folder=folder)))


def python_scripts(script: Script) -> set[str]:
    """Return the Python scripts that the script starts, as it writes them."""
    return {call.script for call in View(script, Facts()).calls if call.script and "$" not in call.script}


def shell_scripts(script: Script) -> set[str]:
    """Return the shell scripts that the script starts, as it writes them."""
    return {call.shell_script for call in View(script, Facts()).calls} - {""}


def check_script(
    script: Script, facts: Facts, *, ignore: Collection[str] = (), least: Severity = "hint"
) -> list[Finding]:
    """Return what the rules find, by line; without the rules in ``ignore``, those that the script silences, and lesser ones."""
    view = View(script, facts)
    silenced = _silenced(script)
    found = [
        Finding(hit.line, rule.name, hit.severity or rule.severity, hit.message, hit.fix)
        for rule in RULES.values()
        if rule.name not in ignore
        for hit in rule.find(view)
    ]
    return sorted(
        (
            one._replace(line=max(1, one.line))
            for one in dict.fromkeys(found)
            if one.rule not in silenced.get(one.line, ()) and not _lesser(one.severity, least)
        ),
        key=lambda one: (one.line, SEVERITIES.index(one.severity)),
    )


def _lesser(severity: Severity, least: Severity) -> bool:
    return SEVERITIES.index(severity) > SEVERITIES.index(least)


def _silenced(script: Script) -> dict[int, set[str]]:
    """Return the rules that comments silence, by line: on the comment's own line, and the one below a comment line."""
    silenced: dict[int, set[str]] = {}
    for number, text in enumerate(script.lines, 1):
        match = re.search(_IGNORE, text) if "ignore" in text else None
        if match:
            names = set(re.split(r"[\s,]+", match[1].strip()))
            silenced.setdefault(number, set()).update(names)
            if text.lstrip().startswith("#") and not text.startswith("#SBATCH"):
                silenced.setdefault(number + 1, set()).update(names)
    return silenced
