"""Published job scripts as facts (tests/data/published_options.json), and scripts of our own in their shapes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ruamel.yaml import YAML

from slurmgpu.lines.slurm import SBATCH

__all__ = ["BODIES", "Case", "Option", "published", "script_of", "wanted"]

Option = tuple[str, str | None]
_LETTERS = {name: letter for letter, name in SBATCH.letters.items()}


class Case(NamedTuple):
    """One published script: where, what kind of body it has, and its options, component by component."""

    name: str
    site: str
    shape: str
    shell: str
    components: list[list[Option]]


@cache
def published() -> dict[str, Case]:
    """All of them, by name."""
    text = (Path(__file__).parent / "data" / "published_options.json").read_text(encoding="utf-8")
    found = {}
    for site, scripts in json.loads(text)["sites"].items():
        for name, facts in scripts.items():
            components = [[_option(text) for text in one] for one in facts["components"]]
            found[name] = Case(name, site, facts["shape"], facts.get("shell", "/bin/bash"), components)
    return found


def _option(text: str) -> Option:
    name, equals, value = text.partition("=")
    return name, value if equals else None


def wanted(case: Case) -> list[dict[str, str | None]]:
    """What sbatch makes of the options: of those that stand twice the last."""
    return [dict(component) for component in case.components]


def script_of(case: Case, components: list[list[Option]] | None = None) -> str:
    """A script that asks for these options, in words of our own; each case spells them in another way."""
    style = sum(map(ord, case.name))
    lines = [f"#!{case.shell}"]
    if style % 4 == 0:
        lines += ["", f"# A job for {case.site}", ""]
    for number, component in enumerate(components or case.components):
        if number:
            lines += ["", "#SBATCH hetjob" if style % 2 else "#SBATCH packjob"]
        words = [_spelled(name, value, style + index) for index, (name, value) in enumerate(component)]
        while words:
            count = 2 if style % 5 == 0 and len(words) % 3 == 0 else 1
            line, words = " ".join(words[:count]), words[count:]
            lines.append(
                f"#SBATCH {line}" + ("   # as agreed" if style % 7 == 0 and len(words) % 4 == 0 else "")
            )
    if style % 3 == 0:
        lines += ["##SBATCH --nodelist=node1", "# SBATCH --begin=now+1hour"]
    return "\n".join(lines) + "\n\n" + BODIES[case.shape]


def _spelled(name: str, value: str | None, style: int) -> str:
    if value is None:
        return f"--{name}"
    if not value or set(value) & set(" #\\\"'<>|{}[]!$&;()"):
        value = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if style % 3 == 0 and name in _LETTERS:
        return f"-{_LETTERS[name]} {value}" if style % 2 else f"-{_LETTERS[name]}{value}"
    if style % 5 == 1 and name == "ntasks-per-node":
        return f"--tasks-per-node={value}"
    takes = SBATCH.options[name].takes if name in SBATCH.options else "optional"
    return f"--{name} {value}" if style % 4 == 1 and takes == "required" else f"--{name}={value}"


BODIES: dict[str, str] = YAML(typ="safe").load(Path(__file__).parent / "data" / "published_bodies.yaml")
"""Bodies by shape, in our own words: what published scripts do, not what they say."""
