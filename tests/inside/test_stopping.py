"""However a job ends, under every launcher: nothing of it is left, and Slurm has the right reason."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.inside.apptainer import OPTIONS, host_binds
from tests.inside.test_launchers import AS_ROOT, SCRIPTS
from tests.inside.venvs import venv_with
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Submitted, Tool

GRACE = 10  # seconds after which nothing of a job may be left


class Launcher(NamedTuple):
    """A launcher, what it needs, and the exit code of a job in which a process ends with 3.

    srun returns the highest code, 143 of the processes that it ended; torchrun and what builds on it return 1.
    """

    name: str
    requirement: str | None = None
    code: int = 143
    script: str = "linger.py"
    ready: int = 4
    """Processes that say that they are there."""
    failing: str = "3"
    """The rank that is to fail."""
    job: str | None = None
    """A job file, for a form that no option asks for; it has the launchers itself."""
    image: bool = False
    """Whether it all runs in an image of Apptainer's."""


SIDE_BY_SIDE = """
resources: {nodes: 2, gpus_per_node: 2, cpus_per_task: 4}
steps:
  one: {command: [python, linger.py], nodes: 1, gpus: 2, launch: srun}
  two: {command: [python, linger.py], nodes: 1, gpus: 2, launch: srun}
"""
HETEROGENEOUS = """
resources: {nodes: 2, cpus_per_task: 2}
components: [{resources: {nodes: 2, gpus_per_node: 1, cpus_per_gpu: 2}}]
steps:
  loader: {command: [python, linger.py], launch: srun}
  trainer: {command: [python, linger.py], component: 1, launch: srun}
"""


LAUNCHERS = [
    Launcher("srun"),
    Launcher("torchrun", code=1),  # torchrun's own: it tells the rank's in the log
    pytest.param(Launcher("accelerate", "accelerate==1.15.0", code=1), marks=pytest.mark.heavy),
    pytest.param(Launcher("deepspeed", code=1), marks=pytest.mark.heavy),
    Launcher("mpi"),
    Launcher("plain", code=3, ready=1, failing="0"),
    Launcher(
        "steps", code=3, job=SIDE_BY_SIDE, failing="1"
    ),  # the script's own: that of the task that ended first
    Launcher("heterogeneous", code=3, job=HETEROGENEOUS, failing="1"),
    pytest.param(Launcher("srun", image=True), marks=pytest.mark.heavy),
    pytest.param(Launcher("ray", "ray[train]", script="linger_ray.py"), marks=pytest.mark.heavy),
]
if shutil.which("mpirun"):
    LAUNCHERS.append(Launcher("mpirun", code=3))


@pytest.fixture
def start(tool: Tool, request: pytest.FixtureRequest) -> Callable[..., Submitted]:
    """Submit a job on 2 nodes with 2 processes each, that waits for ever."""

    def submit(launcher: Launcher, *options: str, **env: str) -> Submitted:
        for file in SCRIPTS.glob("linger*.py"):
            shutil.copy(file, tool.work)
        if launcher.requirement:
            venv = venv_with(launcher.requirement, beside=True)
            env["PATH"] = f"{venv}/bin:{tool.env['PATH']}"
        if launcher.job:
            tool.file("job.yaml", launcher.job)
            return tool.submit("job.yaml", "-t", "10", *options, env=AS_ROOT | env)
        if launcher.image:
            image, program = request.getfixturevalue("image"), request.getfixturevalue("apptainer")
            env["PATH"] = f"{program}:{tool.env['PATH']}"
            container = {"image": str(image), "binds": host_binds(tool.work), "options": OPTIONS}
            options = ("--set", f"environment={json.dumps({'container': container})}", *options)
        size = ("--nodes", "2", "--gpus-per-node", "2", "--cpus-per-gpu", "2", "-t", "10")
        python = sys.executable if launcher.image else "python"
        words = ("--launch", launcher.name, *size, *options, "--", python, launcher.script)
        return tool.submit(*words, env=AS_ROOT | env)

    return submit


def logs_of(job: Submitted) -> str:
    """What the job and its steps have printed so far."""
    return "".join(path.read_text() for path in sorted((job.run_dir / "logs").glob(f"{job.job_id}*.out")))


def until_ready(slurm: ThrowawaySlurm, job: Submitted, processes: int) -> None:
    """Wait until all processes are there."""
    deadline = time.monotonic() + 180
    while (said := logs_of(job)).count("ready") < processes:
        assert time.monotonic() < deadline, said
        assert slurm.run(["squeue", "--noheader", "--job", str(job.job_id)]).stdout.strip(), said
        time.sleep(0.5)


def left_of(job_id: int) -> list[str]:
    """The command lines of the processes that have the job's id in their environment, Slurm's own apart."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if (
            f"SLURM_JOB_ID={job_id}".encode() in environment.split(b"\0")
            and "slurmstepd" not in line
            and line
        ):
            found.append(line)
    return found


def ended(slurm: ThrowawaySlurm, job: Submitted) -> tuple[str, str]:
    """The job's state and exit code, once it has ended and nothing of it has been left for some seconds."""
    state = slurm.wait_for(job.job_id, timeout=300)
    deadline = time.monotonic() + GRACE
    while left := left_of(job.job_id):
        # A worker of Ray that is just starting asks for its head for a minute (RAY_gcs_rpc_server_reconnect_timeout_s).
        assert time.monotonic() < deadline + 60 * all("/ray" in one for one in left), left
        time.sleep(0.5)
    record = slurm.run(["scontrol", "show", "job", str(job.job_id)]).stdout
    code = re.search(r"ExitCode=(\d+:\d+)", record)
    assert code, record
    return state, code[1]


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda one: f"{one.name}{'-in-apptainer' * one.image}")
class TestNothingIsLeft:
    def test_of_a_cancelled_job(
        self, launcher: Launcher, start: Callable[..., Submitted], slurm: ThrowawaySlurm
    ) -> None:
        job = start(launcher)
        until_ready(slurm, job, launcher.ready)
        slurm.run(["scancel", str(job.job_id)])
        assert ended(slurm, job)[0] == "CANCELLED"

    @pytest.mark.heavy  # a minute each
    def test_of_a_job_whose_time_is_up(
        self, launcher: Launcher, start: Callable[..., Submitted], slurm: ThrowawaySlurm
    ) -> None:
        job = start(launcher)
        until_ready(slurm, job, launcher.ready)
        slurm.run(["scontrol", "update", f"JobId={job.job_id}", "TimeLimit=1"])
        assert ended(slurm, job)[0] == "TIMEOUT"

    def test_of_a_job_in_which_a_process_fails(
        self, launcher: Launcher, start: Callable[..., Submitted], slurm: ThrowawaySlurm
    ) -> None:
        job = start(launcher, FAILING=launcher.failing)
        assert ended(slurm, job) == ("FAILED", f"{launcher.code}:0"), logs_of(job)

    def test_of_a_job_whose_set_up_fails(
        self, launcher: Launcher, start: Callable[..., Submitted], slurm: ThrowawaySlurm
    ) -> None:
        job = start(launcher, "--set", "environment={python: {venv: $HOME/no-such-venv}}")
        assert ended(slurm, job) == ("FAILED", "1:0")
        assert "no-such-venv" in job.log
        assert "ready" not in logs_of(job)
