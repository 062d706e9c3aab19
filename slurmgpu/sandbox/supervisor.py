"""The process that keeps the daemons of one sandbox, and ends them all when it ends itself.

It needs nothing but the standard library. Until it is told to stay, it lives as long as its standard input is open:
if the starter of a sandbox is killed, the kernel closes the pipe, and nothing is left behind. Requests are JSON
objects, one a line, written to the FIFO ``requests``:

- ``{"do": "start", "name": ..., "argv": [...], "port": ...}`` starts a daemon that listens on a port (or null),
- ``{"do": "stop", "name": ...}`` ends one, ``{"do": "signal", "name": ..., "signal": 19}`` signals one,
- ``{"do": "stay", "until": SECONDS_SINCE_1970 or null}`` lets it outlive its starter.

``daemons.json`` records how each of them runs or ended. While a daemon is down its port is kept: another user who
listened there would get its messages.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
TICK_SECONDS = 0.2
PARENTS = "parents.json"
"""The file in a sandbox's folder that lists the folders around it which go with the last sandbox."""
STOP_SECONDS = 5.0

_libc = ctypes.CDLL(None, use_errno=True)


def descendants(root: int) -> list[int]:
    """Return every process below ``root``, from /proc, without zombies."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The command's name is in parentheses, and may itself hold blanks and parentheses.
            state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state != "Z":
            children.setdefault(int(parent), []).append(int(entry.name))
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def parents_of(folder: Path) -> list[Path]:
    """Return the folders around a sandbox's that slurmgpu made, the innermost first."""
    try:
        return [Path(one) for one in json.loads((folder / PARENTS).read_bytes())]
    except (OSError, ValueError):
        return []


def remove_empty(folders: list[Path]) -> None:
    """Remove these folders as long as they are empty; to be called with the folder of all sandboxes locked."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


class Door:
    """A port kept for a daemon by a second socket, which never listens.

    While the daemon is down, connections are refused, and no other user can listen there. OSError if the port is taken.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.socket = socket.socket()
        try:
            self.open()
            self.socket.bind(("", port))
        except OSError:
            self.socket.close()
            raise

    def open(self) -> None:
        """Let a daemon listen, whose socket shares the address with this one (socket(7), SO_REUSEADDR)."""
        self.shared = True
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def close(self) -> None:
        """Let nobody listen from now on, but who does already."""
        self.shared = False
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)


def listening() -> Iterator[tuple[int, int, int]]:
    """Yield port, user and inode of each TCP socket that listens on this machine, from /proc (proc(5))."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for row in Path(table).read_text().splitlines()[1:]:
                _, local, _, state, _, _, _, user, _, inode, *_ = row.split()
                if state == "0A":
                    yield int(local.rpartition(":")[2], 16), int(user), int(inode)


def listener(port: int) -> int | None:
    """Return the user whose socket listens on a TCP port of this machine; None where nobody does."""
    return next((user for known, user, _ in listening() if known == port), None)


class Supervisor:
    """Starts and ends daemons, records their ends, and removes everything at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parent: int | None = os.getppid()
        self.until: float | None = None
        self.daemons: dict[str, dict[str, Any]] = {}
        self.deadlines: dict[int, float] = {}
        self.doors: dict[str, Door] = {}
        # Held for writing, too, so that the FIFO never reports an end.
        self.requests = os.open(folder / "requests", os.O_RDWR | os.O_NONBLOCK)
        self.pending = b""
        # Job steps and daemons' children lose their parents: they must come to us, or we could not end them.
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def run(self) -> None:
        """Serve until the starter is gone, or, told to stay, until the time is up."""
        while (self.parent is None or os.getppid() == self.parent) and (
            self.until is None or time.time() < self.until
        ):
            self._reap()
            for door in self.doors.values():
                if door.shared and listener(door.port) is not None:
                    door.close()
            watched = [self.requests] if self.parent is None else [self.requests, 0]
            ready = select.select(watched, [], [], TICK_SECONDS)[0]
            if self.requests in ready:
                self._serve(os.read(self.requests, 65536))
            elif ready and not os.read(0, 65536):
                return

    def end(self) -> None:
        """Kill everything below this process (nothing of it is worth a clean shutdown); delete the folder."""
        while alive := descendants(os.getpid()):
            for pid in alive:
                _kill(pid, signal.SIGKILL)
            time.sleep(0.02)
            self._reap()
        parents = parents_of(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
            handle = os.open(self.folder.parent, os.O_RDONLY)
            opened.callback(os.close, handle)
            # Held by another command: that one starts a sandbox there, or removes the folders itself.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_empty(parents)

    def _serve(self, chunk: bytes) -> None:
        *lines, self.pending = (self.pending + chunk).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if request["do"] == "start":
                self._start(request["name"], request["argv"], request["port"])
            elif request["do"] == "stop":
                self._stop(request["name"])
            elif request["do"] == "signal":
                self._signal(request["name"], request["signal"])
            elif request["do"] == "stay":
                self.parent, self.until = None, request["until"]

    def _start(self, name: str, argv: list[str], port: int | None) -> None:
        known = self.daemons.get(name)
        if known and known["ended"] is None:
            return
        self.daemons[name] = {"argv": argv, "port": port, "pid": None, "ended": None, "wanted": True}
        try:
            if name in self.doors:
                self.doors[name].open()
            elif port is not None:
                self.doors[name] = Door(port)
        except OSError as error:
            self.daemons[name]["ended"] = f"did not start: port {port}: {error.strerror}"
            self._note()
            return
        with (self.folder / "log" / f"{name}.out").open("ab") as out:
            try:
                process = subprocess.Popen(
                    argv,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    preexec_fn=_as_a_daemon,
                )
                self.daemons[name]["pid"] = process.pid
            except OSError as error:
                self.daemons[name]["ended"] = f"did not start: {error}"
        self._note()

    def _stop(self, name: str) -> None:
        known = self.daemons.get(name)
        if known and known["ended"] is None:
            known["wanted"] = False
            self._signal(name, signal.SIGTERM)
            self._signal(name, signal.SIGCONT)
            self.deadlines[known["pid"]] = time.monotonic() + STOP_SECONDS
            self._note()

    def _signal(self, name: str, number: int) -> None:
        known = self.daemons.get(name)
        if known and known["ended"] is None:
            _kill(known["pid"], number)

    def _reap(self) -> None:
        for pid, deadline in self.deadlines.items():
            if time.monotonic() > deadline:
                _kill(pid, signal.SIGKILL)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.deadlines.pop(pid, None)
            for name, daemon in self.daemons.items():
                if daemon["pid"] == pid and daemon["ended"] is None:
                    if name in self.doors:
                        self.doors[name].close()
                    daemon["ended"] = f"ended with {os.waitstatus_to_exitcode(status)}"
                    self._note()

    def _note(self) -> None:
        draft = self.folder / "daemons.json.new"
        draft.write_text(json.dumps(self.daemons), encoding="utf-8")
        draft.replace(self.folder / "daemons.json")


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _as_a_daemon() -> None:
    # Should this supervisor itself be killed, the daemons follow.
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # What is ignored here would be ignored there, and from some releases on in every job: Ctrl-C in a shell on a node.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def _leave(*_: object) -> None:
    # Once is enough: a second TERM must not interrupt the cleaning.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


def main() -> None:
    """``supervisor.py FOLDER``: serve, then end, whatever happened."""
    # A Ctrl-C or a closed terminal belongs to whoever started us; `down` and a shutdown send TERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    supervisor = Supervisor(Path(sys.argv[1]))
    try:
        try:
            supervisor.run()
        finally:
            # The first TERM may come just here, when the pipe has closed a moment before.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    finally:
        supervisor.end()


if __name__ == "__main__":
    main()
