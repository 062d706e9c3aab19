"""The processes of a sandbox: those that /proc shows, and its supervisor, which is sent requests through a FIFO."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmgpu.sandbox.programs import ONE_NODE_ONLY, SandboxFailed
from slurmgpu.sandbox.supervisor import descendants

__all__ = [
    "TOKEN",
    "Keeper",
    "Process",
    "boot_id",
    "end_processes",
    "identify",
    "is_running",
    "is_stopped",
    "launch",
    "processes_of",
    "sockets_of",
    "tail_of_logs",
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
    """Return the id of this start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> list[str] | None:
    try:
        text = (Path("/proc") / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command's name is in parentheses, and may itself hold blanks and parentheses.
    return text.rpartition(")")[2].split()


def identify(pid: int) -> Process | None:
    """Return the process that has this id now; None when there is none."""
    fields = _stat(pid)
    return Process(pid, int(fields[19]), boot_id()) if fields else None


def is_running(process: Process) -> bool:
    """Return True if this very process still runs (a zombie does not)."""
    return _lives(process.pid) and identify(process.pid) == process


def _lives(pid: int) -> bool:
    fields = _stat(pid)
    return fields is not None and fields[0] != "Z"


def is_stopped(pid: int) -> bool:
    """Return True if a process does nothing until it is continued (signal(7), SIGSTOP)."""
    fields = _stat(pid)
    return fields is not None and fields[0] in {"T", "t"}


def _entries() -> list[Path]:
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _environments() -> dict[int, set[bytes]]:
    """Return the environment of each process of this user that can be read."""
    environments = {}
    for entry in _entries():
        if int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                environments[int(entry.name)] = set((entry / "environ").read_bytes().split(b"\0"))
    return environments


def _variable(name: str, value: str | Path) -> bytes:
    return f"{name}={value}".encode()


def processes_of(folder: Path, token: str | None) -> list[int]:
    """Return the daemons with this token, tasks and step daemons of jobs in this sandbox, and everything below these.

    A shell that merely talks to the sandbox has its SLURM_CONF, too, but no token and no node of its own.
    Without a token (it can no longer be read) the daemons are those with any.
    """
    mark = None if token is None else _variable(TOKEN, token)
    conf = _variable("SLURM_CONF", folder / "slurm.conf")
    own = (b"SLURMD_NODENAME=", *((TOKEN.encode() + b"=",) if token is None else ()))
    roots = [
        pid
        for pid, environment in _environments().items()
        if mark in environment or (conf in environment and any(each.startswith(own) for each in environment))
    ]
    # Newer step daemons write their title over their environment, and without slurmd they never end: they have a
    # file of the folder open or work in it, even after it is deleted.
    for entry in _entries():
        with contextlib.suppress(OSError):
            if (entry / "exe").readlink().name.startswith("slurmstepd"):
                targets = [str((entry / "cwd").readlink()), *_open_files(int(entry.name))]
                if any(Path(one.removesuffix(" (deleted)")).is_relative_to(folder) for one in targets):
                    roots.append(int(entry.name))
    return sorted(
        pid for pid in {below for root in roots for below in (root, *descendants(root))} if _lives(pid)
    )


def sockets_of(pids: Iterable[int]) -> set[int]:
    """Return the inodes of the sockets that these processes hold, as far as they can be read."""
    held = (re.fullmatch(r"socket:\[(\d+)\]", name) for pid in pids for name in _open_files(pid))
    return {int(match[1]) for match in held if match}


def _open_files(pid: int) -> list[str]:
    """Return the open files of a process as proc(5) names them in fd: paths, ``socket:[INODE]``."""
    names = []
    # The process, and its files, may be gone at any moment.
    with contextlib.suppress(OSError):
        for handle in (Path("/proc") / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                names.append(str(handle.readlink()))
    return names


def tasks_on(folder: Path, node: str) -> list[int]:
    """Return the processes of jobs on one node of this sandbox, and the step daemons above them."""
    wanted = {_variable("SLURM_CONF", folder / "slurm.conf"), _variable("SLURMD_NODENAME", node)}
    tasks: set[int] = set()
    for pid, environment in _environments().items():
        if wanted <= environment:
            tasks |= {pid, *descendants(pid)}
            parent = int((_stat(pid) or ["", "0"])[1])
            with contextlib.suppress(OSError):
                if parent and (Path("/proc") / str(parent) / "comm").read_text().strip() == "slurmstepd":
                    tasks.add(parent)
    return sorted(tasks)


def end_processes(pids: list[int], seconds: float = 5) -> None:
    """Kill them, and wait until they are gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(map(_lives, pids)):
        time.sleep(0.02)


def launch(folder: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a supervisor for the folder, which ends when its standard input closes unless told to stay."""
    os.mkfifo(folder / "requests", 0o600)
    with (folder / "log" / "supervisor.out").open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("supervisor.py")), str(folder)],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            cwd="/",
            env=dict(env),
            # A Ctrl-C in the terminal is the starter's to handle.
            start_new_session=True,
        )


class Keeper:
    """The supervisor of the sandbox in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def daemons(self) -> dict[str, dict[str, Any]]:
        """Return the supervisor's note on each daemon: argv, pid, how it ended, whether it is wanted."""
        try:
            return dict(json.loads((self.folder / "daemons.json").read_bytes()))
        except FileNotFoundError:
            return {}

    def start(self, name: str, argv: list[str], port: int | None = None) -> None:
        """Have a daemon started; while it is down again, nobody else gets its port."""
        self._send({"do": "start", "name": name, "argv": argv, "port": port})

    def stop(self, name: str) -> None:
        """Have a daemon ended, and wait for its end."""
        self._send({"do": "stop", "name": name})
        self.wait(f"the end of {name}", lambda: name not in self.running(), 60)

    def restart(self, name: str) -> None:
        """Have a daemon that has ended started again, as it was, and wait for its start."""
        old = self.daemons()[name]
        self.start(name, old["argv"], old["port"])
        deadline = time.monotonic() + 30
        while self.daemons()[name] == old and time.monotonic() < deadline:
            time.sleep(0.02)

    def signal(self, name: str, number: int) -> None:
        """Have a daemon signalled."""
        self._send({"do": "signal", "name": name, "signal": int(number)})

    def stay(self, until: float | None) -> None:
        """Let the supervisor outlive its starter, until a moment (seconds since 1970) or for good."""
        self._send({"do": "stay", "until": until})

    def running(self) -> list[str]:
        """Return the names of the daemons that have not ended."""
        return [name for name, daemon in self.daemons().items() if daemon["ended"] is None]

    def lost(self) -> dict[str, str]:
        """Return the daemons that ended though they were wanted, and how."""
        return {
            name: daemon["ended"]
            for name, daemon in self.daemons().items()
            if daemon["ended"] is not None and daemon["wanted"]
        }

    def wait(
        self, what: str, ready: Callable[[], bool], seconds: float, despite: Collection[str] = ()
    ) -> None:
        """Wait for ``ready``; raise SandboxFailed if a daemon not in ``despite`` ends before."""
        deadline = time.monotonic() + seconds
        while not ready():
            for name, how in self.lost().items():
                if name not in despite:
                    raise self.failure(f"{name} {how}")
            if time.monotonic() > deadline:
                raise self.failure(f"{what} did not come in {seconds:.0f} s")
            time.sleep(0.05)

    def failure(self, message: str) -> SandboxFailed:
        """Return an error with the ends of the daemons' logs."""
        logs = tail_of_logs(self.folder, 15)
        hint = None
        if any(ONE_NODE_ONLY in line for line in logs):
            hint = "this Slurm is built for one node a machine: give --nodes 1, or --like CLUSTER, whose nodes do not run"
        return SandboxFailed("\n".join([f"the sandbox failed: {message}", *logs]), hint=hint)

    def _send(self, request: dict[str, object]) -> None:
        line = json.dumps(request).encode() + b"\n"
        deadline = time.monotonic() + 30
        while True:
            try:
                handle = os.open(self.folder / "requests", os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError as error:
                # Without a reader: the supervisor is only just starting, or has ended.
                if error.errno not in {errno.ENXIO, errno.ENOENT} or time.monotonic() > deadline:
                    raise self.failure("its supervisor does not answer") from None
                time.sleep(0.02)
        with os.fdopen(handle, "wb", buffering=0) as requests:
            requests.write(line)


def tail_of_logs(folder: Path, lines: int, daemon: str | None = None) -> list[str]:
    """Return the last lines of every log, or of one daemon's, each under the log's name."""
    found = []
    for path in sorted((folder / "log").glob("*")):
        if daemon not in {None, path.stem}:
            continue
        # What a daemon prints in the foreground it also writes to its own log, once that is open.
        if path.suffix == ".out" and path.with_suffix(".log").exists():
            continue
        text = path.read_text(errors="replace").split("\n")[:-1][-lines:]
        if text:
            found += [f"--- {path.name}", *text]
    return found
