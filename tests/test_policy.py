"""What a site allows stands in its own settings, and nobody widens it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from slurmgpu.cli.group import cli
from slurmgpu.errors import InvalidInput
from slurmgpu.files.settings import load_settings
from slurmgpu.slurm.sinfo import parse


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("site", "config/slurmgpu", "work"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("SLURMGPU_SITE", str(tmp_path / "site"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


@pytest.mark.parametrize("place", ["config/slurmgpu/config.yaml", "work/slurmgpu.yaml"])
def test_a_policy_in_a_users_or_a_projects_file_is_an_error_that_names_the_sites(
    home: Path, place: str
) -> None:
    (home / place).write_text("policy: {test_only: true}\n")
    with pytest.raises(InvalidInput, match=r"policy is the site's to set, in .*site/config\.yaml"):
        load_settings(Path.cwd())


def test_the_sites_policy_is_in_force(home: Path) -> None:
    (home / "site" / "config.yaml").write_text("policy: {max_slurm_calls: 5, max_run_processes: 2}\n")
    policy = load_settings(Path.cwd()).settings.policy
    assert (policy.test_only, policy.max_slurm_calls, policy.max_run_processes) == (True, 5, 2)


def test_a_local_run_keeps_to_the_sites_number_of_processes(home: Path) -> None:
    (home / "site" / "config.yaml").write_text("policy: {max_run_processes: 2}\n")
    (Path.cwd() / "t.py").write_text("import torch.distributed\n")
    words = [
        "run",
        "--here",
        "--gpus",
        "4",
        "--processes",
        "4",
        "--cluster",
        "generic",
        "--",
        "python",
        "t.py",
    ]
    answer = CliRunner().invoke(cli, words)
    assert isinstance(answer.exception, InvalidInput)
    assert "--processes 4: this site allows 2 on this machine" in answer.exception.message


def test_idle_nodes_count_those_that_are_powered_down_and_not_those_that_do_not_answer() -> None:
    said = "gpu|idle|3\ngpu|idle~|40\ngpu|idle*|2\ngpu|mix|5\ncpu|alloc|7\nsinfo: nonsense\n"
    assert parse(said) == {"gpu": 43, "cpu": 0}
