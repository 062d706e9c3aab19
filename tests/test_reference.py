"""``docs/reference/`` is what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from slurmgpu import errors
from slurmgpu.cli.group import COMMANDS
from slurmgpu.models.job import Job
from slurmgpu.models.resources import Resources
from slurmgpu.models.train import TrainSettings
from slurmgpu.script.rules import RULES
from slurmgpu.script.variables import VARIABLES

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(reference: ModuleType) -> dict[str, str]:
    made: dict[str, str] = reference.pages()
    return made


def test_every_page_is_what_the_code_says(reference: ModuleType) -> None:
    assert reference.main(["--check"]) == 0


def test_a_stale_and_a_stray_page_are_named_and_written_anew(
    reference: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference, "FOLDER", tmp_path)
    assert reference.main([]) == 0
    (tmp_path / "settings.md").write_text("old")
    (tmp_path / "stray.md").write_text("old")
    assert reference.main(["--check"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in said] == ["docs/reference/settings.md", "docs/reference/stray.md"]
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0


def test_a_page_has_a_row_for_each_thing_it_is_of(pages: dict[str, str]) -> None:
    rows = {
        name: {line.split("`")[1] for line in text.splitlines() if line.startswith(("| `", "| [`"))}
        for name, text in pages.items()
    }
    fields = {*Job.model_fields, *Resources.model_fields, *TrainSettings.model_fields}
    assert fields <= rows["job-file.md"]
    assert rows["check-rules.md"] == RULES.keys()
    assert rows["template-variables.md"] == VARIABLES.keys()
    kinds = [name for name in errors.__all__ if isinstance(getattr(errors, name), type)]
    assert all(f"| `{name}` |" in pages["exit-codes.md"] for name in kinds)
    headings = pages["commands.md"].split("\n## slurmgpu ")[1:]
    assert {heading.split()[0] for heading in headings} == set(COMMANDS)


def test_a_field_is_told_with_its_type_and_default(pages: dict[str, str]) -> None:
    job = pages["job-file.md"]
    assert "| `limit` | whole number, at least 0 | `10` |" in job
    assert "| `mode` | `exec`, `run` | `exec` |" in job
    assert "| `task` | text, such as `task.py:Digits` | required |" in job
    assert "| `hang_timeout` | number, above 0 or null | `1800.0` |" in job
    assert "| `environments` | mapping to [Environment](job-file.md#environment) |" in pages["cluster.md"]
