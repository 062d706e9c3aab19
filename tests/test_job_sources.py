"""A request names a job file, a batch script or a command; or nothing, and job.yaml is meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.test_cli import slurmgpu

SCRIPT = """#!/bin/bash
#SBATCH -p gpu --gres=gpu:2   # two
#SBATCH --mem=64G
#SBATCH -t 2:00:00
module load pytorch
srun python train.py "$@"
"""
ASKED = ["--job-name=train.slurm", "--partition=gpu", "--gres=gpu:2", "--mem=64G", "--time=2:00:00"]


def directives(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


@pytest.mark.parametrize("place", [["train.slurm"], ["--", "train.slurm"]])
def test_a_batch_script_is_taken_with_its_options_and_its_own_lines(tmp_path: Path, place: list[str]) -> None:
    (tmp_path / "train.slurm").write_text(SCRIPT)
    done = slurmgpu(tmp_path, "render", *place)
    assert done.returncode == 0, done.stderr
    assert directives(done.stdout) == ASKED
    assert done.stdout.endswith('\nmodule load pytorch\nsrun python train.py "$@"\n')
    assert (
        "train.slurm: a batch script, taken as sbatch takes it: 4 options, its lines unchanged" in done.stderr
    )


@pytest.mark.parametrize("name", ["train.sh", "train.sbatch", "train"])
def test_a_script_with_sbatch_lines_is_a_batch_script_whatever_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(SCRIPT)
    assert "--gres=gpu:2" in slurmgpu(tmp_path, "plan", name).stdout


def test_a_shell_script_without_sbatch_lines_is_a_command(tmp_path: Path) -> None:
    (tmp_path / "prepare.sh").write_text("#!/bin/bash\necho hello\n")
    done = slurmgpu(tmp_path, "render", "prepare.sh")
    assert done.returncode == 2
    assert "-- bash prepare.sh" in done.stderr


def test_options_win_over_those_of_the_batch_script(tmp_path: Path) -> None:
    (tmp_path / "train.slurm").write_text(SCRIPT)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    options = ("--mem-per-gpu", "10G", "-p", "other", "-J", "mine", "-D", str(folder))
    done = slurmgpu(tmp_path, "render", "train.slurm", *options)
    assert set(directives(done.stdout)) == {
        "--job-name=mine", "--partition=other", "--gres=gpu:2", "--mem-per-gpu=10G", "--time=2:00:00",
        f"--chdir={folder}",
    }  # fmt: skip


def test_arguments_after_a_batch_script_reach_it(tmp_path: Path) -> None:
    (tmp_path / "say.slurm").write_text('#!/bin/bash\n#SBATCH -t 5:00\nprintf "<%s>" "$@" > said\n')
    done = slurmgpu(tmp_path, "run", "--here", "--", "say.slurm", "--lr", "a b")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "said").read_text() == "<--lr><a b>"


def test_the_environment_of_sbatch_is_not_used_and_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "train.slurm").write_text(SCRIPT)
    assert (
        "SBATCH_ACCOUNT: set here and not used"
        in slurmgpu(tmp_path, "render", "train.slurm", SBATCH_ACCOUNT="x").stderr
    )


@pytest.mark.parametrize("command", ["plan", "render"])
def test_without_file_and_command_the_job_file_of_the_folder_is_meant(tmp_path: Path, command: str) -> None:
    (tmp_path / "job.yaml").write_text("command: [python, mine.py]\nresources: {gpus: 1, time: '1:00:00'}\n")
    done = slurmgpu(tmp_path, command, "--mem", "32G")
    assert "--job-name=mine" in done.stdout
    assert "--mem=32G" in done.stdout
    assert "slurmgpu: using job.yaml" in done.stderr
    other = slurmgpu(tmp_path, command, "--gpus", "1", "--", "python", "other.py")
    assert "--job-name=other" in other.stdout
    assert "job.yaml" not in other.stderr


def test_a_setting_of_the_job_file_is_laid_over_it(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("class T: ...\n")
    (tmp_path / "job.yaml").write_text("train: {task: task.py:T}\nresources: {gpus: 1, time: '1:00:00'}\n")
    done = slurmgpu(tmp_path, "plan", "--json", "--set", "train.epochs=7")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["train"]["epochs"] == 7


def test_without_job_file_and_command_it_is_said_what_to_write(tmp_path: Path) -> None:
    done = slurmgpu(tmp_path, "submit", "--gpus", "2")
    assert done.returncode == 2
    assert "there is nothing to run" in done.stderr
    assert "job.yaml" in done.stderr
    assert "-- python train.py" in done.stderr
