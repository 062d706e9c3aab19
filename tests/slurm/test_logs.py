"""`slurmgpu logs` against the real Slurm: a job's log is found by id, name and run directory, and followed to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Tool

pytestmark = pytest.mark.slurm


@pytest.fixture
def tool(slurm: ThrowawaySlurm, tmp_path: Path) -> Tool:
    return Tool(slurm, tmp_path)


def submit(tool: Tool, script: str, *options: str) -> str:
    done = tool("submit", "--gpus=1", "-t", "5", "-J", "talker", *options, "--", "bash", "-c", script)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_finished_jobs_log_is_shown_by_id_name_and_run_directory(tool: Tool) -> None:
    job = submit(tool, "echo one; echo two; echo three", "--wait")
    (run,) = (tool.work / "runs").iterdir()
    for word in (job, "talker", str(run)):
        shown = tool("logs", word)
        assert (shown.returncode, shown.stdout) == (0, "one\ntwo\nthree\n"), shown.stderr
    assert tool("logs", "-n", "1", job).stdout == "three\n"
    assert tool("logs", "--path", job).stdout == f"{run}/logs/{job}.out\n"


def test_a_running_jobs_log_is_followed_until_it_ends(tool: Tool) -> None:
    job = submit(tool, "for i in 1 2 3; do echo line $i; sleep 1; done")
    shown = tool("logs", "--follow", job)
    assert (shown.returncode, shown.stdout) == (0, "line 1\nline 2\nline 3\n"), shown.stderr
    assert "COMPLETED" in tool("status", job).stdout


def test_a_waiting_job_has_no_log_yet_and_says_so(tool: Tool) -> None:
    job = submit(tool, "echo never", "--hold")
    shown = tool("logs", job)
    assert shown.stdout == ""
    assert "is not there yet; it is PENDING (JobHeldUser)" in shown.stderr
    tool("cancel", job)


def test_the_tasks_of_an_array_have_a_log_each(tool: Tool) -> None:
    job = submit(tool, "echo task $SLURM_ARRAY_TASK_ID", "-a", "0-1", "--wait")
    shown = tool("logs", job)
    assert f"==> job {job}_0: " in shown.stdout
    assert "task 0\n" in shown.stdout
    assert "task 1\n" in shown.stdout
    assert tool("logs", f"{job}_1").stdout == "task 1\n"
    refused = tool("logs", "--follow", job)
    assert refused.returncode == 2
    assert "--follow shows one log" in refused.stderr


def test_a_job_that_is_not_there_is_an_error(tool: Tool) -> None:
    shown = tool("logs", "999999")
    assert shown.returncode == 1
    assert "999999: Slurm knows no such job of yours" in shown.stderr


def test_a_run_directory_shows_its_log_without_slurm(tool: Tool) -> None:
    job = submit(tool, "echo kept", "--wait")
    (run,) = (tool.work / "runs").iterdir()
    nowhere = tool.work / "nowhere.conf"
    text = (tool.slurm.folder / "slurm.conf").read_text()
    nowhere.write_text(text.replace(f"SlurmctldPort={_port(text)}", "SlurmctldPort=1") + "MessageTimeout=2\n")
    shown = tool("logs", str(run), env={"SLURM_CONF": str(nowhere)})
    assert shown.stdout == "kept\n", (job, shown.stderr)


def _port(text: str) -> str:
    return text.split("SlurmctldPort=")[1].split()[0]
