"""A sandbox's supervisor ends with all it keeps, whatever ends it; no Slurm is needed for that."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from slurmgpu.sandbox import starting, supervisor
from slurmgpu.sandbox.configuration import default_shape
from slurmgpu.sandbox.processes import Keeper, launch
from slurmgpu.sandbox.programs import SandboxFailed

# Its pipe is closed, and TERM comes in the instant before it would be ignored.
LATE_TERM = """
import os, signal, sys
sys.path.insert(0, sys.argv.pop(1))
import supervisor

settle, late = signal.signal, []

def signal_(number, handler):
    if (number, handler) == (signal.SIGTERM, signal.SIG_IGN) and not late:
        late.append(True)
        os.kill(os.getpid(), signal.SIGTERM)
    return settle(number, handler)

signal.signal = signal_
supervisor.main()
"""


def test_a_term_just_after_its_pipe_closed_does_not_keep_it_from_cleaning_up(tmp_path: Path) -> None:
    folder = tmp_path / "sandbox"
    folder.mkdir()
    os.mkfifo(folder / "requests")
    code = Path(supervisor.__file__).parent
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LATE_TERM, str(code), str(folder)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not folder.exists()


def test_a_start_that_fails_at_once_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its supervisor is only just starting, and does not handle signals yet."""

    def fail(*_: object) -> str:
        raise ValueError("no such configuration")

    monkeypatch.setattr(starting, "slurm_version", lambda: "26.05.5")
    monkeypatch.setattr(starting, "program", str)
    monkeypatch.setattr(starting, "slurm_conf", fail)
    folder = tmp_path / "sandbox"
    folder.mkdir()
    shape = default_shape(nodes=1, gpus=1, gpu_type=None, cpus=2, memory_mib=1000)
    with pytest.raises(ValueError, match="no such configuration"):
        starting.start(folder, name="x", cluster="sandbox-x", shape=shape, accounting=False)
    assert not folder.exists()


def test_a_daemon_ignores_no_signal_that_its_supervisor_ignores(tmp_path: Path) -> None:
    folder, seen = tmp_path / "sandbox", tmp_path / "seen"
    (folder / "log").mkdir(parents=True)
    supervising = launch(folder, os.environ)
    Keeper(folder).start("daemon", ["sed", "-n", f"s/^SigIgn:[[:space:]]*//w {seen}", "/proc/self/status"])
    Keeper(folder).wait("its end", lambda: seen.exists() and seen.read_text() != "", 30)
    supervising.stdin.close()
    assert supervising.wait(30) == 0
    assert int(seen.read_text(), 16) & 0b111 == 0  # HUP, INT and QUIT


def test_a_port_is_its_daemons_and_nobody_elses_while_the_daemon_is_down() -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    door = supervisor.Door(port)

    def listens(reuse: bool = True) -> socket.socket | None:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        try:
            made.bind(("127.0.0.1", port))
            made.listen()
        except OSError:
            made.close()
            return None
        return made

    with closing(door.socket):
        daemon = listens()
        assert daemon is not None
        assert supervisor.listener(port) == os.getuid()
        door.close()
        with socket.create_connection(("127.0.0.1", port)), daemon:
            daemon.accept()[0].close()
        assert supervisor.listener(port) is None
        assert (listens(), listens(reuse=False)) == (None, None)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        door.open()
        again = listens()
        again.close()


def test_a_port_that_somebody_has_is_no_door() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(OSError, match="in use"):
        supervisor.Door(server.getsockname()[1])


def test_a_busy_daemon_is_asked_again_until_the_start_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(argv: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(argv, 60)

    monkeypatch.setattr(starting, "program", str)
    monkeypatch.setattr(subprocess, "run", hang)
    start = object.__new__(starting._Start)
    start.env = {}
    assert not start._succeeds("scontrol", "ping")
    with pytest.raises(SandboxFailed, match="sacctmgr -i add cluster c: no answer in 60 s"):
        start._account("add", "cluster", "c")
