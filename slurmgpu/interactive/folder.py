"""A session's folder: a run directory that only its owner can read, and that goes with the session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.models.run import EXIT_CODE_FILE
from slurmgpu.submission.run_directory import SCRIPT, new_run_directory

__all__ = ["session_folder", "write_private"]

_OURS = {
    "job.yaml", "plan.json", SCRIPT, "enter.sh", "code", "state", "terminals", "logs",
    "server.log", "session.sh", "environment", "sshd_config", "known_hosts",
    "host_key", "host_key.pub", "client_key", "client_key.pub",
    "jupyter_config.json", "runtime",
}  # fmt: skip


@contextmanager
def session_folder(
    runs: Path, plan: Plan, job: Job, script: str, say: Callable[[str], None]
) -> Iterator[Path]:
    """Make the folder; at the end it is removed, except what the session's user has left in it."""
    made = new_run_directory(runs, plan, job, script)
    try:
        made.path.chmod(0o700)
        yield made.path
    finally:
        if not made.clear(lambda name: name in _OURS or name.startswith(EXIT_CODE_FILE)):
            say(f"{made.path} stays: something of yours is in it")


def write_private(path: Path, text: str) -> None:
    """Write a new file that nobody else can read at any moment."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
