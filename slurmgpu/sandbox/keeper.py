"""Talks to a sandbox's supervisor: requests go through a FIFO, and a file says what became of them."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from slurmgpu.sandbox.programs import ONE_NODE_ONLY, SandboxFailed

__all__ = ["Keeper", "launch", "tail_of_logs"]


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
