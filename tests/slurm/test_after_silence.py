"""What can be known after Slurm was silent, or after it has forgotten: job ids and exit codes, from a real one."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slurmgpu.files.run_record import read_run
from slurmgpu.jobs.look import status
from slurmgpu.jobs.runs import run_of_job, runs_that_ended
from slurmgpu.jobs.select import current_user, select
from slurmgpu.jobs.wait import Ended, exit_code
from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.slurm import Slurm
from tests.slurm.sandbox_user import wait_until
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Tool

pytestmark = pytest.mark.slurm

TIMED_OUT = "slurm_load_jobs error: Socket timed out on send/recv operation"


def a_silent_slurm(tool: Tool, folder: Path) -> dict[str, str]:
    """Variables with which requests reach Slurm and no reply of it comes back."""
    sbatch = shutil.which("sbatch", path=tool.env["PATH"])
    folder.mkdir()
    for name in ("sbatch", "squeue", "sacct"):
        first = f'"{sbatch}" "$@" >/dev/null; ' if name == "sbatch" else ""
        (folder / name).write_text(f"#!/bin/sh\n{first}echo '{name}: error: {TIMED_OUT}' >&2; exit 1\n")
        (folder / name).chmod(0o755)
    return tool.env | {"PATH": f"{folder}:{tool.env['PATH']}"}


def a_lost_submission(tool: Tool, silent: dict[str, str]) -> Path:
    """The run directory of a held job whose id nobody was told."""
    lost = tool("submit", "--gpus", "1", "--hold", "--job-name", "lost", "--", "true", env=silent)
    assert lost.returncode == 3, lost.stderr
    (run_dir,) = (tool.work / "runs").iterdir()
    assert f"`slurmgpu runs settle {run_dir}` finds out" in lost.stderr
    assert read_run(run_dir).job_id is None
    return run_dir


def test_the_next_command_finds_the_job_of_a_lost_reply(slurm: ThrowawaySlurm, tmp_path: Path) -> None:
    asks: list[tuple[str, ...]] = [("runs", "settle"), ("cancel", "RUN"), ("status",)]
    tools = []
    for number in range(len(asks)):
        (tmp_path / str(number)).mkdir()
        tools.append(Tool(slurm, tmp_path / str(number)))
    silent = a_silent_slurm(tools[0], tmp_path / "bin")
    with ThreadPoolExecutor() as pool:
        runs = list(pool.map(a_lost_submission, tools, [silent] * len(tools)))
    still = tools[0]("runs", "settle", env=silent)
    assert (still.returncode, read_run(runs[0]).state) == (3, "unknown")
    for tool, run_dir, words in zip(tools, runs, asks, strict=True):
        tool(*[str(run_dir) if word == "RUN" else word for word in words])
        record = read_run(run_dir)
        listed = slurm.run(["squeue", "-h", "-t", "all", "-n", "lost", "-o", "%i %o"]).stdout
        (row,) = [line for line in listed.splitlines() if line.endswith(record.script_path)]
        assert (record.state, record.cluster) == ("submitted", "throwaway")
        assert record.job_id == int(row.split()[0])
        slurm.run(["scancel", str(record.job_id)])
    assert f"job {read_run(runs[0]).job_id}" in tools[0]("runs", "settle", str(runs[0])).stdout


COMMANDS = {
    "137": ("bash", "-c", "exit 137"),
    "255": ("bash", "-c", "exit 255"),
    "128": ("bash", "-c", "exit 128"),
    "9": ("bash", "-c", "exit 9"),
    "srun": ("bash", "-c", "kill -KILL $$"),
}


def listing(client: Slurm) -> list[JobStatus]:
    """What `status` lists without a job that is named."""
    run_for = runs_that_ended(lambda folder: folder / "runs")
    return status(client, user=current_user(), run_for=run_for).jobs


def test_exit_codes_are_whole_from_accounting_alone(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 25.05 sacct takes 128 off; the script's own record and its steps' exit code know better."""
    client = Slurm(env=tool.env)
    runs: dict[str, Path] = {}
    for name, command in COMMANDS.items():
        launcher = ("--launch", "srun") if name == "srun" else ()
        made = tool.submit("--gpus", "1", "--job-name", f"code-{name}", *launcher, "--", *command)
        runs[name] = made.run_dir
    monkeypatch.setattr(Slurm, "queue", lambda *_: ([], []))  # it has forgotten them

    def ended(word: str) -> JobStatus:
        report = status(
            client,
            user=current_user(),
            selections=select([word]),
            run_for=lambda job: run_of_job(job, lambda folder: folder / "runs"),
        )
        return report.jobs[0]

    wait_until(lambda: all(ended(str(run)).state is JobState.FAILED for run in runs.values()))
    expected = {"137": 137, "255": 255, "128": 128, "9": 9, "srun": 137}
    by_run = {name: exit_code(Ended([ended(str(run))])) for name, run in runs.items()}
    assert by_run == expected
    # Accounting may hear of a short job's start up to 5 s after its end. Until then its row has no work folder, by which its
    # run is found, and a question about a time, unlike one about an id, leaves out a job that has not begun.
    ids = {name: str(read_run(run).job_id) for name, run in runs.items()}
    wait_until(lambda: all(ended(job).work_dir is not None for job in ids.values()))
    by_id = {name: exit_code(Ended([ended(job)])) for name, job in ids.items()}
    assert by_id == expected
    jobs: dict[str, JobStatus] = {}

    def all_are_whole() -> bool:
        jobs.update({job.name: job for job in listing(client) if job.work_dir is not None})
        return {f"code-{name}" for name in expected} <= set(jobs)

    wait_until(all_are_whole)
    listed = {job.name: job.exit_code for job in jobs.values()}
    assert {name: listed[f"code-{name}"] for name in expected} == expected
    written = {name: next(run.glob("exit_code.*")).read_text() for name, run in runs.items()}
    assert {name: int(text) for name, text in written.items()} == expected
    # Without it, of a script that somebody submitted by hand, the exit code of its steps tells.
    next(runs["srun"].glob("exit_code.*")).unlink()
    wait_until(lambda: ended(str(runs["srun"])).exit_code == 137)  # a step may end after its batch script
