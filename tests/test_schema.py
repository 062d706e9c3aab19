"""What ``slurmgpu schema`` prints: every field of every kind of file has its sentence, and the sentences are true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from slurmgpu.cli.schema import KINDS
from slurmgpu.files.schema import Kind, schema_of
from slurmgpu.files.settings import Settings
from slurmgpu.files.yaml import read_yaml, validate
from slurmgpu.lines.slurm import SBATCH
from slurmgpu.models.base import Model
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.options import ROWS
from slurmgpu.models.train import BestSettings, EarlyStopSettings, TrainSettings

ROOT = Path(__file__).resolve().parent.parent
TRAINING = (TrainSettings, BestSettings, EarlyStopSettings)
MODELS: dict[str, type[BaseModel]] = {
    one.__name__: one for one in (Job, Cluster, Settings, *Model.__subclasses__(), *TRAINING)
}
# What an example of one field needs beside it.
NEEDED: dict[str, dict[str, Any]] = {
    "Cluster": {"name": "site"},
    "Association": {"account": "mygroup"},
    "Container": {"image": "torch.sif"},
}


def described(kind: Kind) -> Iterator[tuple[str, str, str]]:
    """Each field of a schema: its model, its name, what is said of it."""
    schema = schema_of(kind)
    for model in (schema, *schema["$defs"].values()):
        for name, field in model.get("properties", {}).items():
            yield model["title"], name, field.get("description", "")


FIELDS = list(dict.fromkeys(field for kind in KINDS for field in described(kind)))
EXAMPLES = [
    (model, example)
    for model, name, said in FIELDS
    for example in re.findall(r"`([^`]+)`", said)
    if example.startswith(f"{name}: ")
]


@pytest.mark.parametrize(("kind", "least"), [("job", 110), ("cluster", 170), ("settings", 30)])
def test_every_field_has_a_sentence_that_says_more_than_its_name(kind: Kind, least: int) -> None:
    fields = list(described(kind))
    assert len(fields) >= least
    for model, name, said in fields:
        assert re.fullmatch(r"[A-Za-z].{7,}\.", said), (model, name)
        assert said.rstrip(".").lower() != name.replace("_", " "), (model, name)


def test_the_fields_of_the_schemas_are_those_of_the_models() -> None:
    named = {(model, name) for model, name, _ in FIELDS}
    models = {model for model, _ in named}
    fields = {
        (model, one.alias or name) for model in models for name, one in MODELS[model].model_fields.items()
    }
    assert named == fields
    assert {"Job", "Resources", "TrainSettings", "Cluster", "Dialect", "Settings", "Policy"} <= models


def test_a_field_of_a_nested_model_and_of_a_base_has_the_docstring_of_its_source() -> None:
    said = {(model, name): text for model, name, text in FIELDS}
    assert "(`--array`)" in said["Job", "array"]
    assert said["Venv", "path"].startswith(
        "The environment's folder, the one with bin/activate. A path; $NAME"
    )
    assert said["TrainSettings", "keep"] == "Checkpoints kept, the newest ones."


@pytest.mark.parametrize(("model", "example"), EXAMPLES)
def test_every_example_in_a_sentence_is_valid(model: str, example: str) -> None:
    layered = read_yaml(example, "the example")
    layered.data = {**NEEDED.get(model, {}), **layered.data}
    validate(MODELS[model], layered, "job")


def test_there_are_examples_to_check() -> None:
    assert len(EXAMPLES) > 60


def test_every_option_that_a_sentence_names_is_one_of_sbatch_or_of_what_is_said() -> None:
    others = {
        "cluster", "nv", "rocm", "bind", "cleanenv", "dry-run", "when", "test-only", "mpi", "cpu-bind",
    } | {"watch", "follow", "columns"}  # fmt: skip
    named = {
        option
        for _, _, said in FIELDS
        for code in re.findall(r"`([^`]+)`", said)
        if ": " not in code
        for option in re.findall(r"--([a-z][a-z-]*)", code)
    }
    assert len(named) > 25
    assert named - others <= set(SBATCH.options)


def test_a_field_that_is_an_option_of_sbatch_names_it() -> None:
    said = {(model, name): text for model, name, text in FIELDS}
    owners = {"resources": "Resources", "mail": "Mail"}
    for row in ROWS:
        if row.option is not None:
            owner, _, name = row.key.rpartition(".")
            assert f"`--{row.option}`" in said[owners.get(owner, "Job"), name], row.key


def test_no_source_is_read_before_a_schema_is_asked_for() -> None:
    code = (
        "import inspect\n"
        "def refuse(*_, **__): raise SystemExit('a source was read')\n"
        "inspect.getsource = inspect.getsourcelines = inspect.findsource = refuse\n"
        "import slurmgpu.files.schema as schema, slurmgpu.runs.requests\n"
        "from slurmgpu.files.settings import Settings\n"
        "from slurmgpu.models.cluster import Cluster\n"
        "from slurmgpu.models.job import Job\n"
        "for model in (Job, Cluster, Settings): model.model_rebuild(force=True); model.model_json_schema()\n"
        "print('not read')\n"
        "schema.schema_of('settings')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("not read\n", "a source was read\n")
