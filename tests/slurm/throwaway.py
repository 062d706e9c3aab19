"""A throwaway Slurm for the tests: a sandbox in a temporary folder that ends with the test runner.

Everything lives in one temporary folder, listens on loopback where it can, and runs as the current user,
root or not.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from slurmgpu.sandbox.configuration import Shape, default_shape
from slurmgpu.sandbox.programs import missing_programs, program, scrubbed, slurm_release
from slurmgpu.sandbox.starting import client_env, start

__all__ = ["ThrowawaySlurm", "missing_programs", "scrubbed"]

_TERMINAL = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
    "REVOKED", "TIMEOUT",
}  # fmt: skip
_PATH_OF_JOBS = "/usr/local/bin:/usr/bin:/bin"


def _shape() -> Shape:
    # Tests add accounts and QOS of their own.
    shape = default_shape(nodes=4, gpus=4, gpu_type="a100", cpus=16, memory_mib=64000)
    return shape.model_copy(update={"accounts": ("mygroup",), "qos": ()})


class ThrowawaySlurm:
    """A running throwaway Slurm; a context manager.

    ``env`` is this process's environment, scrubbed and pointed at the throwaway, for every command that talks
    to it. Raises SandboxFailed when it does not come up within ``start_timeout`` seconds.
    """

    def __init__(self, start_timeout: float = 180) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="throwaway-slurm-", dir=_short_folder())).resolve()
        self.env = client_env(self.folder)
        self._started = start(
            self.folder,
            name="throwaway",
            cluster="throwaway",
            shape=_shape(),
            accounting=True,
            seconds=start_timeout,
            on={"configured": self._configured},
        )
        self.version = self._started.state.version
        self.release = slurm_release(self.version)

    def _configured(self) -> None:
        """For a machine that is busy; and a job without the caller's environment is to find this Slurm's commands."""
        with (self.folder / "slurm.conf").open("a") as conf:
            conf.write("MessageTimeout=60\nBatchStartTimeout=120\nMinJobAge=3600\n")
        folder = Path(program("srun")).parent
        if shutil.which("srun", path=_PATH_OF_JOBS) == str(folder / "srun"):
            return
        prolog = self.folder / "path.sh"
        prolog.write_text(
            "#!/bin/sh\n"
            f'case ":$PATH:" in *:{folder}:*) ;; *) echo "export PATH={folder}:${{PATH:-{_PATH_OF_JOBS}}}" ;; esac\n'
        )
        prolog.chmod(0o755)
        with (self.folder / "slurm.conf").open("a") as conf:
            conf.write(f"TaskProlog={prolog}\n")

    def __enter__(self) -> ThrowawaySlurm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def run(self, argv: list[str], timeout: float = 60, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command against this Slurm; output is captured as text, a bad exit code raises nothing.

        ``env`` in ``options`` is added to the throwaway's environment, not put in its place.
        """
        env = self.env | options.pop("env", {})
        defaults: dict[str, Any] = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
        if "input" in options:
            del defaults["stdin"]
        return subprocess.run(argv, env=env, timeout=timeout, **(defaults | options))

    def wait_for(self, job_id: str | int, timeout: float = 180, complete_row: bool = False) -> str:
        """Wait until accounting knows the job's final state and its processes have ended; the state.

        Accounting hears of a short job's end up to 5 s before it hears of its start: until then its row lacks
        partition, QOS, work folder and submit line. ``complete_row`` waits for these, too.
        Raises TimeoutError with what scontrol says of the job.
        """
        deadline = time.monotonic() + timeout
        ask = ["sacct", "-X", "-n", "-P", "-j", str(job_id), "-o", "State,Partition"]
        while time.monotonic() < deadline:
            queue = self.run(["squeue", "-h", "-j", str(job_id), "-t", "all", "-o", "%T"])
            # A controller that is too busy to answer has not forgotten the job.
            answered = queue.returncode == 0 or "Invalid job id" in queue.stderr
            rows = [row.split("|") for row in self.run(ask).stdout.splitlines()]
            # sacct may say "CANCELLED by 1000"; squeue's COMPLETING means that processes still live.
            states = [state.split()[0] for state, _ in rows if state]
            complete = answered and (all(partition for _, partition in rows) or not complete_row)
            if states and complete and set(states) <= _TERMINAL and set(queue.stdout.split()) <= _TERMINAL:
                return states[0]
            time.sleep(0.2)
        job = self.run(["scontrol", "show", "job", str(job_id)])
        raise TimeoutError(f"job {job_id} did not end within {timeout} s\n{job.stdout}{job.stderr}")

    def wait_for_steps(
        self, job_id: str | int, steps: Iterable[str], field: str, timeout: float = 180
    ) -> dict[str, str]:
        """Wait until accounting knows how these steps of an ended job ended; their values of a field.

        A step is named by its name or its number. Accounting may hear of a step's end later than of its job's.
        """
        deadline = time.monotonic() + timeout
        ask = ["sacct", "-n", "-P", "-j", str(job_id), "-o", f"JobID,JobName,State,{field}"]
        while True:
            found: dict[str, str] = {}
            for number, name, state, value in (
                row.split("|", 3) for row in self.run(ask).stdout.splitlines()
            ):
                if state and state.split()[0] in _TERMINAL and "." in number:
                    found |= {name: value, number.partition(".")[2]: value}
            if set(steps) <= set(found):
                return {step: found[step] for step in steps}
            if time.monotonic() > deadline:
                raise TimeoutError(self.run(ask).stdout)
            time.sleep(0.2)

    def wait_until_idle(self, timeout: float = 180) -> None:
        """Wait until no job of an earlier test holds a node."""
        deadline = time.monotonic() + timeout
        while set(self.run(["sinfo", "-h", "-o", "%T"]).stdout.split()) != {"idle"}:
            if time.monotonic() > deadline:
                raise TimeoutError(self.run(["squeue"]).stdout)
            time.sleep(0.2)

    def stop(self) -> None:
        """End every process of this Slurm, its jobs included, and delete its folder; may be called again."""
        self._started.end()


def _short_folder() -> str | None:
    # A Unix socket's path may have 107 bytes: a deep TMPDIR leaves too little for ours.
    return None if len(tempfile.gettempdir()) < 60 else "/tmp"
