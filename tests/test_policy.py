"""What a site allows stands in its own settings, and nobody widens it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurmgpu.cli.group import cli
from slurmgpu.errors import InvalidInput, PlanError
from slurmgpu.files.settings import load_settings
from slurmgpu.slurm.show import parse_free_nodes


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("site", "config/slurmgpu", "work"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("SLURMGPU_SITE", str(tmp_path / "site"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


@pytest.mark.parametrize("place", ["config/slurmgpu/config.yaml", "work/slurmgpu.yaml"])
def test_a_policy_in_a_users_or_projects_file_is_an_error_naming_the_sites(home: Path, place: str) -> None:
    (home / place).write_text("policy: {test_only: true}\n")
    with pytest.raises(InvalidInput, match=r"policy is the site's to set, in .*site/config\.yaml"):
        load_settings(Path.cwd())


def test_the_sites_policy_is_in_force(home: Path) -> None:
    (home / "site" / "config.yaml").write_text("policy: {max_slurm_calls: 5, max_run_processes: 2}\n")
    policy = load_settings(Path.cwd()).settings.policy
    assert (policy.test_only, policy.max_slurm_calls, policy.max_run_processes) == (True, 5, 2)


@pytest.mark.parametrize(
    ("policy", "words", "seconds"),
    [
        ("{}", ["--gpus", "1"], 15),
        ("{}", ["--gpus", "1", "--no-sample"], None),
        ("{}", ["--nodes", "1"], None),  # no GPUs
        ("{}", ["--nodes", "1", "--sample"], 15),
        ("{sampler_seconds: 60}", ["--gpus", "1"], 60),
        ("{sampler_seconds: 60}", ["--gpus", "1", "--set", "sample=90"], 90),
        ("{sampler: on_request}", ["--gpus", "1"], None),
        ("{sampler: on_request}", ["--gpus", "1", "--set", "sample=5"], 5),
        ("{sampler: never}", ["--gpus", "1"], None),
        ("{sampler: never}", ["--gpus", "1", "--no-sample"], None),
    ],
)
def test_the_site_says_who_is_sampled(policy: str, words: list[str], seconds: int | None, home: Path) -> None:
    (home / "site" / "config.yaml").write_text(f"policy: {policy}\n")
    answer = CliRunner().invoke(cli, ["plan", "--json", "--cluster", "generic", *words, "--", "true"])
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["sample"] == seconds


@pytest.mark.parametrize(
    ("policy", "words", "says", "hint"),
    [
        (
            "{sampler: never}",
            ["--sample"],
            "sample: true: this site lets no job be sampled",
            "leave sample out",
        ),
        (
            "{sampler_seconds: 60}",
            ["--set", "sample=5"],
            "sample: 5: this site allows a sample every 60 s",
            "sample: 60",
        ),
    ],
)
def test_a_job_that_asks_for_more_samples_than_the_site_allows_is_refused(
    policy: str, words: list[str], says: str, hint: str, home: Path
) -> None:
    (home / "site" / "config.yaml").write_text(f"policy: {policy}\n")
    answer = CliRunner().invoke(cli, ["render", "--cluster", "generic", "--gpus", "1", *words, "--", "true"])
    assert isinstance(answer.exception, PlanError)
    assert says in answer.exception.message
    assert hint in str(answer.exception.hint)


def test_an_exact_job_and_a_script_are_not_sampled_unasked(home: Path) -> None:
    for text in (
        "exact: true\ncommand: 'true'\nresources: {gpus: 1}",
        "script: srun true\nresources: {gpus: 1}",
    ):
        (Path.cwd() / "job.yaml").write_text(text)
        answer = CliRunner().invoke(cli, ["render", "--cluster", "generic", "job.yaml"])
        assert answer.exit_code == 0, answer.output
        assert "start.sh" not in answer.stdout


def test_a_local_run_keeps_to_the_sites_number_of_processes(home: Path) -> None:
    (home / "site" / "config.yaml").write_text("policy: {max_run_processes: 2}\n")
    (Path.cwd() / "t.py").write_text("import torch.distributed\n")
    words = [
        "run", "--here", "--gpus", "4", "--processes", "4", "--cluster", "generic", "--", "python", "t.py",
    ]  # fmt: skip
    answer = CliRunner().invoke(cli, words)
    assert isinstance(answer.exception, InvalidInput)
    assert "--processes 4: this site allows 2 on this machine" in answer.exception.message


def test_idle_nodes_count_those_that_are_powered_down_and_not_those_that_do_not_answer() -> None:
    said = "gpu|idle|3\ngpu|idle~|40\ngpu|idle*|2\ngpu|mix|5\ncpu|alloc|7\nsinfo: nonsense\n"
    assert parse_free_nodes(said) == {"gpu": 43, "cpu": 0}
