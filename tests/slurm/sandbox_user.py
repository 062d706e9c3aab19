"""Somebody who uses `slurmgpu sandbox` as it is typed, for tests against the real Slurm it starts."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from slurmgpu.sandbox.life import environment_of
from slurmgpu.sandbox.processes import processes_of
from slurmgpu.sandbox.state import State, read_state
from tests import ready
from tests.slurm.conftest import need_slurm
from tests.slurm.test_throwaway import processes_that_mention

ROOT = Path(__file__).resolve().parents[2]


def wait_until(
    what: Callable[[], object], seconds: float = 180, seen: Callable[[], object] = lambda: ""
) -> None:
    """Wait until it is true; ``seen`` is what a failure shows. What takes long to ask is asked less often."""
    deadline = time.monotonic() + seconds
    while (begun := time.monotonic()) and not what():
        assert time.monotonic() < deadline, f"it did not come true in time: {seen()}"
        time.sleep(0.1 + 4 * (time.monotonic() - begun))


class User:
    """Somebody who calls `slurmgpu sandbox`, with sandboxes of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))
        }
        self.env |= {
            "XDG_STATE_HOME": str(home / "s"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "SLURMGPU_SITE": str(home / "site"),
            "PYTHONPATH": str(ROOT),
            "NO_COLOR": "1",
        }

    def __call__(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "slurmgpu", "sandbox", *words]
        return ready.run(command, self.env | dict(env or {}), cwd=self.home, timeout=400)

    def do(self, *words: str) -> str:
        """What must succeed; its stdout."""
        done = self(*words)
        assert done.returncode == 0, done
        return done.stdout

    def inside(self, name: str = "default") -> dict[str, str]:
        """What `sandbox exec` gives its command, without a start of slurmgpu for each command."""
        return self.env | environment_of(self.state(name), self.folder(name))

    def tried(self, *command: str, name: str = "default") -> subprocess.CompletedProcess[str]:
        """A command in the sandbox, whatever becomes of it."""
        return subprocess.run(
            command,
            env=self.inside(name),
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=400,
        )

    def ask(self, *command: str, name: str = "default") -> str:
        """A command in the sandbox that must succeed; its stdout."""
        done = self.tried(*command, name=name)
        assert done.returncode == 0, done
        return done.stdout.strip()

    def slurmgpu(self, *words: str, name: str = "default") -> str:
        """A command of slurmgpu's in the sandbox that must succeed; its stdout."""
        command = [sys.executable, "-m", "slurmgpu", *words]
        done = ready.run(command, self.inside(name), cwd=self.home, timeout=400)
        assert done.returncode == 0, done
        return done.stdout.strip()

    def submit(self, *options: str) -> str:
        """The id of a job in the sandbox."""
        return self.ask("sbatch", "--parsable", "--output=/dev/null", "--chdir=/", *options)

    def state_of(self, job: str) -> str:
        return self.ask("squeue", "-h", "-t", "all", "-j", job, "-o", "%T")

    def folder(self, name: str = "default") -> Path:
        return self.home / "s" / "slurmgpu" / "sandbox" / name

    def state(self, name: str = "default") -> State:
        state = read_state(self.folder(name))
        assert state is not None
        return state

    def conditions(self) -> dict[str, str]:
        sandboxes = json.loads(self.do("status", "--json"))["sandboxes"]
        return {one["name"]: one["condition"] for one in sandboxes}


def left_of(user: User, state: State, name: str) -> list[object]:
    """Everything of a sandbox that can be found: folder, processes by token and by folder, ports."""
    folder = user.folder(name)
    left: list[object] = [*processes_of(folder, state.token), *processes_that_mention(str(folder))]
    for port in state.ports:
        with socket.socket() as probe:
            left += [port] if probe.connect_ex(("127.0.0.1", port)) == 0 else []
    return [*left, folder] if folder.exists() else left


@contextmanager
def a_user() -> Iterator[User]:
    """Somebody new; none of their sandboxes outlives them."""
    need_slurm()
    # Short, for the sockets in it.
    home = Path(tempfile.mkdtemp(prefix="sbx-", dir="/tmp"))
    someone = User(home)
    try:
        yield someone
    finally:
        ended = someone("down", "--all")
        shutil.rmtree(home)
    assert ended.returncode == 0, ended
