"""status, cancel and submission against the real Slurm of this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slurmgpu.cli.cancel import command as cancel_command
from slurmgpu.cli.status import command as status_command
from slurmgpu.jobs.look import status
from slurmgpu.jobs.select import current_user, select
from slurmgpu.jobs.view import reason
from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.slurm import Slurm
from slurmgpu.slurm import requests as sbatch
from slurmgpu.slurm.commands import Answer, call
from tests.recorded import said
from tests.slurm.sandbox_user import wait_until
from tests.slurm.throwaway import ThrowawaySlurm

pytestmark = pytest.mark.slurm

SLEEP = "#!/bin/bash\nsleep 300\n"


@pytest.fixture
def client(slurm: ThrowawaySlurm) -> Slurm:
    return Slurm(env=slurm.env)


def submit(client: Slurm, folder: Path, *options: str, text: str = SLEEP) -> int:
    script = folder / "script.sbatch"
    script.write_text(text)
    outcome = sbatch.submit(client, script, options, cwd=folder)
    assert isinstance(outcome, sbatch.Accepted)
    return outcome.job_id


def watch(client: Slurm, word: str, done: Callable[[JobStatus], bool]) -> JobStatus:
    """The job's status once `done` holds; fails with the last one after three minutes."""
    deadline = time.monotonic() + 180
    while True:
        found = status(client, user=current_user(), selections=select([word])).jobs[0]
        if done(found):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.3)


def is_running(job: JobStatus) -> bool:
    return job.state is JobState.RUNNING


def test_a_job_that_is_cancelled_while_it_is_put_back_stays_cancelled(
    slurm: ThrowawaySlurm, tmp_path: Path
) -> None:
    """Accounting then has no row but that of the start that was put back, and the queue forgets the job."""
    client = Slurm(env=slurm.env)
    job_id = submit(client, tmp_path, "--requeue", "--time=5")
    watch(client, str(job_id), is_running)
    slurm.run(["sh", "-c", f"scontrol requeue {job_id} && scancel {job_id}"]).check_returncode()

    def forgetful(argv: Sequence[str], **how: Any) -> Answer:
        return said("") if argv[0] == "squeue" else call(argv, **how)

    later = Slurm(forgetful, slurm.env)
    found = watch(later, str(job_id), lambda job: job.end is not None)
    assert (found.source, found.state) == ("sacct", JobState.CANCELLED)
    assert str(reason(found)).startswith("cancelled")


def test_a_jobs_name_cannot_hold_another_job(client: Slurm, tmp_path: Path) -> None:
    """Slurm prints a name as it is: with separators and newlines in it, a row of a job that is not there."""
    columns = ["999999", "999999", *["x"] * 5, "COMPLETED", *["x"] * 20]
    name = "mine\x1f/\x1f\x1f\x1f\x1f\n" + "\x1f".join(columns) + "\x1f\n7\x1f7\x1f"
    job_id = submit(client, tmp_path, "--hold", f"--job-name={name}")
    try:
        found = status(client, user=current_user())
        assert str(job_id) in {job.job_id for job in found.jobs}
        assert "999999" not in {job.job_id for job in found.jobs}
        (job,) = [job for job in found.jobs if job.job_id == str(job_id)]
        assert job.name.startswith("mine\x1f")
        assert job.state is JobState.PENDING
    finally:
        client.ask(["scancel", str(job_id)])


def test_a_job_is_seen_cancelled_and_seen_to_be_cancelled(client: Slurm, tmp_path: Path) -> None:
    job_id = submit(client, tmp_path, "--job-name=a|b ü", "--gres=gpu:2", "--output=log_%j.txt")
    running = watch(client, str(job_id), is_running)
    assert (running.name, running.gpus, running.nodes, running.cluster) == ("a|b ü", 2, 1, "throwaway")
    assert running.stdout == f"{tmp_path}/log_{job_id}.txt"
    assert running.script == f"{tmp_path}/script.sbatch"
    wait_until(Path(running.stdout).exists)  # the controller calls it running before its node has begun

    cancelled = CliRunner().invoke(cancel_command, [str(job_id)], obj=client, catch_exceptions=False)
    assert f"job {job_id} is" in cancelled.stdout
    ended = watch(client, str(job_id), lambda job: job.state.is_final)
    assert ended.state is JobState.CANCELLED

    # Accounting follows within a second or so; then it is the one that knows who cancelled.
    watch(client, str(job_id), lambda job: job.state_text.startswith("CANCELLED by"))
    shown = CliRunner().invoke(status_command, ["--json", str(job_id)], obj=client, catch_exceptions=False)
    document = json.loads(shown.stdout)
    assert document["cluster"] == "throwaway"
    assert [job["state"] for job in document["jobs"]] == ["CANCELLED"]
    again = CliRunner().invoke(cancel_command, [str(job_id)], obj=client, catch_exceptions=False)
    assert "has already finished: CANCELLED" in again.stdout


def test_what_a_running_job_uses_is_measured(client: Slurm, tmp_path: Path) -> None:
    job_id = submit(client, tmp_path)
    watch(client, str(job_id), is_running)
    deadline = time.monotonic() + 180
    while True:
        report = status(client, user=current_user(), selections=select([str(job_id)]), live=True)
        use = report.jobs[0].live
        if use is not None and use.max_rss:
            break
        assert time.monotonic() < deadline, report
        time.sleep(1)
    assert use.max_rss > 100_000
    client.ask(["scancel", str(job_id)])
