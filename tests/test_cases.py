"""A job file can ask Slurm for what each of the 94 published scripts asks for; GOLDEN=write renews the table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.files.data import read_templates
from slurmgpu.files.job_text import job_text
from slurmgpu.files.yaml import read_yaml, validate
from slurmgpu.models.cluster import GENERIC
from slurmgpu.models.job import Job
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.script.batch_script import parse_batch_script
from slurmgpu.script.importing_command import options_to_data
from slurmgpu.script.render import render_script
from tests.published import Case, published, wanted

TABLE = Path(__file__).parent.parent / "docs" / "published-scripts.md"
CASES = sorted(published())


def asked_by(text: str) -> list[dict[str, str | None]]:
    """What the rendered script of a job file asks for, as sbatch reads it."""
    job = validate(Job, read_yaml(text, "job.yaml"), "job")
    script = render_script(make_plan(job, GENERIC, Surroundings(work_dir="/w")), read_templates())
    read = parse_batch_script(script)
    assert [one for one in read.refusals if one.why != "unknown-option"] == []
    return [
        {name: one.value for name, one in read.effective(number).items()} for number in range(read.components)
    ]


def job_file(case: Case) -> dict[str, Any]:
    return {**options_to_data(case.components), "script": "srun python train.py\n"}


def test_there_are_all_of_them() -> None:
    assert len(CASES) == 94
    assert sum(len(component) for case in published().values() for component in case.components) > 700


@pytest.mark.parametrize("name", CASES)
def test_a_job_file_asks_for_what_the_published_script_asks_for(name: str) -> None:
    case = published()[name]
    assert asked_by(job_text(job_file(case))) == wanted(case)


# As a user would write them

BY_HAND = {path.stem: path.read_text() for path in (Path(__file__).parent / "data/by_hand").iterdir()}


@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_a_job_file_written_by_hand_does_the_same(name: str) -> None:
    assert asked_by(BY_HAND[name]) == wanted(published()[name])


# The table

HEAD = """\
# Published scripts as job files

This table lists GPU job scripts that computing centres, projects and vendors have published. It shows that a
[job file](job-files.md#exact-jobs) can ask Slurm for everything that they ask for.

- **asks for**: the script's options. If an option is given twice, the last one counts.
- **verbatim**: the options that a job file has under `sbatch`. They have no field of their own, or a value that the field
  would refuse, such as a placeholder. All other options are fields.

`tests/test_cases.py` turns each row into a job file, renders it, and checks that sbatch reads the same options there as in
the published script. It also writes this table.

| script | site | asks for | verbatim |
|---|---|---|---|
"""


def verbatim(data: dict[str, Any]) -> list[str]:
    return [name for part in (data, *data.get("components", [])) for name in part.get("sbatch", {})]


def shown(name: str, value: str | None) -> str:
    text = f"--{name}" if value is None else f"--{name}={value}"
    return f"`{text if len(text) <= 60 else text[:57] + '...'}`".replace("|", "\\|")


def table() -> str:
    rows = []
    for name in CASES:
        case = published()[name]
        parts = [" ".join(shown(*option) for option in one.items()) for one in wanted(case)]
        kept = ", ".join(f"`{one}`" for one in dict.fromkeys(verbatim(job_file(case))))
        rows.append(f"| {name} | {case.site} | {' and '.join(parts)} | {kept or 'nothing'} |\n")
    return HEAD + "".join(rows)


def test_the_table_of_the_documentation_is_this_one() -> None:
    if os.environ.get("GOLDEN") == "write":
        TABLE.write_text(table(), encoding="utf-8")
    assert TABLE.read_text(encoding="utf-8") == table()


def test_most_options_are_fields() -> None:
    total = sum(len(component) for case in published().values() for component in wanted(case))
    kept = sum(len(verbatim(job_file(case))) for case in published().values())
    assert kept / total < 0.25
