"""``slurmgpu shell`` on a real Slurm: a terminal, a node, and nothing left afterwards."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest

from tests.slurm.tool import Tool
from tests.terminal import Terminal

pytestmark = pytest.mark.slurm


def terminal(tool: Tool, *words: str) -> Terminal:
    argv = [sys.executable, "-m", "slurmgpu", "shell", "-A", "mygroup", "-t", "10", *words]
    return Terminal(argv, cwd=tool.work, env=tool.env)


def test_a_shell_on_a_node_ends_with_its_own_exit_code_and_gives_the_node_back(tool: Tool) -> None:
    with terminal(tool, "--gpus", "2") as shell:
        job = shell.expect(r"slurmgpu: job (\d+) on node\d, \d+ min left; CUDA_VISIBLE_DEVICES=[\d,]+;")[1]
        shell.expect(rf"\(job {job}, (?:9|10) min left\) ")
        shell.type("echo id=$SLURM_JOB_ID gpus=$CUDA_VISIBLE_DEVICES cpus=$(nproc) in=$PWD; exit 3\n")
        assert shell.code() == 3
    assert re.search(rf"id={job} gpus=\d,\d cpus=\d+ in={tool.work}\n", shell.shown)
    assert f"job {job} was given back" in shell.shown
    assert (tool.jobs_here(), list(tool.work.iterdir())) == ([], [])
    assert tool.slurm.wait_for(job) in ("COMPLETED", "FAILED")


def test_srun_in_the_shell_starts_steps_on_all_gpus_of_the_job(tool: Tool) -> None:
    if tool.slurm.release < (21, 8):
        pytest.skip("steps cannot share GPUs in 20.11, and the shell is one")
    with terminal(
        tool, "--gpus-per-node", "2", "--nodes", "2", "--launch", "srun", "--", "bash", "-i"
    ) as shell:
        shell.expect("first of 2 nodes")
        shell.type("srun sh -c 'echo rank=$SLURM_PROCID/$SLURM_NTASKS gpus=$CUDA_VISIBLE_DEVICES'; exit\n")
        shell.code()
    ranks = re.findall(r"rank=(\d)/(\d) gpus=(\S+)", shell.shown)
    assert sorted(rank for rank, _, _ in ranks) == ["0", "1", "2", "3"], shell.shown
    assert {(tasks, gpus) for _, tasks, gpus in ranks} == {("4", "0,1")}


def test_the_shell_has_the_environment_of_the_job(tool: Tool) -> None:
    venv = tool.file("env/bin/activate", 'export VIRTUAL_ENV=/venv PATH="/venv/bin:$PATH"\n').parents[1]
    (venv / "bin" / "python3").symlink_to(sys.executable)
    home = tool.file(".bashrc", "export GREETING=bashrc PATH=/usr/bin:/bin\n").parent
    tool.env["HOME"] = str(home)
    job = f"resources: {{gpus: 1}}\nenvironment: {{python: {{venv: {venv}}}}}\nvariables: {{GREETING: job}}\n"
    tool.file("j.yaml", job + "command: [python, train.py]\n")
    with terminal(tool, "j.yaml") as shell:
        shell.expect(r"\(job \d+")
        shell.type("echo $GREETING $VIRTUAL_ENV ${PATH%%:*}.; exit\n")
        shell.expect(r"job /venv /venv/bin\.\n")
        assert shell.code() == 0


@pytest.mark.parametrize(
    "words", [(), ("--jupyter", "--set", "environment.modules=none")], ids=["shell", "server"]
)
def test_ctrl_c_in_the_queue_withdraws_the_request(tool: Tool, words: tuple[str, ...]) -> None:
    with terminal(tool, "--gpus", "1", "--sbatch", "begin=now+1hour", *words) as shell:
        job = shell.expect(r"job (\d+) waits in the queue \(BeginTime")[1]
        shell.type("\x03")
        assert shell.code() == 130
    assert f"job {job} was withdrawn" in shell.shown
    assert (tool.jobs_here(), list(tool.work.iterdir())) == ([], [])
    assert tool.slurm.wait_for(job) == "CANCELLED"


def test_ctrl_c_in_the_shell_ends_what_runs_there_and_not_the_shell(tool: Tool) -> None:
    with terminal(tool, "--gpus", "1") as shell:
        shell.expect(r"\(job \d+")
        shell.type("sh -c 'echo up$((6 * 7)); sleep 600'\n")
        shell.expect("up42")  # it is in the foreground by now
        shell.type("\x03")
        shell.expect(r"\^C[\s\S]*\(job \d+")  # what is typed with it, the terminal throws away
        shell.type("echo still=$((40 + 2)); exit\n")
        shell.expect("still=42")
        shell.code()
    assert (tool.jobs_here(), list(tool.work.iterdir())) == ([], [])


def test_whoever_is_told_to_end_gives_the_node_back(tool: Tool) -> None:
    argv = [sys.executable, "-m", "slurmgpu", "shell", "-A", "mygroup", "-t", "10", "--gpus", "1"]
    with subprocess.Popen(
        [*argv, "--", "sh", "-c", "echo there; sleep 600"],
        cwd=tool.work,
        env=tool.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "there\n"
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=120)
    assert running.returncode == 143
    assert "was given back" in said
    assert (tool.jobs_here(), list(tool.work.iterdir())) == ([], [])


def test_a_refused_request_is_told_in_slurms_words(tool: Tool) -> None:
    done = tool("shell", "-A", "nobody", "--gpus", "1", "--", "true")
    assert done.returncode == 1
    assert "Invalid account" in done.stderr
    assert (tool.jobs_here(), list(tool.work.iterdir())) == ([], [])


def test_in_a_job_it_says_where_it_is(tool: Tool) -> None:
    argv = ["srun", "-N1", "-A", "mygroup", sys.executable, "-m", "slurmgpu", "shell", "--gpus", "1"]
    done = tool.slurm.run(argv, env=tool.env, cwd=tool.work, timeout=120)
    assert done.returncode == 1
    assert re.search(r"this is a shell of job \d+ already, on node\d", done.stderr)


@pytest.mark.long
def test_the_end_is_announced_at_the_terminal(tool: Tool) -> None:
    with terminal(tool, "--gpus", "1", "-t", "2") as shell:
        job = shell.expect(r"\(job (\d+)")[1]
        shell.expect(f"slurmgpu: job {job} ends in 1 min", seconds=120)
        shell.type("exit\n")
        assert shell.code() == 0
