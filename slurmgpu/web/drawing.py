"""Pages as text, from templates, and what those of the generator are filled in with. No server is needed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from slurmgpu.printable import printable, printable_lines
from slurmgpu.web.form import FIELDS, JOB_FILE, Choice, choices
from slurmgpu.web.planned import Planned, Site

__all__ = ["STATIC", "TYPES", "answer_values", "draw", "form_values", "is_begun", "prepare"]


_HERE = Path(__file__).parent
STATIC = _HERE / "static"
"""The folder of scripts, style sheets and licences."""
TYPES = {".js": "text/javascript", ".css": "text/css", ".txt": "text/plain", ".svg": "image/svg+xml"}
"""What is sent of it, by the ends of names."""


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["printable"] = printable
    made.filters["printable_lines"] = printable_lines
    return made


def prepare() -> None:
    """Read all templates, so that no first page waits for that."""
    for name in _environment().list_templates():
        _environment().get_template(name)


def draw(name: str, **values: object) -> str:
    """Return a page, or a part of one, by its template."""
    return _environment().get_template(name).render(values)


def is_begun(values: Mapping[str, str]) -> bool:
    """Return True if anything is filled in."""
    return any(value.strip() for value in values.values())


def form_values(values: Mapping[str, str], at: Site) -> dict[str, Any]:
    """What the form shows; a value that the cluster does not have stays, so that the planner says what is wrong with it."""
    offered = choices(at.cluster, at.environments)
    for name, known in offered.items():
        value = values.get(name, "")
        if value and value not in {one.value for one in known}:
            known.append(Choice(value, f"{value} (not on this cluster)"))
    features = {
        feature for one in at.cluster.partitions.values() for kind in one.nodes for feature in kind.features
    }
    return {
        "fields": FIELDS,
        "values": values,
        "choices": offered,
        "suggested": {"resources.constraint": sorted(features)} if features else {},
        "clusters": at.known,
        "in_use": at.cluster.name,
        "description": at.cluster.description or "",
        "unfold": any(field.fold and values.get(field.name, "").strip() for field in FIELDS),
    }


def answer_values(made: Planned | None, values: Mapping[str, str], chosen: str) -> dict[str, Any]:
    """Return what the part beside the form shows, and what is said at the fields."""
    given = {name: value for name, value in values.items() if value.strip() and name != "file"}
    link = urlencode({"cluster": chosen, **given})
    errors: dict[str, list[str]] = {}
    for problem in made.problems if made else ():
        errors.setdefault(problem.field, []).append(
            re.sub(rf"\A{re.escape(JOB_FILE)}:\d+: ", "", problem.text)
        )
    for way in made.ways if made else ():
        for name, value in way.values.items():
            if name in errors:
                errors[name].append(f"would fit: {value}" if value else "would fit without it")
    errors = {name: list(dict.fromkeys(said)) for name, said in errors.items()}
    return {"made": made, "errors": errors, "link": link, "chosen": chosen}
