"""The command line as a user types it, against the throwaway Slurm, with empty settings of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import ready
from tests.slurm.throwaway import ThrowawaySlurm

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Submitted:
    """A job that ``slurmgpu submit --json`` has submitted."""

    job_id: int
    run_dir: Path
    code: int
    """The command's exit code: with --wait the job's own."""
    stderr: str

    @property
    def log(self) -> str:
        """What the job printed, in the run directory's log."""
        return self.log_file.read_text()

    @property
    def log_file(self) -> Path:
        """The run directory's log, which is there a moment after the controller calls the job running."""
        return self.run_dir / "logs" / f"{self.job_id}.out"

    def wait_for_log(self, text: str, times: int = 1) -> None:
        """Wait until the log is there and has the text so many times."""
        deadline = time.monotonic() + 180
        while not self.log_file.exists() or self.log.count(text) < times:
            assert time.monotonic() < deadline, self.log if self.log_file.exists() else self.log_file
            time.sleep(0.1)

    def wait_for_exit_code(self) -> int:
        """Wait until the batch script has cleared away and written its exit code, the last that it does."""
        file, deadline = self.run_dir / f"exit_code.{self.job_id}", time.monotonic() + 180
        while not file.exists() or not file.read_text().endswith("\n"):
            assert time.monotonic() < deadline, self.log
            time.sleep(0.1)
        return int(file.read_text())


class Tool:
    """``slurmgpu`` in a work folder; ``env`` may be added to before it is called."""

    def __init__(self, slurm: ThrowawaySlurm, folder: Path) -> None:
        self.slurm = slurm
        self.work = folder / "work"
        self.config = folder / "config" / "slurmgpu"
        self.work.mkdir()
        self.config.mkdir(parents=True)
        (folder / "session").mkdir()
        # Jobs inherit it: `python` and `python3` are the ones that run these tests, one thread each.
        self.env = slurm.env | {
            "PATH": f"{Path(sys.executable).parent}:{slurm.env['PATH']}", "PYTHONPATH": str(ROOT),
            "XDG_CONFIG_HOME": str(folder / "config"), "XDG_RUNTIME_DIR": str(folder / "session"),
            "XDG_STATE_HOME": str(folder / "state"), "SLURMGPU_SITE": str(folder / "site"),
            "OMP_NUM_THREADS": "1", "NO_COLOR": "1",
        }  # fmt: skip

    def __call__(
        self, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run ``slurmgpu`` with these arguments, whatever its exit code."""
        command = [sys.executable, "-m", "slurmgpu", *arguments]
        return ready.run(command, self.env | dict(env or {}), cwd=cwd or self.work, timeout=400)

    def submit(
        self, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Submitted:
        """Submit what must be accepted."""
        done = self("submit", "--json", *arguments, env=env, cwd=cwd)
        assert done.stdout.startswith("{"), done
        run = json.loads(done.stdout)
        return Submitted(run["job_id"], Path(run["run_dir"]), done.returncode, done.stderr)

    def submit_refused(self, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        """Submit what must end with exit code 1, and leave neither a job nor a run directory; its message."""
        done = self("submit", *arguments, env=env)
        assert (done.returncode, done.stdout) == (1, ""), done
        assert not (self.work / "runs").exists()
        assert self.jobs_here() == []
        return done.stderr

    def status(self, job: str | int) -> list[dict[str, Any]]:
        """What ``slurmgpu status --json`` says of a job, one entry for each of its lines."""
        done = self("status", str(job), "--json")
        assert done.returncode == 0, done
        jobs: list[dict[str, Any]] = json.loads(done.stdout)["jobs"]
        return jobs

    def wait_for_state(self, job: str | int, *states: str) -> dict[str, Any]:
        """Ask until the job has one of these states; its entry."""
        deadline = time.monotonic() + 180
        while True:
            (found,) = self.status(job)
            if found["state"] in states:
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.3)

    def jobs_here(self) -> list[str]:
        """The ids of the waiting and running jobs whose work folder is this tool's."""
        states = "PENDING,CONFIGURING,RUNNING,SUSPENDED"  # a job that is COMPLETING has been given back
        answer = self.slurm.run(["squeue", "-h", "-r", "-t", states, "-o", "%i %Z"]).stdout
        rows = [line.split(" ", 1) for line in answer.split("\n") if line]
        return [number for number, folder in rows if folder == str(self.work)]

    def file(self, name: str, text: str) -> Path:
        """Write a file into the work folder."""
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path
