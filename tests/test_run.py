"""``slurmgpu run`` from the command line: the same script, here, on the CPU."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ready

ROOT = Path(__file__).resolve().parent.parent


def environment(cwd: Path) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("SLURM_")},
        "PYTHONPATH": str(ROOT),
        "XDG_CONFIG_HOME": str(cwd / "xdg"),
        "SLURMGPU_SITE": str(cwd / "site"),
    }


def run(cwd: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return ready.slurmgpu(cwd, "run", *arguments, env=env, without=("SLURM_",))


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    shutil.copytree(
        ROOT / "examples" / "digits",
        tmp_path / "digits",
        ignore=shutil.ignore_patterns("runs", "__pycache__"),
    )
    return tmp_path / "digits"


def metrics(folder: Path) -> list[dict[str, object]]:
    (run_dir,) = (folder / "runs").iterdir()
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_the_digits_job_trains_here_with_two_processes_to_95_percent(digits: Path) -> None:
    done = run(digits, "job.yaml", "--processes", "2", "--here")
    assert done.returncode == 0, done.stderr
    lines = metrics(digits)
    start = next(line["values"] for line in lines if line["kind"] == "start")
    accuracies = [line["values"]["accuracy"] for line in lines if line["kind"] == "eval"]  # type: ignore[index]
    assert start["world_size"] == 2  # type: ignore[index]
    assert accuracies[-1] >= 0.95


def test_the_script_that_runs_here_is_the_rendered_one_byte_for_byte(digits: Path) -> None:
    done = run(digits, "job.yaml", "--processes", "2", "--steps", "2", "--here")
    assert done.returncode == 0, done.stderr
    (run_dir,) = (digits / "runs").iterdir()
    rendered = subprocess.run(
        [sys.executable, "-m", "slurmgpu", "render", "job.yaml"],
        cwd=digits,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(digits / "xdg")},
        capture_output=True,
    )
    assert (run_dir / "script.sbatch").read_bytes() == rendered.stdout


@pytest.mark.long
def test_two_nodes_can_be_pretended(digits: Path) -> None:
    done = run(digits, "job.yaml", "--processes", "2", "--pretend-nodes", "2", "--steps", "2", "--here")
    assert done.returncode == 0, done.stderr
    assert "processes: 2, nodes: 2" in done.stdout


def test_what_stands_in_for_the_site_is_said(tmp_path: Path) -> None:
    (tmp_path / "pytorch_script.py").write_text("print('trained')\n")
    done = run(tmp_path, "uva-pytorch", "--cluster", "uva-afton", "--here")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\n"
    for what in ("module load pytorch/2.0.1 ->", "$CONTAINERDIR, not set here ->", "apptainer"):
        assert what in done.stderr


def test_the_jobs_own_exit_code_is_kept(tmp_path: Path) -> None:
    assert run(tmp_path, "--gpus", "1", "--here", "--", "sh", "-c", "exit 7").returncode == 7


def test_a_command_that_could_go_on_ends_here_without_a_word_about_slurm(tmp_path: Path) -> None:
    done = run(
        tmp_path, "--gpus", "1", "--set", "restart={on: [timeout]}", "--here", "--", "sh", "-c", "exit 75"
    )
    assert done.returncode == 75
    assert "requeue" not in done.stderr


@pytest.mark.long
def test_a_training_that_is_interrupted_says_how_it_goes_on_here(digits: Path) -> None:
    command = [sys.executable, "-m", "slurmgpu", "run", "job.yaml", "--processes", "2", "--here"]
    running = subprocess.Popen(
        [*command, "--set", "train.epochs=4000"],
        cwd=digits,
        env=environment(digits),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith("epoch 2"):
            break
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=150)
    (run_dir,) = (digits / "runs").iterdir()
    assert running.returncode == 130
    assert "saved in checkpoints/step-" in out + err
    assert f"to go on here, the same command with --run-dir {run_dir}" in err
    assert "requeue" not in err


def test_on_a_login_node_it_asks_before_it_runs(tmp_path: Path) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "sbatch").write_text("#!/bin/sh\n")
    (bin_ / "sbatch").chmod(0o755)
    login = {"PATH": f"{bin_}:{os.environ['PATH']}", "SLURM_CONF": "/etc/slurm/slurm.conf"}
    done = run(tmp_path, "--gpus", "1", "--", "true", **login)
    assert done.returncode == 1
    assert "looks like a login node" in done.stderr
    assert "--here" in done.stderr
    assert not (tmp_path / "runs").exists()
    assert run(tmp_path, "--gpus", "1", "--here", "--", "true", **login).returncode == 0
    salloc = run(tmp_path, "--gpus", "1", "--", "true", SLURM_JOB_ID="1", **login)
    assert salloc.returncode == 1
    assert "this shell is not on a node of job 1" in salloc.stderr
    assert "srun --jobid=1 --overlap --pty bash" in salloc.stderr
    assert (
        run(tmp_path, "--gpus", "1", "--", "true", SLURM_JOB_ID="1", SLURMD_NODENAME="n1", **login).returncode
        == 0
    )


def test_a_login_node_is_kept_small_and_quiet(tmp_path: Path) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "sbatch").write_text("#!/bin/sh\n")
    (bin_ / "sbatch").chmod(0o755)
    login = {"PATH": f"{bin_}:{os.environ['PATH']}", "SLURM_CONF": "/etc/slurm/slurm.conf"}
    (tmp_path / "who.py").write_text(
        "import os\nos.write(1, f\"{os.environ['WORLD_SIZE']} {os.nice(0) > 0}\\n\".encode())\n"
    )
    done = run(
        tmp_path,
        "--gpus",
        "4",
        "--launch",
        "srun",
        "--processes",
        "4",
        "--here",
        "--",
        "python",
        "who.py",
        **login,
    )
    assert sorted(done.stdout.splitlines()) == ["2 True", "2 True"]


TEXTBOOK = ROOT / "tests" / "data" / "textbook"


def trained(said: str) -> list[str]:
    """Who says so; processes that print at once may share a line."""
    return sorted(re.findall(r"(rank \d of \d) trained", said))


@pytest.mark.long
def test_a_spawning_script_trains_here_in_as_many_processes_as_the_job_has_gpus(tmp_path: Path) -> None:
    shutil.copy(TEXTBOOK / "spawn.py", tmp_path)
    done = run(tmp_path, "--gpus", "4", "--processes", "2", "--here", "--", "python", "spawn.py")
    assert done.returncode == 0, done.stderr
    assert trained(done.stdout) == ["rank 0 of 2", "rank 1 of 2"]
    assert "GPUs -> the CPU, with gloo in place of nccl" in done.stderr
    assert "torch.cuda.device_count() for mp.spawn -> 2" in done.stderr


@pytest.mark.long
def test_a_script_that_names_nccl_trains_by_gloo_though_it_sets_pythonpath(tmp_path: Path) -> None:
    shutil.copy(TEXTBOOK / "elastic.py", tmp_path)
    own = ("--set", "variables.PYTHONPATH=src")
    done = run(tmp_path, "--gpus", "2", "--processes", "2", "--here", *own, "--", "python", "elastic.py")
    assert done.returncode == 0, done.stderr
    assert trained(done.stdout) == ["rank 0 of 2", "rank 1 of 2"]
