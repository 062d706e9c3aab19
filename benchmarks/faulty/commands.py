"""The commands that are tried, and what the controller says of their jobs when nobody disturbs it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pkgutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import slurmgpu
from tests.slurm.throwaway import ThrowawaySlurm

__all__ = ["PATIENCE", "TERMINAL", "Client", "Job", "Said", "Truth", "load", "sbatch_in"]

PATIENCE = 240.0
"""Seconds for a command to come to an end."""
TERMINAL = {"CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY", "BOOT_FAIL"}
_SERVER = multiprocessing.get_context("forkserver")
_FORKING = threading.Lock()


def load() -> None:
    """Name what the process loads from which the commands are forked."""
    names = [found.name for found in pkgutil.walk_packages(slurmgpu.__path__, "slurmgpu.", onerror=print)]
    left_out = ("slurmgpu.training", "slurmgpu.sandbox", "slurmgpu.__main__")
    names = [name for name in names if not name.startswith(left_out)]
    _SERVER.set_forkserver_preload(["__main__", "submitit", *names])


class Said(NamedTuple):
    """How a command ended; a negative code is a signal's, and None that it did not end."""

    code: int | None
    out: str
    err: str


class Job(NamedTuple):
    number: int
    state: str
    code: int | None
    """Of a job that has ended."""


def _become(argv: list[str], env: dict[str, str], folder: str) -> None:
    """A forked command: slurmgpu, or a Python function of this file."""
    os.setsid()
    for number in (1, 2):
        os.dup2(os.open(f"{folder}/said-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    try:
        if argv[0] == "slurmgpu":
            from slurmgpu.cli import main

            sys.argv = argv
            main()
        else:
            _by_submitit(argv[1])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _by_submitit(name: str) -> None:
    import submitit

    executor = submitit.AutoExecutor(folder="submitit", cluster="slurm")
    executor.update_parameters(name=name, timeout_min=5, slurm_additional_parameters={"hold": True})
    print(executor.submit(time.sleep, 0).job_id)


def sbatch_in(process: Path, folder: Path) -> bool:
    """Whether a process is an sbatch that outlives the command that started it."""
    try:
        return (process / "comm").read_text() == "sbatch\n" and (process / "cwd").readlink() == folder
    except OSError:
        return False


class Client:
    """A command that runs, in a folder of its own."""

    def __init__(self, argv: list[str], env: dict[str, str], folder: Path) -> None:
        self.folder = folder
        for number in (1, 2):
            (folder / f"said-{number}").write_bytes(b"")
        self.forked: Any = None
        self.started: subprocess.Popen[bytes] | None = None
        if argv[0] in ("slurmgpu", "submitit"):
            self.forked = _SERVER.Process(target=_become, args=(argv, env, str(folder)))
            with _FORKING:
                self.forked.start()
            self.pid = self.forked.pid or 0
        else:
            with (folder / "said-1").open("ab") as out, (folder / "said-2").open("ab") as err:
                self.started = subprocess.Popen(
                    argv, env=env, cwd=folder, stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )  # fmt: skip
            self.pid = self.started.pid

    def code(self) -> int | None:
        if self.started is not None:
            return self.started.poll()
        with _FORKING:  # whoever reads it second would get 255
            return self.forked.exitcode if self.forked else None

    def signal(self, number: signal.Signals) -> None:
        if self.code() is None:
            for kill in (os.killpg, os.kill):  # the group may be yet to come
                with contextlib.suppress(ProcessLookupError):
                    kill(self.pid, number)
                    break

    def said(self, patience: float = PATIENCE) -> Said:
        """Wait for its end; without a code where it has to be ended."""
        until = time.monotonic() + patience
        while (code := self.code()) is None:
            if time.monotonic() > until:
                self.signal(signal.SIGKILL)
                break
            time.sleep(0.05)
        out, err = ((self.folder / f"said-{number}").read_text(errors="replace") for number in (1, 2))
        return Said(code, out, err)


class Truth:
    """What the undisturbed controller has said of all jobs so far, asked all the time."""

    def __init__(self, slurm: ThrowawaySlurm) -> None:
        self.slurm, self.asked, self.ended = slurm, 0.0, False
        self.jobs: dict[str, dict[int, Job]] = {}
        self.thread = threading.Thread(target=self._ask, daemon=True)
        self.thread.start()

    def _ask(self) -> None:
        argv = ["squeue", "-h", "-r", "-t", "all", "-O", "JobID:20,Name:60,State:20,exit_code:20"]
        while not self.ended:
            began = time.monotonic()
            answer = self.slurm.run(argv)
            if answer.returncode == 0:
                for row in map(str.split, answer.stdout.splitlines()):
                    code = (int(row[3]) >> 8) if row[2] in TERMINAL else None
                    self.jobs.setdefault(row[1], {})[int(row[0])] = Job(int(row[0]), row[2], code)
                self.asked = began
            time.sleep(0.3)

    def of(self, name: str, fresh: bool = True) -> list[Job]:
        """The jobs of a name, as they are now."""
        now = time.monotonic()
        while fresh and self.asked < now:
            time.sleep(0.05)
        return list(self.jobs.get(name, {}).values())

    def wait(self, name: str, ready: Callable[[Job], bool], seconds: float = 90) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if any(ready(job) for job in self.of(name, fresh=False)):
                return True
            time.sleep(0.1)
        return False

    def logged(self, words: str) -> bool:
        """Whether the controller once did what it may have forgotten since."""
        return f"{words} " in (self.slurm.folder / "log" / "slurmctld.log").read_text(errors="replace")
