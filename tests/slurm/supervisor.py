"""Keeps the daemons of one throwaway Slurm, and ends them all when its standard input closes.

It is a process of its own because the test runner may be killed: the kernel then closes the pipe, and
nothing is left behind. A line of input is a JSON object with ``name`` and ``argv`` of a daemon to start.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
TICK_SECONDS = 0.2

_libc = ctypes.CDLL(None, use_errno=True)


def descendants(root: int) -> list[int]:
    """Every process below ``root``, from /proc; zombies are not counted."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The command's name stands in parentheses and may hold blanks and parentheses itself.
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


class Supervisor:
    """Starts daemons, notes in ``exited`` which of them ended, and removes everything at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parent = os.getppid()
        self.names: dict[int, str] = {}
        # Job steps and daemons' children lose their parents: they must come to us, or we could not end them.
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def run(self) -> None:
        """Serve until the input closes or the parent is gone."""
        pending = b""
        while os.getppid() == self.parent:
            self._reap()
            if not select.select([0], [], [], TICK_SECONDS)[0]:
                continue
            chunk = os.read(0, 65536)
            if not chunk:
                return
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                request = json.loads(line)
                self._start(request["name"], request["argv"])

    def end(self) -> None:
        """Kill everything below this process (nothing of it is worth a clean shutdown); delete the folder."""
        while alive := descendants(os.getpid()):
            for pid in alive:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)
            self._reap()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, name: str, argv: list[str]) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as out:
            try:
                process = subprocess.Popen(
                    argv,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    # Should this supervisor itself be killed, the daemons follow.
                    preexec_fn=lambda: _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
                )
            except OSError as error:
                self._note(f"{name} did not start: {error}")
                return
        self.names[process.pid] = name

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.names:
                self._note(f"{self.names.pop(pid)} ended with {os.waitstatus_to_exitcode(status)}")

    def _note(self, line: str) -> None:
        with (self.folder / "exited").open("a") as file:
            file.write(line + "\n")


def main() -> None:
    """``supervisor.py FOLDER``: serve, then end, whatever happened."""
    # A Ctrl-C belongs to the test runner, which then closes the pipe in its own time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    supervisor = Supervisor(Path(sys.argv[1]))
    try:
        supervisor.run()
    finally:
        supervisor.end()


if __name__ == "__main__":
    main()
