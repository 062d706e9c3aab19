"""A throwaway Slurm: four nodes with pretend GPUs and accounting on this machine, gone when it is stopped.

Everything lives in one temporary folder, listens on loopback where it can, and runs as the current user,
root or not.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import secrets
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.slurm.configuration import (
    ACCOUNT,
    CLUSTER,
    GPUS_PER_NODE,
    NODES,
    gres_conf,
    slurm_conf,
    slurmdbd_conf,
)

DAEMONS = ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd")
TOOLS = ("mariadb-install-db", "sacctmgr", "scontrol", "sinfo", "sbatch", "srun", "squeue", "sacct")
# Debian keeps daemons where an ordinary user's PATH does not look.
SYSTEM_FOLDERS = ("/usr/sbin", "/sbin", "/usr/local/sbin")

_AMBIENT = re.compile(
    r"(SLURM|SLURMD|SBATCH|SRUN|SALLOC|SQUEUE|SINFO|SACCT|SACCTMGR|SCONTROL|SCANCEL|SSTAT)_"
)

_TERMINAL = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
}


class SlurmStartError(RuntimeError):
    """The throwaway Slurm did not come up; the message holds the end of its daemons' logs."""


def find_program(name: str) -> str | None:
    """The program's path, looked up on PATH and then in the system's own folders."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(SYSTEM_FOLDERS))


def missing_programs() -> list[str]:
    """The programs a throwaway Slurm needs that this machine lacks."""
    return [name for name in DAEMONS + TOOLS if find_program(name) is None]


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what a surrounding job or a user's habits tell Slurm's commands."""
    return {name: value for name, value in environment.items() if not _AMBIENT.match(name)}


def slurm_release() -> tuple[int, int]:
    """Release of the installed Slurm, such as (22, 5)."""
    answer = subprocess.run([_program("slurmctld"), "-V"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"(\d+)\.(\d+)\.", answer)
    if match is None:
        raise SlurmStartError(f"slurmctld -V says {answer!r}, which names no release")
    return int(match[1]), int(match[2])


class ThrowawaySlurm:
    """A running throwaway Slurm; a context manager.

    ``env`` is this process's environment, scrubbed and pointed at the throwaway, for every command that talks
    to it. Raises SlurmStartError when it does not come up within ``start_timeout`` seconds.
    """

    def __init__(self, start_timeout: float = 60) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="throwaway-slurm-", dir=_short_folder())).resolve()
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self.release = slurm_release()
        self.env = scrubbed(os.environ) | {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._deadline = time.monotonic() + start_timeout
        self._supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("supervisor.py")), str(self.folder)],
            stdin=subprocess.PIPE,
            # mariadbd's folder is private to this user: that is what keeps others out, no password.
            env=self.env | {"MYSQL_UNIX_PORT": str(self.folder / "mariadb.sock")},
            # A Ctrl-C in the terminal is the test runner's to handle.
            start_new_session=True,
        )
        with ExitStack() as on_failure:
            on_failure.callback(self.stop)
            self._configure()
            self._start()
            on_failure.pop_all()

    def __enter__(self) -> ThrowawaySlurm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def run(self, argv: list[str], timeout: float = 60, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command against this Slurm; output is captured as text, a bad exit code raises nothing.

        ``env`` in ``options`` is added to the throwaway's environment, not put in its place.
        """
        env = self.env | options.pop("env", {})
        defaults: dict[str, Any] = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
        if "input" in options:
            del defaults["stdin"]
        return subprocess.run(argv, env=env, timeout=timeout, **(defaults | options))

    def wait_for(self, job_id: str | int, timeout: float = 60, complete_row: bool = False) -> str:
        """Wait until accounting knows the job's final state and its processes have ended; the state.

        Accounting hears of a short job's end up to 5 s before it hears of its start: until then its row lacks
        partition, QOS, work folder and submit line. ``complete_row`` waits for these, too.
        Raises TimeoutError with what scontrol says of the job.
        """
        deadline = time.monotonic() + timeout
        ask = ["sacct", "-X", "-n", "-P", "-j", str(job_id), "-o", "State,Partition"]
        while time.monotonic() < deadline:
            queued = self.run(["squeue", "-h", "-j", str(job_id), "-t", "all", "-o", "%T"]).stdout.split()
            rows = [row.split("|") for row in self.run(ask).stdout.splitlines()]
            # sacct may say "CANCELLED by 1000"; squeue's COMPLETING means that processes still live.
            states = [state.split()[0] for state, _ in rows if state]
            complete = all(partition for _, partition in rows) or not complete_row
            if states and complete and set(states) <= _TERMINAL and set(queued) <= _TERMINAL:
                return states[0]
            time.sleep(0.2)
        job = self.run(["scontrol", "show", "job", str(job_id)])
        raise TimeoutError(f"job {job_id} did not end within {timeout} s\n{job.stdout}{job.stderr}")

    def stop(self) -> None:
        """End every process of this Slurm, its jobs included, and delete its folder; may be called again."""
        if self._supervisor.stdin is not None and not self._supervisor.stdin.closed:
            self._supervisor.stdin.close()
        self._supervisor.wait(timeout=60)
        # Left only if the supervisor itself was killed.
        shutil.rmtree(self.folder, ignore_errors=True)

    def _configure(self) -> None:
        folder = self.folder
        for name in ("log", "state", "spool", "gpu", *(f"spool/node{n}" for n in range(1, NODES + 1))):
            (folder / name).mkdir()
        for number in range(GPUS_PER_NODE):
            (folder / "gpu" / f"gpu{number}").symlink_to("/dev/null")
        ports = _free_ports(2 + NODES)
        host = socket.gethostname().partition(".")[0]
        _write(folder / "munge.key", secrets.token_bytes(128))
        _write(folder / "slurm.conf", slurm_conf(folder, self.user, host, ports).encode())
        _write(folder / "slurmdbd.conf", slurmdbd_conf(folder, self.user, host, ports[1]).encode())
        _write(folder / "gres.conf", gres_conf(folder).encode())
        _write(folder / "plugstack.conf", b"")
        # Without root there are no cgroups to be had; releases before 23.02 do not know the word.
        if self.release >= (23, 2):
            _write(folder / "cgroup.conf", b"CgroupPlugin=disabled\n")

    def _start(self) -> None:
        folder = self.folder
        self._daemon(
            "munged", "-F", "--force", f"--socket={folder}/munge.sock", f"--key-file={folder}/munge.key",
            f"--seed-file={folder}/munge.seed", f"--pid-file={folder}/munge.pid",
            f"--log-file={folder}/log/munged.log",
        )  # fmt: skip
        self._start_database()
        self._wait("munged", lambda: _is_socket(folder / "munge.sock"))
        self._wait("mariadbd", lambda: _is_socket(folder / "mariadb.sock"))
        self._daemon("slurmdbd", "-D")
        self._wait("slurmdbd", lambda: self._succeeds("sacctmgr", "-n", "show", "cluster"))
        self._add_accounts()
        self._daemon("slurmctld", "-D")
        self._wait("slurmctld", lambda: self._succeeds("scontrol", "ping"))
        for number in range(1, NODES + 1):
            self._daemon("slurmd", "-D", "-N", f"node{number}", name=f"slurmd-node{number}")
        self._wait("the nodes", self._all_nodes_idle)

    def _start_database(self) -> None:
        # One shell for both steps, so that a killed test runner ends the first one, too.
        common = f"--no-defaults --datadir={self.folder}/mariadb --user={self.user}"
        create = (
            f"{_program('mariadb-install-db')} {common} --skip-test-db"
            " --auth-root-authentication-method=normal"
        )
        serve = (
            f"{_program('mariadbd')} {common} --skip-networking --skip-grant-tables --tmpdir={self.folder}"
            f" --socket={self.folder}/mariadb.sock --pid-file={self.folder}/mariadb.pid"
            # As Debian configures it: the compiled-in latin1 would turn most of UTF-8 into question marks.
            " --character-set-server=utf8mb4 --collation-server=utf8mb4_general_ci"
            " --innodb-buffer-pool-size=32M --innodb-flush-log-at-trx-commit=0"
        )
        self._send("mariadbd", ["/bin/sh", "-c", f"{create} && exec {serve}"])

    def _add_accounts(self) -> None:
        for words in (
            ["cluster", CLUSTER],
            ["account", ACCOUNT],
            ["user", self.user, f"account={ACCOUNT}", f"defaultaccount={ACCOUNT}"],
        ):
            answer = self.run(["sacctmgr", "-i", "add", *words])
            if answer.returncode:
                raise self._failure(f"sacctmgr -i add {' '.join(words)}: {answer.stdout}{answer.stderr}")

    def _all_nodes_idle(self) -> bool:
        states = self.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%T"]).stdout.split()
        return states == ["idle"] * NODES

    def _succeeds(self, *argv: str) -> bool:
        return self.run(list(argv)).returncode == 0

    def _daemon(self, program: str, *arguments: str, name: str | None = None) -> None:
        self._send(name or program, [_program(program), *arguments])

    def _send(self, name: str, argv: list[str]) -> None:
        assert self._supervisor.stdin is not None
        try:
            self._supervisor.stdin.write(json.dumps({"name": name, "argv": argv}).encode() + b"\n")
            self._supervisor.stdin.flush()
        except BrokenPipeError:
            raise self._failure("the supervisor has ended") from None

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        while not ready():
            exited = self.folder / "exited"
            if exited.exists():
                raise self._failure(exited.read_text().strip())
            if time.monotonic() > self._deadline:
                raise self._failure(f"{what} did not become ready in time")
            time.sleep(0.05)

    def _failure(self, message: str) -> SlurmStartError:
        logs = []
        for path in sorted((self.folder / "log").glob("*")):
            # What a daemon prints in the foreground it also writes to its own log, once that is open.
            if path.suffix == ".out" and path.with_suffix(".log").exists():
                continue
            lines = path.read_text(errors="replace").splitlines()[-15:]
            if lines:
                logs += [f"--- {path.name}", *lines]
        return SlurmStartError("\n".join([f"the throwaway Slurm did not start: {message}", *logs]))


def _program(name: str) -> str:
    path = find_program(name)
    if path is None:
        raise SlurmStartError(f"{name} is not on this machine")
    return path


def _short_folder() -> str | None:
    # A Unix socket's path may have 107 bytes: a deep TMPDIR leaves too little for ours.
    return None if len(tempfile.gettempdir()) < 60 else "/tmp"


def _free_ports(count: int) -> list[int]:
    # Held together, so that they differ; another program could still take one before its daemon does.
    with ExitStack() as held:
        ports = []
        for _ in range(count):
            listener = held.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            ports.append(listener.getsockname()[1])
        return ports


def _write(path: Path, content: bytes) -> None:
    # Created private: munged and slurmdbd refuse a key or password that others could read.
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(content)


def _is_socket(path: Path) -> bool:
    return path.exists() and stat.S_ISSOCK(path.stat().st_mode)
