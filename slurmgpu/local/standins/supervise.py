"""Runs the batch script, and sees to it that no process outlives the run.

It stands in for slurmstepd: it is the parent of everything, passes an interruption on, and ends what is left
when the script has ended. It also ends everything when ``slurmgpu run`` itself is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from slurmgpu.local.standins.folder import PretendedJob, say
from slurmgpu.local.standins.processes import (
    Wakeups,
    become_subreaper,
    descendants,
    die_with_parent,
    exit_code,
    kill_all,
    kill_below,
    processes_to_ask,
    reap,
    send,
)

__all__ = ["main"]

# Seconds for what ends by itself with the script: a tee that writes its last lines.
_SETTLE = 0.5
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Run:
    def __init__(self, folder: str, job: PretendedJob, parent: int) -> None:
        self.job = job
        self.interrupted = 0
        self.asked: set[int] = set()
        self.ended = 0.0
        self.deadline = float("inf")
        self.wakeups = Wakeups(_STOPS)
        # slurmgpu run starts this with the signals blocked, so that none comes before it can be handled.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        become_subreaper()
        die_with_parent(signal.SIGTERM, parent)
        if job.nice:
            os.nice(job.nice)
        # A login shell would reset PATH and lose the stand-ins, whatever the script's first line says.
        command = [job.bash, "--noprofile", "--norc", job.script]
        environment = {**os.environ, "BASH_ENV": str(Path(folder, "bash_env.sh"))}
        self.script = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )

    def to_the_end(self) -> int:
        """Wait for the script and for everything that it started; return the exit code."""
        code: int | None = None
        while True:
            for pid, status in reap():
                if pid == self.script.pid:
                    code = self.script.returncode = exit_code(status)
                    self.ended = time.monotonic()
            if code is not None:
                left = descendants(os.getpid())
                if not left:
                    break
                if not self.asked and time.monotonic() > self.ended + _SETTLE:
                    say(f"the script has ended and left {len(left)} process(es): ending them, as Slurm does")
                    self.ask(left, grace=min(self.job.grace, 2.0))
            if time.monotonic() >= self.deadline:
                kill_below(self.asked)
                self.deadline = time.monotonic() + 0.05
            # Orphans that are not ours yet make no SIGCHLD: look again while anything is being ended.
            busy = code is not None or self.asked
            for signum in self.wakeups.wait(0.05 if busy else None)[0]:
                self.interrupt(signum)
        return 128 + self.interrupted if self.interrupted else code

    def ask(self, pids: list[int], grace: float) -> None:
        self.asked.update(pids)
        send(signal.SIGTERM, pids)
        send(signal.SIGCONT, pids)
        self.deadline = time.monotonic() + grace

    def interrupt(self, signum: int) -> None:
        if self.interrupted:
            say("killing them")
            self.deadline = 0.0
            return
        self.interrupted = signum
        pids = processes_to_ask(os.getpid())
        self.asked.update(descendants(os.getpid()))
        again = "Ctrl-C again" if signum == signal.SIGINT else "a second signal"
        say(f"interrupted: asking its processes to end, {self.job.grace:g} s at most ({again}: at once)")
        self.ask(pids, self.job.grace)


def main(folder: str, arguments: list[str]) -> int:
    """Run the script; the one argument is the pid of ``slurmgpu run``."""
    job = PretendedJob.load(folder)
    try:
        return _Run(folder, job, int(arguments[0])).to_the_end()
    finally:
        kill_all()
        shutil.rmtree(folder, ignore_errors=True)
