"""``slurmgpu run`` and ``train`` where there are GPUs: those of the job that they run in, and those of one's own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests import ready

ROOT = Path(__file__).resolve().parent.parent
ON_NODE = {"SLURM_JOB_ID": "123", "SLURMD_NODENAME": "gpu7", "SLURM_GPUS_ON_NODE": "2"}
TWO = ON_NODE | {"CUDA_VISIBLE_DEVICES": "4,7"}
SHOW = ["sh", "-c", "echo rank $SLURM_PROCID of $SLURM_NTASKS: $CUDA_VISIBLE_DEVICES"]
NO_MORE = "slurmgpu: stand-in: GPUs -> the CPU, with gloo in place of nccl between processes"


def run(cwd: Path, *arguments: str, sub: str = "run", **env: str) -> subprocess.CompletedProcess[str]:
    return ready.slurmgpu(cwd, sub, *arguments, env=env, without=("SLURM", "CUDA_", "ROCR_"))


def seen(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def test_in_a_job_its_gpus_are_used_and_no_more_processes_than_there_are(tmp_path: Path) -> None:
    done = run(tmp_path, "--gpus", "4", "--launch", "srun", "--", *SHOW, **TWO)
    assert seen(done) == ["rank 0 of 2: 4,7", "rank 1 of 2: 4,7"]
    assert "slurmgpu: 2 GPUs of job 123 on gpu7: used (the job file asks for 4)" in done.stderr
    assert NO_MORE not in done.stderr


def test_a_job_of_one_gpu_gets_one_of_those_that_are_there(tmp_path: Path) -> None:
    done = run(tmp_path, "--gpus", "1", "--", "printenv", "CUDA_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE", **TWO)
    assert seen(done) == ["1", "4"]
    assert "slurmgpu: 1 GPU of job 123 on gpu7: used\n" in done.stderr


def test_on_request_it_is_the_cpu(tmp_path: Path) -> None:
    done = run(tmp_path, "--gpus", "2", "--launch", "srun", "--cpu", "--processes", "2", "--", *SHOW, **TWO)
    assert seen(done) == ["rank 0 of 2:", "rank 1 of 2:"]
    assert "slurmgpu: 2 GPU(s) of job 123 on gpu7: not used (--cpu)" in done.stderr
    assert NO_MORE in done.stderr


def test_what_asks_for_no_gpu_gets_none(tmp_path: Path) -> None:
    done = run(tmp_path, "--", "printenv", "CUDA_VISIBLE_DEVICES", **TWO)
    assert seen(done) == [""]
    assert (
        "2 GPU(s) of job 123 on gpu7: not used (none is asked for; --gpus 2 asks for all of them)"
        in done.stderr
    )


def test_gpus_that_are_wanted_and_not_asked_for_are_not_left_out_in_silence(tmp_path: Path) -> None:
    done = run(tmp_path, "--gpu", "--", "touch", "it-ran", **TWO)
    assert done.returncode == 2
    assert "--gpu: no GPU is asked for" in done.stderr
    assert "hint: --gpus 2 asks for GPUs" in done.stderr
    assert not (tmp_path / "it-ran").exists()
    assert not (tmp_path / "runs").exists()


def test_processes_are_as_asked_and_pretended_nodes_share_no_gpu(tmp_path: Path) -> None:
    both = ["--nodes", "2", "--gpus-per-node", "1", "--launch", "srun"]
    done = run(tmp_path, *both, "--processes", "2", "--pretend-nodes", "2", "--", *SHOW, **TWO)
    assert seen(done) == ["rank 0 of 2: 4", "rank 1 of 2: 7"]
    one = run(tmp_path, "--gpus", "2", "--launch", "srun", "--processes", "1", "--", *SHOW, **TWO)
    assert seen(one) == ["rank 0 of 1: 4,7"]
    more = run(tmp_path, "--gpus", "4", "--launch", "srun", "--processes", "3", "--", *SHOW, **TWO)
    assert len(seen(more)) == 3
    assert "warning: 3 processes share them" in more.stderr


def test_a_training_with_more_processes_than_gpus_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("class T: pass\n")
    done = run(tmp_path, "task.py:T", "--processes", "3", "--batch-size", "33", sub="train", **TWO)
    assert done.returncode == 2
    assert "3 processes on 1 node(s) need as many GPUs, and job 123 on gpu7 has 2" in done.stderr
    assert "use --processes 2; or --cpu" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_the_other_nodes_of_the_job_are_named_as_idle(tmp_path: Path) -> None:
    several = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "gpu[7-8]"}
    done = run(tmp_path, "--gpus", "2", "--launch", "srun", "--", *SHOW, **TWO, **several)
    assert "the other nodes of gpu[7-8] are not used: this runs on gpu7 alone" in done.stderr


@pytest.mark.parametrize(
    ("shown", "devices"),
    [
        ({"CUDA_VISIBLE_DEVICES": "GPU-1f3a,MIG-77"}, "GPU-1f3a,MIG-77"),
        ({}, "0,1"),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ""),
        ({"CUDA_VISIBLE_DEVICES": ""}, ""),
    ],
)
def test_gpus_are_those_that_slurm_shows(tmp_path: Path, shown: dict[str, str], devices: str) -> None:
    command = ["--", "printenv", "CUDA_VISIBLE_DEVICES"]
    done = run(tmp_path, "--gpus", "2", "--launch", "plain", *command, **ON_NODE, **shown)
    assert seen(done) == [devices]


def test_amds_gpus_are_named_by_their_own_variable(tmp_path: Path) -> None:
    command = ["--", "sh", "-c", "echo $ROCR_VISIBLE_DEVICES-${CUDA_VISIBLE_DEVICES-unset}"]
    done = run(tmp_path, "--gpus", "1", *command, **ON_NODE, ROCR_VISIBLE_DEVICES="2,3")
    assert seen(done) == ["2-unset"]


@pytest.mark.long
def test_gpus_that_torch_does_not_see_end_it_with_the_option_for_the_cpu(tmp_path: Path) -> None:
    """Nobody trains on the CPU of an allocation with GPUs unnoticed: neither a task nor a loop of one's own."""
    (tmp_path / "own.py").write_text("from slurmgpu.training import Run\nRun()\nprint('made')\n")
    own = ["--gpus", "1", "--", "python", "own.py"]
    done = run(tmp_path, *own, **TWO)
    assert done.returncode == 1
    assert "this local run was given 1 GPU(s), and torch sees none" in done.stderr
    assert 'the option --cpu, or Run(device="cpu")' in done.stderr
    done = run(tmp_path, "--cpu", *own, **TWO)
    assert (done.returncode, done.stdout) == (0, "made\n"), done.stderr


def test_when_the_real_job_ends_is_known_to_the_run_in_it(tmp_path: Path) -> None:
    done = run(
        tmp_path, "--gpus", "1", "--", "printenv", "SLURM_JOB_END_TIME", **TWO, SLURM_JOB_END_TIME="99"
    )
    assert seen(done) == ["99"]


def test_gpus_of_a_machine_without_slurm_are_used_on_request_alone(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'GPU 0: Some (UUID: 1)'\necho 'GPU 1: Some (UUID: 2)'\n")
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    job = ["--gpus", "2", "--launch", "srun", "--here"]
    assert seen(run(tmp_path, *job, "--processes", "1", "--", *SHOW, PATH=path)) == ["rank 0 of 1:"]
    used = run(tmp_path, *job, "--gpu", "--", *SHOW, PATH=path)
    assert seen(used) == ["rank 0 of 2: 0,1", "rank 1 of 2: 0,1"]
    assert "slurmgpu: 2 GPUs of this machine: used" in used.stderr
    program.write_text("#!/bin/sh\nexit 9\n")
    none = run(tmp_path, *job, "--gpu", "--", *SHOW, PATH=path)
    assert none.returncode == 2
    assert "--gpu: this machine shows no GPU" in none.stderr
    assert len(list((tmp_path / "runs").iterdir())) == 2


@pytest.mark.long
def test_a_task_is_trained_by_one_process_for_each_gpu_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("class T: pass\n")
    for options, wanted in (([], 2), (["--processes", "1"], 1), (["--strategy", "single"], 1)):
        done = run(tmp_path, "task.py:T", *options, "--batch-size", "3", sub="train", **TWO)
        if wanted == 2:
            assert "batch_size" in done.stderr  # 3 samples cannot be split between two processes
            assert not (tmp_path / "runs").exists()
        else:
            newest = max((tmp_path / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
            assert json.loads((newest / "plan.json").read_text())["gpus_per_node"] == 1


def test_steps_side_by_side_get_gpus_of_their_own(tmp_path: Path) -> None:
    step = "command: [sh, -c, 'echo $CUDA_VISIBLE_DEVICES; sleep 3'], gpus: 1"
    text = f"name: two\nresources: {{gpus: 2}}\nsteps:\n  a: {{{step}}}\n  b: {{{step}}}\n"
    (tmp_path / "job.yaml").write_text(text)
    done = run(tmp_path, "job.yaml", **TWO)
    assert done.returncode == 0, done.stderr
    logs = [path.read_text().splitlines()[-1] for path in tmp_path.glob("runs/*/logs/*-[ab].out")]
    assert sorted(logs) == ["4", "7"]
