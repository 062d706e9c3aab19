"""An interactive session: its request to Slurm, salloc while it runs, and an end that leaves no job in the queue."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from slurmgpu.errors import PlanError, SlurmGpuError
from slurmgpu.jobs.view import reason
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.models.run import JobStatus
from slurmgpu.models.units import Duration
from slurmgpu.shell.server import Server, read_server
from slurmgpu.slurm import NOT_OF_SALLOC, Slurm, current_user, hear, refusal

__all__ = ["DEFAULT_TIME", "Session", "as_session", "left_out", "step_of"]


FIRST_LOOK, SLOWEST_LOOK = 1.0, 30.0
_PATIENCE = 20.0
DEFAULT_TIME = Duration.parse("1:00:00")
"""Where the cluster refuses jobs without a time limit, and none is given."""


@dataclass
class Session:
    """An allocation with one step in it, as long as salloc lives."""

    slurm: Slurm
    process: subprocess.Popen[bytes]
    say: Callable[[str], None]
    """Receives the messages for a person."""
    job_id: int | None = None
    given: threading.Event = field(default_factory=threading.Event)
    words: list[str] = field(default_factory=list)
    """Lines printed before the nodes were given."""

    def __post_init__(self) -> None:
        self._terminal = None
        with suppress(termios.error, OSError):
            self._terminal = termios.tcgetattr(0)
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def wait_for_nodes(self) -> None:
        """Wait until Slurm has given the nodes, and report the reason meanwhile.

        Raises SlurmRefused or SlurmUnreachable where it never will.
        """
        pause, look, said = FIRST_LOOK, time.monotonic() + FIRST_LOOK, ""
        while not self.given.wait(0.1):
            if self.process.poll() is not None:
                self._reader.join(_PATIENCE)
                if self.given.is_set():
                    return
                raise refusal(self.words, self.process.returncode)
            if self.job_id is not None and time.monotonic() >= look:
                why = self._why_it_waits()
                if why != said:
                    self.say(f"job {self.job_id} waits in the queue{why}; Ctrl-C withdraws it")
                said, look = why, time.monotonic() + pause
                pause = min(pause * 1.3, SLOWEST_LOOK)

    def server(self) -> Server | None:
        """Wait until the step's server listens; None where the step ends without one."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            server = read_server(line.decode("utf-8", "replace"))
            if server is not None:
                threading.Thread(target=self.process.stdout.read, daemon=True).start()
                return server
            _write(line)
        return None

    def wait(self) -> int:
        """Wait for the step's end and return its exit code."""
        code = self.process.wait()
        self._reader.join(_PATIENCE)
        return code if code >= 0 else 128 - code

    def end(self) -> str:
        """End the session, see that no job is left, and return a sentence on the job's end.

        May be called at any time and more than once.
        """
        # Without Ctrl-C in between.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._end_process()
            self._reader.join(_PATIENCE)
            if self.process.stderr is not None:
                self.process.stderr.close()
            # Ended in the middle, srun leaves a terminal that shows no typing.
            if self._terminal is not None:
                with suppress(termios.error, OSError):
                    termios.tcsetattr(0, termios.TCSADRAIN, self._terminal)
            return self._after()
        finally:
            signal.signal(signal.SIGINT, before)

    def _end_process(self) -> None:
        steps: list[Callable[[], object]] = [self.process.terminate, self._cancel, self.process.kill]
        if self.process.stdin is not None:
            steps.insert(0, self._close_input)
        for step in steps:
            if self.process.poll() is not None:
                return
            with suppress(OSError, SlurmGpuError):
                step()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_PATIENCE)

    def _close_input(self) -> None:
        """The server on the node ends when its input does."""
        assert self.process.stdin is not None
        if not self.given.is_set():
            self.process.terminate()
        self.process.stdin.close()

    def _cancel(self) -> None:
        if self.job_id is not None:
            self.slurm.cancel([str(self.job_id)])

    def _after(self) -> str:
        if self.job_id is None:
            return "no job was made"
        name = f"job {self.job_id}"
        try:
            job = self._job()
            if job is not None and not job.state.is_final and job.state.value != "COMPLETING":
                self._cancel()
        except SlurmGpuError as error:
            return f"whether {name} has ended is not known: {error.message}; `slurmgpu cancel {self.job_id}` ends it"
        given = self.given.is_set()
        return f"{name} was given back" if given else f"{name} was withdrawn: nothing is left of it"

    def _job(self) -> JobStatus | None:
        jobs, _ = self.slurm.queue(current_user())
        return next((job for job in jobs if job.raw_id == self.job_id), None)

    def _why_it_waits(self) -> str:
        try:
            job = self._job()
        except SlurmGpuError:
            return ""  # the next look may tell
        why = reason(job) if job is not None and job.state.is_waiting else None
        return f" ({why})" if why else ""

    def _listen(self) -> None:
        """Read salloc's own lines, and pass on those of the step."""
        assert self.process.stderr is not None
        number, held, at_start = self.process.stderr.fileno(), b"", True
        while piece := os.read(number, 65536):
            *lines, held = (held + piece).split(b"\n")
            for line in lines:
                if not at_start or not self._hears(line.decode("utf-8", "replace")):
                    _write(line + b"\n")
                at_start = True
            # The rest may be a prompt that nobody ends: it is held back only if it may be salloc's.
            if held and not (at_start and (held.startswith(b"salloc: ") or b"salloc: ".startswith(held))):
                _write(held)
                held, at_start = b"", False
        if held:
            _write(held)

    def _hears(self, line: str) -> bool:
        """Take in a line, and return True if it was salloc's."""
        heard = hear(line)
        if heard is None:
            if not self.given.is_set():
                self.words.append(line)
            return False
        self.job_id = self.job_id or heard.job_id
        if heard.kind == "given":
            self.given.set()
        elif heard.kind == "else":
            if not self.given.is_set():
                self.words.append(line)
            elif re.search(r"error|limit|cancelled", line):  # why it ended, not by itself
                self.say(line)
        return True


def _write(piece: bytes) -> None:
    with suppress(OSError, ValueError, AttributeError):  # nobody reads it any more
        sys.stderr.buffer.write(piece)
        sys.stderr.flush()


def as_session(job: Job, cluster: Cluster) -> Job:
    """Return the job as it is planned for a session: one task of an array, and a shell if it has no command.

    Raises PlanError for a job that cannot be one.
    """
    if job.components:
        raise PlanError(
            "components: a shell is on one kind of node, and the components of this job differ",
            hint="ask for what the shell needs by options: slurmgpu shell --gpus 1 -t 1:00:00",
        )
    # One task has all that the job has on a node: a binding of several would leave it a part.
    unbound = job.resources.model_copy(update={"cpu_bind": None, "gpu_bind": None, "mem_bind": None})
    changed: dict[str, object] = {"array": None, "steps": {}, "resources": unbound}
    if job.command is None and job.train is None and job.script is None:
        changed |= {"command": ("bash",), "name": job.name or "shell"}
        if job.launch.launcher == "auto":
            changed["launch"] = job.launch.model_copy(update={"launcher": "plain"})
    if job.resources.time is None and "time" in cluster.dialect.required:
        partition = cluster.partitions.get(job.resources.partition or "")
        most = partition.limits.max_time if partition else None
        time_limit = most if most is not None and DEFAULT_TIME.exceeds(most) else DEFAULT_TIME
        changed["resources"] = unbound.model_copy(update={"time": time_limit})
    return job.model_copy(update=changed)


def left_out(plan: Plan) -> list[str]:
    """Return the job's options that are for batch scripts alone: a session has none of them."""
    ours = {"requeue", "no-requeue", "open-mode"}
    return [str(one) for one in plan.options if one.name in NOT_OF_SALLOC and one.name not in ours]


def step_of(plan: Plan, job: Job, script: str, *, terminal: bool) -> list[str]:
    """Return srun's arguments: one task on the first node with all that the job has there runs ``script``."""
    words = ["--nodes=1", "--ntasks=1", "--ntasks-per-node=1"]
    if plan.cpus_per_task is not None:
        words.append(f"--cpus-per-task={plan.cpus_per_task * plan.tasks_per_node}")
    if plan.own_gpus is not None:
        words.append(f"--gpus-per-task={plan.gpus_per_node}")
    # Those of the launch are for the job's own processes, and so is the profile's binding.
    others = plan.srun_options[: len(plan.srun_options) - len(job.launch.srun_options)]
    of_tasks = ("--gpus-per-task=", "--cpu-bind=", "--mem-bind=")
    words += (option for option in others if not option.startswith(of_tasks))
    words += ["--pty"] if terminal else []
    return [*words, "bash", *(["-l"] if plan.login_shell else []), script]
