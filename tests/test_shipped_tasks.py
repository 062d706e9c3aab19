"""The tasks that come with slurmgpu, from the command line: named shortly, and checked before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurmgpu.errors import PlanError
from slurmgpu.files.data import check_shipped_task, shipped_tasks
from tests.test_train import slurmgpu


def test_a_task_of_ours_trains_in_an_empty_folder_and_names_the_job(tmp_path: Path) -> None:
    words = ["--config", "size=tiny", "--config", "context=16", "--max-steps", "2", "--here", "--cpu"]
    done = slurmgpu(tmp_path, "slurmgpu:gpt2", *words)
    assert done.returncode == 0, done.stderr
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert run_dir.name.startswith("gpt2-")
    kinds = [json.loads(line)["kind"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert kinds[-1] == "end"


def test_a_wrong_option_is_refused_before_a_run_directory_is_made(tmp_path: Path) -> None:
    done = slurmgpu(tmp_path, "slurmgpu:gpt2", "--config", "sise=tiny", "--here", "--cpu")
    assert done.returncode == 1
    assert "train.config.sise: slurmgpu:gpt2 has no such option; did you mean 'size'?" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("task", "config", "said"),
    [
        ("slurmgpu:gtp2", {}, "no such task in slurmgpu; did you mean 'slurmgpu:gpt2'? there are slurmgpu:gpt2"),
        ("slurmgpu:gpt2", {"size": "2B"}, "train.config.size: '2B': for slurmgpu:gpt2 it must be one of tiny, 124M"),
        ("slurmgpu:gpt2", {"tokeniser": "gpt2"}, "did you mean 'tokenizer'?"),
    ],
)  # fmt: skip
def test_what_a_task_lacks_is_named_with_what_it_has(task: str, config: dict[str, object], said: str) -> None:
    with pytest.raises(PlanError) as caught:
        check_shipped_task(task, config)
    assert said in caught.value.message


def test_the_guide_lists_every_task(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "tasks.md").read_text()
    for name, task in shipped_tasks().items():
        assert f"| `slurmgpu:{name}` |" in page
        assert task["options"]
