"""Which processes belong to a sandbox, read from /proc.

Talks to a sandbox's supervisor: requests go through a FIFO, and a file says what became of them.
"""

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


def launch(folder: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a supervisor for the folder; it ends when its standard input closes, until it is told to stay."""
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
        """What the supervisor wrote of each daemon: argv, pid, how it ended, whether it is wanted."""
        try:
            found: dict[str, dict[str, object]] = json.loads((self.folder / "daemons.json").read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def start(self, name: str, argv: list[str], port: int | None = None) -> None:
        """Have a daemon started; while it is down again, nobody else gets the port that it listens on."""
        self._send({"do": "start", "name": name, "argv": argv, "port": port})

    def stop(self, name: str) -> None:
        """Have a daemon ended; return when it is."""
        self._send({"do": "stop", "name": name})
        self.wait(f"the end of {name}", lambda: name not in self.running(), 60)

    def restart(self, name: str) -> None:
        """Have a daemon that has ended started again, as it was; return when it is."""
        old = self.daemons()[name]
        self.start(name, old["argv"], old["port"])
        deadline = time.monotonic() + 30
        while self.daemons()[name] == old and time.monotonic() < deadline:
            time.sleep(0.02)

    def restart_ended(self, *names: str) -> None:
        """Have those of these daemons that have ended started again, one after the other."""
        for name in names:
            daemon = self.daemons().get(name)
            if daemon and daemon["ended"] is not None:
                self.restart(name)

    def signal(self, name: str, number: int) -> None:
        """Have a daemon signalled."""
        self._send({"do": "signal", "name": name, "signal": int(number)})

    def stay(self, until: float | None) -> None:
        """Let the supervisor outlive its starter, until a moment (seconds since 1970) or for good."""
        self._send({"do": "stay", "until": until})

    def running(self) -> list[str]:
        """The names of the daemons that have not ended."""
        return [name for name, daemon in self.daemons().items() if daemon["ended"] is None]

    def lost(self) -> dict[str, str]:
        """The daemons that ended though they were wanted, and how."""
        return {
            name: daemon["ended"]
            for name, daemon in self.daemons().items()
            if daemon["ended"] is not None and daemon["wanted"]
        }

    def wait(
        self, what: str, ready: Callable[[], bool], seconds: float, despite: Collection[str] = ()
    ) -> None:
        """Wait for ``ready``; SandboxFailed, with the ends of the logs, if a daemon not in ``despite`` ends before."""
        deadline = time.monotonic() + seconds
        while not ready():
            for name, how in self.lost().items():
                if name not in despite:
                    raise self.failure(f"{name} {how}")
            if time.monotonic() > deadline:
                raise self.failure(f"{what} did not come in {seconds:.0f} s")
            time.sleep(0.05)

    def failure(self, message: str) -> SandboxFailed:
        """An error with the ends of the daemons' logs."""
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
    """The last lines of every log, or of one daemon's, each under the log's name."""
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
