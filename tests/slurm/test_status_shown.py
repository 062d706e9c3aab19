"""What `slurmgpu status` shows a user of real jobs: how they ended, why they wait, arrays in one line."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.slurm.sandbox_user import wait_until
from tests.slurm.tool import Tool

pytestmark = pytest.mark.slurm


@pytest.fixture
def forgetful(tool: Tool, tmp_path: Path) -> dict[str, str]:
    """An environment in which the queue has forgotten all jobs, as it does some minutes after their end.

    Accounting is asked anew there: a shared answer may be from before the end, which a queue of minutes ago never meets.
    """
    folder = tmp_path / "forgetful"
    folder.mkdir()
    (folder / "squeue").write_text("#!/bin/sh\nexit 0\n")
    (folder / "squeue").chmod(0o755)
    (tmp_path / "answers").mkdir()
    return {"PATH": f"{folder}:{tool.env['PATH']}", "XDG_RUNTIME_DIR": str(tmp_path / "answers")}


def reason_of(tool: Tool, job: int, env: dict[str, str]) -> str:
    header, line = tool("status", str(job), env=env).stdout.splitlines()[1:]
    return line[header.index("REASON") :]


def test_how_a_job_ended_is_said_when_the_queue_has_forgotten_it(
    tool: Tool, forgetful: dict[str, str]
) -> None:
    failed = tool.submit("--gpus=1", "-t", "5", "--wait", "--", "bash", "-c", "exit 3").job_id
    absent = tool.submit("--gpus=1", "-t", "5", "--wait", "--", "no-such-command").job_id
    cancelled = tool.submit("--gpus=1", "-t", "5", "--hold", "--", "true").job_id
    tool("cancel", str(cancelled))
    for job in (failed, absent, cancelled):
        tool.slurm.wait_for(job, complete_row=True)
    for env in ({}, forgetful):
        assert reason_of(tool, failed, env) == "the command failed (exit code 3)"
        assert reason_of(tool, absent, env) == "there is no command no-such-command"
        assert reason_of(tool, cancelled, env) == "cancelled by you, before it started"


def test_a_command_that_was_killed_is_no_command_that_failed(tool: Tool, forgetful: dict[str, str]) -> None:
    done = tool.submit("--gpus=1", "-t", "5", "--wait", "--", "bash", "-c", "kill -9 $$")
    job = done.job_id
    tool.slurm.wait_for(job, complete_row=True)
    assert reason_of(tool, job, {}) == "the command was ended by SIGKILL (exit code 137)"
    remembered = reason_of(tool, job, forgetful)
    assert remembered in (  # The second, of releases whose sacct cuts exit codes.
        "the command was ended by SIGKILL (exit code 137)",
        "the command failed (exit code 9, or 137: SIGKILL; older releases of sacct show both as 9)",
    )


def test_a_job_that_a_qos_holds_back_says_which_limit_it_is(tool: Tool) -> None:
    manage = ["sacctmgr", "-i"]
    tool.slurm.run([*manage, "add", "qos", "tight"])
    tool.slurm.run([*manage, "modify", "qos", "tight", "set", "MaxTRESPerUser=gres/gpu=1"])
    tool.slurm.run(
        [*manage, "modify", "user", tool.slurm.run(["id", "-un"]).stdout.strip(), "set", "qos+=tight"]
    )
    job = tool.submit("--gpus=2", "-q", "tight", "-t", "5", "--", "true").job_id
    said = "your jobs use as many GPUs or other GRES as QOS tight allows"
    wait_until(lambda: said in reason_of(tool, job, {}), seen=lambda: reason_of(tool, job, {}))
    assert "QOSMaxGRESPerUser" in reason_of(tool, job, {})
    tool("cancel", str(job))


def test_an_array_is_one_line_that_counts_its_tasks(tool: Tool) -> None:
    done = tool.submit(
        "--gpus=1", "-t", "5", "-a", "0-3", "--wait", "--", "bash", "-c", "exit $((SLURM_ARRAY_TASK_ID==2))"
    )
    job = str(done.job_id)
    line = next(line for line in tool("status").stdout.splitlines() if line.startswith(f"{job} "))
    assert line.endswith("3/4 tasks done, 1 failed (2); the command failed (exit code 1)")
    _, summary, _, *each = tool("status", job).stdout.splitlines()
    assert summary == f"array {job}: 3/4 tasks done, 1 failed (2)"
    assert [line.split()[0] for line in each] == [f"{job}_{task}" for task in range(4)]
    failed = tool("status", "--state", "failed", job).stdout.splitlines()[-1]
    assert failed.split()[0] == f"{job}_2"
    assert len(json.loads(tool("status", "--json", job).stdout)["jobs"]) == 4
    wrong = tool("status", "--state", "faild", job)
    assert wrong.returncode == 2
    assert "--state faild: is not a state of a job" in wrong.stderr


def test_since_leaves_out_what_ended_before_although_the_queue_still_lists_it(tool: Tool) -> None:
    job = tool.submit("--gpus=1", "-t", "5", "-J", "early", "--wait", "--", "true").job_id
    tool.slurm.wait_for(job)
    (ended,) = (datetime.fromisoformat(one["end"]) for one in tool.status(job))
    after = ended + timedelta(seconds=2)
    while datetime.now(timezone.utc) < after:
        time.sleep(0.2)
    assert " early " in tool("status", "--since", ended.isoformat()).stdout
    assert " early " not in tool("status", "--since", after.isoformat()).stdout
    assert " early " in tool("status", "--since", after.isoformat(), str(job)).stdout


def test_a_job_that_waits_for_another_names_it_and_says_when_it_waits_in_vain(tool: Tool) -> None:
    first = tool.submit("--gpus=1", "-t", "5", "--hold", "--", "true").job_id
    second = tool.submit("--gpus=1", "-t", "5", "-d", f"afterok:{first}", "--", "true").job_id
    assert reason_of(tool, second, {}) == f"Dependency: waits for job {first} to end well"
    assert tool.status(second)[0]["dependency"] == f"afterok:{first}(unfulfilled)"
    tool("cancel", str(first))
    said = f"will never start: it waits for job {first} to end well"
    wait_until(lambda: said in reason_of(tool, second, {}), seen=lambda: reason_of(tool, second, {}))
    assert "DependencyNeverSatisfied" in reason_of(tool, second, {})
    tool("cancel", str(second))


@pytest.mark.long
def test_what_an_ended_job_used_is_shown_and_what_was_not_measured_is_not_zero(tool: Tool) -> None:
    busy = "import time; x = bytearray(200 << 20); end = time.time() + 8\nwhile time.time() < end: pass"
    tool.file("busy.py", busy)
    job = tool.submit("--gpus=1", "-t", "5", "--wait", "--", "python", "busy.py").job_id
    short = tool.submit("--gpus=1", "-t", "5", "--wait", "--", "true").job_id
    for one in (job, short):
        tool.slurm.wait_for(one)
        tool.slurm.wait_for_steps(one, ["batch"], "MaxRSS")
    (used,) = (one["used"] for one in tool.status(job))
    assert used["max_rss"] > 200 << 20
    assert 0 < used["average_cpus"] < 1.5
    assert used["gpu_memory"] is None
    header, line = tool("status", str(job)).stdout.splitlines()[1:]
    assert "MAX RSS    CPUS USED" in header
    assert " MiB " in line
    (used,) = (one["used"] for one in tool.status(short))
    assert used["max_rss"] is None
    assert " n/a " in tool("status", str(short)).stdout


def test_a_failed_step_of_a_script_that_ended_well_is_told(tool: Tool) -> None:
    job = tool.submit(
        "--gpus=1", "-t", "5", "--wait", "--", "bash", "-c", "srun bash -c 'exit 4'; true"
    ).job_id
    tool.slurm.wait_for(job)
    # Accounting hears of the steps a moment later.
    said = "the script ended well, but a step of it with exit code 4"
    wait_until(lambda: reason_of(tool, job, {}) == said)
