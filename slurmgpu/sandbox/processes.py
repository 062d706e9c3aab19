"""Which processes belong to a sandbox, read from /proc."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from slurmgpu.sandbox.supervisor import descendants

__all__ = [
    "TOKEN",
    "Process",
    "end_processes",
    "identify",
    "is_running",
    "is_stopped",
    "processes_of",
    "sockets_of",
    "tasks_on",
]

TOKEN = "SLURMGPU_SANDBOX_TOKEN"
"""The variable that marks the daemons and what they start; a user's shell never has it."""


@dataclass(frozen=True)
class Process:
    """A process that cannot be mistaken for a later one with the same id."""

    pid: int
    started: int
    """Clock ticks after the machine's start."""
    boot: str


def boot_id() -> str:
    """What this start of the machine is called."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> list[str] | None:
    try:
        text = (Path("/proc") / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command's name is in parentheses, and may itself hold blanks and parentheses.
    return text.rpartition(")")[2].split()


def identify(pid: int) -> Process | None:
    """The process of this id now; None when there is none."""
    fields = _stat(pid)
    return Process(pid, int(fields[19]), boot_id()) if fields else None


def is_running(process: Process) -> bool:
    """Whether this very process still runs (a zombie does not)."""
    return _lives(process.pid) and identify(process.pid) == process


def _lives(pid: int) -> bool:
    fields = _stat(pid)
    return fields is not None and fields[0] != "Z"


def is_stopped(pid: int) -> bool:
    """Whether a process does nothing until it is continued (signal(7), SIGSTOP)."""
    fields = _stat(pid)
    return fields is not None and fields[0] in {"T", "t"}


def _environments() -> dict[int, set[bytes]]:
    """The environment of each process of this user that can be read."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                found[int(entry.name)] = set((entry / "environ").read_bytes().split(b"\0"))
    return found


def _variable(name: str, value: str) -> bytes:
    return f"{name}={value}".encode()


def processes_of(folder: Path, token: str | None) -> list[int]:
    """The daemons with this token, tasks and step daemons of jobs in this sandbox, and everything below these.

    A shell that merely talks to the sandbox has its SLURM_CONF, too, but no token and no node of its own.
    Without a token (it can no longer be read) the daemons are those with any.
    """
    mark = None if token is None else _variable(TOKEN, token)
    conf = _variable("SLURM_CONF", str(folder / "slurm.conf"))
    own = (b"SLURMD_NODENAME=", *((TOKEN.encode() + b"=",) if token is None else ()))
    found: set[int] = set()
    for pid, environment in _environments().items():
        inside = conf in environment and any(variable.startswith(own) for variable in environment)
        if mark in environment or inside:
            found |= {pid, *descendants(pid)}
    for pid in _step_daemons(folder):
        found |= {pid, *descendants(pid)}
    return sorted(filter(_lives, found))


def _step_daemons(folder: Path) -> list[int]:
    """The step daemons that have a file of the folder open or work in it, even after it is deleted.

    Newer releases write their title over their environment, and without slurmd they never end.
    """
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or not (entry / "exe").readlink().name.startswith("slurmstepd"):
                continue
            work_dir = str((entry / "cwd").readlink())
        except OSError:
            continue
        targets = [work_dir, *_open_files(int(entry.name))]
        if any(Path(target.removesuffix(" (deleted)")).is_relative_to(folder) for target in targets):
            found.append(int(entry.name))
    return found


def sockets_of(pids: Iterable[int]) -> set[int]:
    """The inodes of the sockets that these processes hold, as far as they can be read."""
    held = (re.fullmatch(r"socket:\[(\d+)\]", name) for pid in pids for name in _open_files(pid))
    return {int(match[1]) for match in held if match}


def _open_files(pid: int) -> list[str]:
    """What a process has open, as proc(5) names it in fd: paths, ``socket:[INODE]``; what can be read of it."""
    found = []
    # The process, and what it holds, may be gone at any moment.
    with contextlib.suppress(OSError):
        for handle in (Path("/proc") / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(str(handle.readlink()))
    return found


def tasks_on(folder: Path, node: str) -> list[int]:
    """The processes of jobs on one node of this sandbox, and the step daemons above them."""
    wanted = {_variable("SLURM_CONF", str(folder / "slurm.conf")), _variable("SLURMD_NODENAME", node)}
    found: set[int] = set()
    for pid, environment in _environments().items():
        if wanted <= environment:
            found |= {pid, *descendants(pid)}
            parent = int((_stat(pid) or ["", "0"])[1])
            if parent and _name(parent) == "slurmstepd":
                found.add(parent)
    return sorted(found)


def _name(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def end_processes(pids: list[int], seconds: float = 5) -> None:
    """Kill them, and wait until they are gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(map(_lives, pids)):
        time.sleep(0.02)
