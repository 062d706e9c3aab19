"""Pages as text, from templates, and what those of the generator are filled in with; no server is needed.

A page without a server asks the same of Python in the browser: the same planner, the same templates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from slurmgpu.amounts import size_text
from slurmgpu.errors import SlurmGpuError
from slurmgpu.printable import printable, printable_lines
from slurmgpu.web.form import FIELDS, JOB_FILE, Choice, check_form, choices
from slurmgpu.web.planned import Planned, Problem, Site, planned

__all__ = [
    "SAMPLES", "STATIC", "TYPES", "answer", "answer_values", "differing", "draw", "form_values", "is_begun", "prepare",
    "sampled",
]  # fmt: skip

_HERE = Path(__file__).parent
STATIC = _HERE / "static"
"""The folder of scripts, style sheets and licences."""
TYPES = {".js": "text/javascript", ".css": "text/css", ".txt": "text/plain", ".svg": "image/svg+xml"}
"""The files of it that are sent, by the ends of names."""


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"printable": printable, "printable_lines": printable_lines, "size": size_text}
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
    """Return what the form shows; a value that the cluster does not have stays, so that the planner says what is wrong."""
    offered = choices(at.cluster, at.environments)
    for name, known in offered.items():
        value = values.get(name, "")
        if value and value not in {one.value for one in known}:
            known.append(Choice(value, f"{value} (not on this cluster)"))
    kinds = (kind for one in at.cluster.partitions.values() for kind in one.nodes)
    features = {feature for kind in kinds for feature in kind.features}
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
        text = re.sub(rf"\A{re.escape(JOB_FILE)}:\d+: ", "", problem.text)
        errors.setdefault(problem.field, []).append(text)
    for way in made.ways if made else ():
        for name, value in way.values.items():
            if name in errors:
                errors[name].append(f"would fit: {value}" if value else "would fit without it")
    errors = {name: list(dict.fromkeys(said)) for name, said in errors.items()}
    return {"made": made, "errors": errors, "link": link, "chosen": chosen}


SAMPLES: tuple[Mapping[str, str], ...] = (
    {"command": "python train.py --name 'two words'", "resources.gpus": "2", "resources.time": "1:00:00",
     "resources.account": "abc"},
    {"command": "./prog", "resources.gpus": "1", "resources.nodes": "1", "name": "größer", "array": "0-9%4",
     "resources.account": "abc", "more": "variables: {A: $HOME/x, B: 'no'}\n"},
    {"command": "python train.py", "resources.gpus": "2", "resources.time": "400-0"},
)  # fmt: skip
"""Forms by which a page finds out whether it gives what it gave where it was made: two that mostly fit, one that does not."""


def answer(form: str, cluster: str, folder: str) -> str:
    """Return what the page shows for a form (JSON: name to text), as JSON: the part beside the form, errors by field, files."""
    values: dict[str, str] = json.loads(form)
    shown = {name: value for name, value in values.items() if name != "cluster"}
    made = _planned(shown, cluster, Path(folder)) if is_begun(shown) else None
    filled = answer_values(made, shown, cluster)
    return json.dumps({
        "html": draw("answer.html", **filled),
        "errors": filled["errors"],
        "script": made.script if made else "",
        "job_file": made.job_file if made else "",
    })  # fmt: skip


def _planned(values: Mapping[str, str], cluster: str, folder: Path) -> Planned:
    try:
        check_form(values)
    except SlurmGpuError as error:
        return Planned("", problems=(Problem("", error.message),), hint=error.hint or "")
    return planned(values, cluster, folder, away=True)


def sampled(cluster: str, folder: str) -> list[Any]:
    """Return what comes of the samples: of each the script, the job file, the reasons and what is wrong, as JSON has it."""
    found = []
    for values in SAMPLES:
        made = _planned(values, cluster, Path(folder))
        whys = [[line.text, line.why] for line in made.lines]
        found.append([made.script, made.job_file, whys, [list(one) for one in made.problems], made.hint])
    return found


def differing(expected: Sequence[Any], cluster: str, folder: str) -> list[int]:
    """Return the samples of which something else comes here than where the page was made."""
    here = sampled(cluster, folder)
    return [n for n, (one, other) in enumerate(zip(expected, here, strict=True)) if one != other]
