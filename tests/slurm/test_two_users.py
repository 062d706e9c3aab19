"""What another user of the machine cannot do to a sandbox: ada's runs, and mallory has a Slurm of the same release."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurmgpu.sandbox.programs import program
from slurmgpu.sandbox.supervisor import descendants
from tests.slurm.conftest import need_slurm
from tests.two_users import Person, Tool, open_folder, require_two_users, tool_for_all

pytestmark = pytest.mark.slurm


@dataclass(frozen=True)
class Box:
    """A sandbox of ada's, and what mallory has found out about it."""

    ada: Person
    mallory: Person
    folder: Path
    state: dict[str, object]

    def as_ada(self, *words: str) -> str:
        """A command in the sandbox that must succeed; its stdout."""
        conf = f"SLURM_CONF={self.folder / 'slurm.conf'}"
        done = self.ada.run("env", conf, *words, cwd=self.ada.home)
        assert done.returncode == 0, done
        return done.stdout.strip()

    def as_mallory(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of mallory's with a copy of the sandbox's configuration and a munge key of another's."""
        return self.mallory.run("timeout", "100", *words, cwd=self.mallory.home)

    @property
    def processes(self) -> list[int]:
        supervisor = json.loads((self.folder / "state.json").read_text())["supervisor"]["pid"]
        return [supervisor, *descendants(supervisor)]


def account(name: str, home: Path, tool: Tool) -> Person:
    """An account that every Linux has: Slurm's programs want a name for who asks."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        pytest.skip(f"there is no user {name!r} here")
    if found.pw_uid != found.pw_gid:
        pytest.skip(f"user {name!r} has no group of the same number here")
    home.mkdir()
    os.chown(home, found.pw_uid, found.pw_gid)
    path = f"{Path(program('sbatch')).parent}:{os.defpath}"
    return Person(found.pw_uid, home, tool, (), {"PATH": path})


@contextmanager
def munged(mallory: Person, folder: Path) -> Iterator[Path]:
    """A munge of mallory's own; its socket."""
    key = mallory.write(folder / "key", secrets.token_hex(64), 0o600)
    socket_ = folder / "socket"
    files = [f"--{name}-file={folder / name}" for name in ("seed", "pid", "log")]
    argv = [program("munged"), "-F", "--force", f"--socket={socket_}", f"--key-file={key}", *files]
    process = mallory.start(*argv, cwd=folder)
    try:
        deadline = time.monotonic() + 60
        while not socket_.exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield socket_
    finally:
        process.kill()
        process.communicate()


@contextmanager
def a_box(*options: str) -> Iterator[Box]:
    """A sandbox of ada's with one node, beside which mallory has a munge of the same release."""
    require_two_users()
    need_slurm()
    with open_folder() as base:
        tool = tool_for_all(base / "tool")
        ada, mallory = account("daemon", base / "a", tool), account("nobody", base / "m", tool)
        up = ada.slurmgpu_afresh(ada.home, "sandbox", "up", "--nodes", "1", *options)
        try:
            assert up.returncode == 0, up
            folder = ada.home / ".local/state/slurmgpu/sandbox/default"
            state = json.loads((folder / "state.json").read_text())
            with munged(mallory, mallory.home / "munge") as key:
                conf = (folder / "slurm.conf").read_text().replace(f"{folder}/munge.sock", str(key))
                mallory.env["SLURM_CONF"] = str(mallory.write(mallory.home / "slurm.conf", conf))
                yield Box(ada, mallory, folder, state)
        finally:
            down = ada.slurmgpu_afresh(ada.home, "sandbox", "down")
    assert down.returncode == 0, down


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with a_box("--no-accounting") as found:
        yield found


@pytest.fixture(scope="module")
def job(box: Box) -> str:
    """A job of ada's that waits."""
    command = ("sbatch", "--parsable", "--hold", "--output=/dev/null", "--chdir=/", "--wrap", "echo secret")
    return box.as_ada(*command)


def test_mallory_reads_no_key_state_or_log_of_it(box: Box) -> None:
    assert (box.folder / "munge.key").stat().st_size
    with box.mallory.acting():
        for name in ("munge.key", "slurm.conf", "state.json", "log/slurmctld.log", "state/job_state"):
            with pytest.raises(PermissionError):
                (box.folder / name).open("rb")


def test_mallory_sends_its_supervisor_no_requests(box: Box) -> None:
    assert (box.folder / "requests").is_fifo()
    with box.mallory.acting(), pytest.raises(PermissionError):
        os.open(box.folder / "requests", os.O_WRONLY | os.O_NONBLOCK)


def test_mallory_does_not_reach_its_munge(box: Box) -> None:
    with box.mallory.acting(), socket.socket(socket.AF_UNIX) as tried, pytest.raises(PermissionError):
        tried.connect(str(box.folder / "munge.sock"))


def test_mallory_ends_no_process_of_it(box: Box) -> None:
    processes = box.processes
    assert len(processes) > 2
    with box.mallory.acting():
        for pid in processes:
            with pytest.raises(PermissionError):
                os.kill(pid, signal.SIGTERM)


def test_mallory_sees_no_token_of_it_in_ps_or_proc(box: Box) -> None:
    shown = box.mallory.run("ps", "axeww", "-o", "args", cwd=box.mallory.home).stdout
    assert "slurmctld" in shown
    assert str(box.state["token"]) not in shown
    environ = Path(f"/proc/{box.processes[0]}/environ")
    with box.mallory.acting(), pytest.raises(PermissionError):
        environ.read_bytes()


@pytest.mark.parametrize(
    "words",
    [
        ("sbatch", "--wrap", "touch ran"), ("srun", "--overlap", "--immediate=5", "true"), ("scancel", "JOB"),
        ("scontrol", "update", "JobId=JOB", "TimeLimit=1"), ("scontrol", "write", "batch_script", "JOB", "-"),
        ("scontrol", "shutdown"), ("squeue", "-h", "-o", "%i"),
    ],
    ids=lambda words: " ".join(words[:2]),
)  # fmt: skip
def test_its_controller_hears_nobody_without_its_key(box: Box, job: str, words: tuple[str, ...]) -> None:
    before = box.as_ada("scontrol", "show", "job", "-o", job)
    done = box.as_mallory(*(word.replace("JOB", job) for word in words))
    assert done.stdout == ""
    assert done.stderr.strip()
    assert box.as_ada("scontrol", "show", "job", "-o", job) == before
    assert box.as_ada("squeue", "-h", "-o", "%i %u") == f"{job} daemon"


def test_nobody_else_listens_for_its_controller_while_that_is_down(box: Box) -> None:
    port = json.loads((box.folder / "state.json").read_text())["ports"][0]
    take = f"""
import socket
for kind in (None, socket.SO_REUSEADDR, socket.SO_REUSEPORT):
    for address in ("", "127.0.0.1"):
        one = socket.socket()
        if kind:
            one.setsockopt(socket.SOL_SOCKET, kind, 1)
        try:
            one.bind((address, {port})); one.listen(); print("taken")
        except OSError:
            pass
"""
    broken = box.ada.slurmgpu_afresh(box.ada.home, "sandbox", "fault", "controller-down")
    assert broken.returncode == 0, broken
    taken = box.mallory.run(box.mallory.tool.python, "-c", take, cwd=box.mallory.home)
    healed = box.ada.slurmgpu_afresh(box.ada.home, "sandbox", "heal")
    assert (taken.returncode, taken.stdout) == (0, "")
    assert healed.returncode == 0, healed


WAIT_FOR_IT = """
import socket, sys, time
end = time.monotonic() + 600
caught = None
print("ready", flush=True)
while caught is None and time.monotonic() < end:
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        one.bind(("127.0.0.1", int(sys.argv[1])))
        one.listen(64)
        caught = one
    except OSError:
        one.close()
print("caught", flush=True)
while True:
    asker, _ = caught.accept()
    asker.settimeout(2)
    try:
        print("read" if asker.recv(1) else "nothing", flush=True)
    except OSError:
        print("nothing", flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "which"), [(("database-down",), 1), (("node-down", "node1"), -1), (("controller-down",), 0)]
)
def test_whoever_gets_a_port_while_it_is_open_is_sent_nothing(fault: tuple[str, ...], which: int) -> None:
    """Mallory tries without a break while ada mends; whether she wins is a matter of luck, what she reads is not."""
    with a_box() as box:
        assert box.state["accounting"], "a sandbox here has no accounting"
        ports = box.state["ports"]
        assert isinstance(ports, list)
        broken = box.ada.slurmgpu_afresh(box.ada.home, "sandbox", "fault", *fault)
        assert broken.returncode == 0, broken
        taker = box.mallory.start(
            box.mallory.tool.python, "-c", WAIT_FOR_IT, str(ports[which]), cwd=box.mallory.home
        )
        try:
            assert taker.stdout is not None
            assert taker.stdout.readline() == "ready\n"
            healed = box.ada.slurmgpu_afresh(box.ada.home, "sandbox", "heal")
            for words in (["squeue"], ["sacct"]):
                box.ada.slurmgpu_afresh(box.ada.home, "sandbox", "exec", "--", "timeout", "5", *words)
        finally:
            taker.kill()
        said = taker.communicate()[0].split()
        if said:
            assert (said, healed.returncode) == (["caught"], 1), (said, healed)
            assert "has been taken by another user of this machine" in healed.stderr
        else:
            assert healed.returncode == 0, healed
