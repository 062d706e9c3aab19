"""Starts a Slurm in an empty folder: ports, munge, a database and its daemon, the controller, the nodes."""

from __future__ import annotations

import contextlib
import datetime
import os
import pwd
import random
import secrets
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from slurmgpu.files.data import WITHOUT_GPUS
from slurmgpu.sandbox.configuration import (
    DATABASE_SQL,
    Installation,
    Shape,
    gres_conf,
    host_name,
    slurm_conf,
    slurmdbd_conf,
    task_prolog,
)
from slurmgpu.sandbox.processes import TOKEN, Keeper, identify, launch
from slurmgpu.sandbox.programs import SandboxFailed, program, scrubbed, slurm_release, slurm_version
from slurmgpu.sandbox.state import State, write_state

__all__ = ["CONTROLLER_CONF", "Started", "client_env", "plugin_folder", "reserved_ports", "start"]

CANDIDATES = range(30_000, 65_536)
"""Above the ports under which jobs meet (templates/rendezvous.sh.j2)."""
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
CONTROLLER_CONF = "slurmctld.conf"
BY_ITSELF_SECONDS = 15.0
"""Time for a supervisor to end by itself once its starter has closed the pipe; then it is told to."""


@contextlib.contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Yield different ports of the loopback interface that nobody listens on now.

    Until the end of the ``with``, by which their daemons are to listen, no other sandbox on this machine gets them:
    for each a socket without a file is held whose name says so (unix(7), abstract).

    The ports are outside the range from which the kernel serves whoever names none (ip(7), ip_local_port_range), as
    each srun does: a port of that range could go to somebody else before its daemon has started, or while it is down.
    On a machine that leaves no others, they are from that range.
    """
    try:
        lowest, highest = map(int, EPHEMERAL.read_text().split())
    except (OSError, ValueError):
        lowest, highest = 32_768, 60_999
    candidates = [port for port in CANDIDATES if not lowest <= port <= highest]
    # By chance: others who look for a free port, and know nothing of such names, mostly begin at one end.
    random.SystemRandom().shuffle(candidates)
    with ExitStack() as reserved:
        # Held together, so that they differ.
        with ExitStack() as held:
            ports: list[int] = []
            for candidate in [*candidates, *[0] * count]:
                if len(ports) == count:
                    break
                probe = held.enter_context(socket.socket())
                with contextlib.suppress(OSError), ExitStack() as named:
                    probe.bind(("127.0.0.1", candidate))
                    port: int = probe.getsockname()[1]
                    # Fails where another sandbox has reserved the port.
                    named.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0slurmgpu-port-{port}")
                    reserved.push(named.pop_all())
                    ports.append(port)
        yield ports


def plugin_folder(daemon: Path) -> Path | None:
    """Return the folder of a daemon's plugins if its Slurm was unpacked into some folder, None for the system's."""
    prefix = daemon.resolve().parent.parent
    if prefix in {Path("/"), Path("/usr")}:
        return None
    for pattern in ("lib/*/slurm-wlm", "lib/slurm", "lib64/slurm"):
        for found in prefix.glob(f"{pattern}/auth_munge.so"):
            return found.parent
    return None


def client_env(folder: Path) -> dict[str, str]:
    """Return this process's environment, scrubbed and pointed at the sandbox in ``folder``."""
    return scrubbed(os.environ) | {"SLURM_CONF": str(folder / "slurm.conf")}


@dataclass
class Started:
    """A Slurm that is up; its supervisor ends it when ``supervisor.stdin`` closes, unless told to stay."""

    folder: Path
    state: State
    keeper: Keeper
    supervisor: subprocess.Popen[bytes]

    def stay(self, lasting: float | None) -> State:
        """Let it outlive this process, for some seconds or for good; return the state then written."""
        until = None if lasting is None else time.time() + lasting
        moment = None if until is None else datetime.datetime.fromtimestamp(until, datetime.timezone.utc)
        self.state = self.state.model_copy(update={"ready": True, "until": moment})
        # Told before it is said to be ready: whoever reads that may rely on it.
        self.keeper.stay(until)
        write_state(self.folder, self.state)
        return self.state

    def end(self) -> None:
        """End every process of this Slurm, its jobs included, and delete its folder; may be called again."""
        if self.supervisor.stdin is not None and not self.supervisor.stdin.closed:
            self.supervisor.stdin.close()
        # Until it is told to stay, the closed pipe ends it; a TERM could come before it is ready to clean up.
        if not self.state.ready:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.supervisor.wait(timeout=BY_ITSELF_SECONDS)
        # A process that was forked off meanwhile may hold the pipe open.
        if self.supervisor.poll() is None:
            self.supervisor.terminate()
        self.supervisor.wait(timeout=60)


Stage = Literal["starting", "configured"]


def start(
    folder: Path,
    *,
    name: str,
    cluster: str,
    shape: Shape,
    accounting: bool,
    seconds: float = 180,
    on: Mapping[Stage, Callable[[], None]] = MappingProxyType({}),
) -> Started:
    """Start a Slurm in ``folder``, which exists, is empty and private; SandboxFailed leaves nothing behind.

    ``on["starting"]`` is called when the folder says so, ``on["configured"]`` between Slurm's files and its first daemon.
    """
    slurm, token = _Start(folder, cluster, shape, accounting, seconds), secrets.token_hex(16)
    place = slurm.place
    (folder / "log").mkdir()
    # mariadbd's folder is private to this user: that is what keeps others out, no password.
    supervisor = launch(folder, slurm.env | {TOKEN: token, "MYSQL_UNIX_PORT": f"{folder}/mariadb.sock"})
    with slurm.reserved, ExitStack() as on_failure:
        process = identify(supervisor.pid)
        assert process is not None
        database_ports = (place.database_port,) if accounting else ()
        state = State(
            name=name,
            cluster=cluster,
            since=datetime.datetime.now(datetime.timezone.utc),
            version=slurm.version,
            accounting=accounting,
            shape=shape,
            ports=(place.controller_port, *database_ports, *(place.node_ports if shape.live else ())),
            token=token,
            supervisor=process,
        )
        started = Started(folder, state, slurm.keeper, supervisor)
        on_failure.callback(started.end)
        write_state(folder, state)
        on.get("starting", lambda: None)()
        slurm.configure()
        on.get("configured", lambda: None)()
        slurm.start_daemons()
        on_failure.pop_all()
    return started


class _Start:
    def __init__(self, folder: Path, cluster: str, shape: Shape, accounting: bool, seconds: float) -> None:
        self.folder, self.shape = folder, shape
        self.deadline = time.monotonic() + seconds
        self.version = slurm_version()
        self.env = client_env(folder)
        self.reserved = ExitStack()
        ports = self.reserved.enter_context(reserved_ports(2 + (len(shape.nodes) if shape.live else 1)))
        self.place = Installation(
            cluster=cluster,
            folder=folder,
            user=pwd.getpwuid(os.getuid()).pw_name,
            host=host_name(),
            controller_port=ports[0],
            database_port=ports[1],
            node_ports=tuple(ports[2:]),
            accounting=accounting,
            release=slurm_release(self.version),
            plugins=plugin_folder(Path(program("slurmctld"))),
        )
        self.keeper = Keeper(folder)

    def configure(self) -> None:
        folder, place, shape = self.folder, self.place, self.shape
        live = shape.nodes if shape.live else []
        for name in ("state", "spool", "gpu", *(f"spool/{node}" for node in live)):
            (folder / name).mkdir()
        for number in range(max(sum(gpus.count for gpus in kind.gpus) for kind in shape.kinds)):
            (folder / "gpu" / f"gpu{number}").symlink_to("/dev/null")
        _write(folder / "munge.key", secrets.token_bytes(128))
        _write(folder / "slurm.conf", slurm_conf(place, shape).encode())
        # The controller's name for it: while it starts again, clients are pointed elsewhere.
        (folder / CONTROLLER_CONF).symlink_to("slurm.conf")
        if place.accounting:
            _write(folder / "slurmdbd.conf", slurmdbd_conf(place).encode())
            _write(folder / "database.sql", DATABASE_SQL.encode())
        _write(folder / "gres.conf", gres_conf(folder, shape, place.release).encode())
        _write(folder / "plugstack.conf", b"")
        _write(folder / "task_prolog", task_prolog(WITHOUT_GPUS).encode())
        (folder / "task_prolog").chmod(0o700)
        # There are no cgroups without root; releases before 23.02 do not know the option.
        if place.release >= (23, 2):
            _write(folder / "cgroup.conf", b"CgroupPlugin=disabled\n")

    def start_daemons(self) -> None:
        folder, place, shape = self.folder, self.place, self.shape
        if place.accounting:
            self._start_database()
        self._daemon(
            "munged", "-F", "--force", f"--socket={folder}/munge.sock", f"--key-file={folder}/munge.key",
            f"--seed-file={folder}/munge.seed", f"--pid-file={folder}/munge.pid",
            f"--log-file={folder}/log/munged.log",
        )  # fmt: skip
        self._wait("munged", lambda: _is_socket(folder / "munge.sock"))
        if place.accounting:
            self._wait("mariadbd", lambda: _is_socket(folder / "mariadb.sock"))
            self._daemon("slurmdbd", "-D", port=place.database_port)
            self._wait("slurmdbd", lambda: self._succeeds("sacctmgr", "-n", "show", "cluster"))
            self._add_accounts()
        self._daemon("slurmctld", "-D", "-f", f"{folder}/{CONTROLLER_CONF}", port=place.controller_port)
        self._wait("slurmctld", lambda: self._succeeds("scontrol", "ping"))
        if shape.live:
            for node, port in zip(shape.nodes, place.node_ports, strict=True):
                self._daemon("slurmd", "-D", "-N", node, name=f"slurmd-{node}", port=port)
        self._wait("the nodes", self._all_nodes_idle)
        limits = (
            _same_words({qos.name: qos.tres for qos in shape.qos if qos.tres}) if place.accounting else {}
        )
        if limits:
            # The database knows of GPUs a moment after the controller has come up.
            show = ("sacctmgr", "-n", "-P", "show", "tres", "format=type,name")
            self._wait("gres/gpu in the database", lambda: "gres|gpu" in self._ask(*show).stdout)
        for tres, names in limits.items():
            self._account("modify", "qos", names, "set", *tres)

    def _start_database(self) -> None:
        # One shell for both steps, so that the second needs nobody who waits for the first.
        common = f"--no-defaults --datadir={self.folder}/mariadb --user={self.place.user}"
        # A server that starts deletes every #sql file in its folder for temporary ones, other servers' too.
        create = (
            f"TMPDIR={self.folder} {program('mariadb-install-db')} {common} --skip-test-db"
            " --auth-root-authentication-method=normal"
        )
        serve = (
            f"{program('mariadbd')} {common} --skip-networking --skip-grant-tables --tmpdir={self.folder}"
            f" --socket={self.folder}/mariadb.sock --pid-file={self.folder}/mariadb.pid"
            # As Debian configures it: the compiled-in latin1 would turn most of UTF-8 into question marks.
            " --character-set-server=utf8mb4 --collation-server=utf8mb4_general_ci"
            " --innodb-buffer-pool-size=32M --innodb-flush-log-at-trx-commit=0"
            f" --init-file={self.folder}/database.sql"
        )
        self.keeper.start("mariadbd", ["/bin/sh", "-c", f"{create} && exec {serve}"])

    def _add_accounts(self) -> None:
        shape, accounts = self.shape, ",".join(self.shape.accounts)
        self._account("add", "cluster", self.place.cluster)
        self._account("add", "account", accounts)
        # `normal` is in every database.
        limits = _same_words({qos.name: qos.limits for qos in shape.qos if qos.name != "normal"})
        for words, names in limits.items():
            self._account("add", "qos", names, *words)
        given = ",".join(dict.fromkeys(["normal", *(qos.name for qos in shape.qos if qos.given)]))
        about_qos = [f"qos={given}", f"defaultqos={shape.default_qos}"] if shape.qos else []
        user = ["user", self.place.user, f"account={accounts}", f"defaultaccount={shape.accounts[0]}"]
        self._account("add", *user, *about_qos)
        for qos in shape.qos:
            if qos.name == "normal" and qos.limits:
                self._account("modify", "qos", "normal", "set", *qos.limits)

    def _account(self, *words: str) -> None:
        answer = self._ask("sacctmgr", "-i", *words)
        if answer.returncode:
            error = (answer.stderr or answer.stdout).strip()
            raise SandboxFailed(f"the sandbox failed: sacctmgr -i {' '.join(words)}: {error}")

    def _all_nodes_idle(self) -> bool:
        # Nodes in the cloud are idle with a ~ while they have no power.
        rows = self._ask("sinfo", "-h", "-N", "-o", "%N %T").stdout.split("\n")[:-1]
        return {node for node, state in map(str.split, rows) if state in {"idle", "idle~"}} == set(
            self.shape.nodes
        )

    def _succeeds(self, *argv: str) -> bool:
        return self._ask(*argv).returncode == 0

    def _ask(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands; one that does not end has failed, as on a machine that is very busy."""
        argv = [program(command), *arguments]
        try:
            return subprocess.run(
                argv, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(argv, 1, "", "no answer in 60 s")

    def _daemon(self, daemon: str, *arguments: str, name: str | None = None, port: int | None = None) -> None:
        self.keeper.start(name or daemon, [program(daemon), *arguments], port)

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        self.keeper.wait(what, ready, max(self.deadline - time.monotonic(), 0.1))


def _same_words(words: dict[str, tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Return the names that share the same words, comma-separated: each call of sacctmgr takes a third of a second."""
    return {one: ",".join(name for name, same in words.items() if same == one) for one in words.values()}


def _write(path: Path, content: bytes) -> None:
    # Created private: munged and slurmdbd refuse a key or password that others could read.
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(content)


def _is_socket(path: Path) -> bool:
    return path.exists() and stat.S_ISSOCK(path.stat().st_mode)
