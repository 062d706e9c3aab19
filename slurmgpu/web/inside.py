"""What a page without a server asks of Python in the browser: the same planner, the same templates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slurmgpu.errors import SlurmGpuError
from slurmgpu.web.drawing import answer_values, draw, is_begun
from slurmgpu.web.form import check_form
from slurmgpu.web.planned import Planned, Problem, planned

__all__ = ["SAMPLES", "answer", "differing", "sampled"]

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
