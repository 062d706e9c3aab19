"""A session's private folder and its server on the node: an sshd of the user's own, or Jupyter."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from slurmgpu.errors import PlanError, RunFailed
from slurmgpu.files.trust import write_atomically
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.models.run import EXIT_CODE_FILE
from slurmgpu.runs.command_checks.environment import environment_here
from slurmgpu.runs.directory import SCRIPT, new_run_directory
from slurmgpu.slurm import current_user

__all__ = [
    "FILES",
    "Server",
    "check_installed",
    "entry",
    "for_elsewhere",
    "include_in",
    "include_line",
    "includes",
    "prepare_jupyter",
    "prepare_ssh",
    "read_server",
    "session_folder",
    "write_private",
]


_MARK = "slurmgpu-server "
FILES = ("enter.sh", "session.sh")
"""Files that the node's script reads, besides those that `prepare` writes."""
_OURS = {
    "job.yaml", "plan.json", SCRIPT, "enter.sh", "code", "state", "terminals", "logs",
    "server.log", "session.sh", "environment", "sshd_config", "known_hosts",
    "host_key", "host_key.pub", "client_key", "client_key.pub",
    "jupyter_config.json", "runtime",
}  # fmt: skip


class Server(NamedTuple):
    """A server on a node, as this machine reaches it."""

    node: str
    port: int
    end: datetime | None
    """The end of the allocation; None: unknown."""

    @property
    def until(self) -> str:
        """Return the end as part of a sentence, with a blank before it; '' where it is unknown."""
        return f" until {self.end:%H:%M}" if self.end else ""


def read_server(line: str) -> Server | None:
    """Return the server of the line that a node's script prints once it listens; None for any other line."""
    if not line.startswith(_MARK):
        return None
    port, end, *names = line.removeprefix(_MARK).split()
    moment = datetime.fromtimestamp(int(end)).astimezone() if int(end) else None
    node = names[0]
    for name in names:
        # The first name under which this machine finds the node.
        with suppress(OSError):
            socket.getaddrinfo(name, None)
            node = name
            break
    return Server(node, int(port), moment)


@contextmanager
def session_folder(
    runs: Path, plan: Plan, job: Job, script: str, say: Callable[[str], None]
) -> Iterator[Path]:
    """Make the folder; remove it at the end, except files that the session's user has left in it."""
    made = new_run_directory(runs, plan, job, script)
    try:
        made.path.chmod(0o700)
        yield made.path
    finally:
        if not made.clear(lambda name: name in _OURS or name.startswith(EXIT_CODE_FILE)):
            say(f"{made.path} stays: something of yours is in it")


def write_private(path: Path, text: str) -> None:
    """Write a new file that nobody else can read at any moment."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


# One user with one key, local forwarding (which editors reach their servers by) and copying files; the folder is 0700, but
# those above it may be a group's, which StrictModes would refuse.
_CONFIG = """\
HostKey "{folder}/host_key"
AuthorizedKeysFile "{folder}/client_key.pub"
StrictModes no
AllowUsers {user}
PermitRootLogin prohibit-password
AuthenticationMethods publickey
PubkeyAuthentication yes
PasswordAuthentication no
ChallengeResponseAuthentication no
UsePAM no
AllowAgentForwarding no
AllowTcpForwarding local
AllowStreamLocalForwarding no
GatewayPorts no
PermitTunnel no
PermitUserRC no
PermitUserEnvironment no
X11Forwarding no
PrintMotd no
PidFile none
Subsystem sftp sftp-server
ForceCommand bash {session}
"""


def prepare_ssh(folder: Path) -> None:
    """Make the keys of both sides and the server's configuration; raise RunFailed without ssh-keygen."""
    for name in ("host_key", "client_key"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "slurmgpu", "-f", str(folder / name)]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
        except FileNotFoundError:
            raise RunFailed(
                "--ssh: ssh-keygen is not on PATH on this machine, and the keys are made here",
                hint="install OpenSSH's client, or use slurmgpu shell without --ssh",
            ) from None
        if done.returncode:
            raise RunFailed(f"--ssh: ssh-keygen made no key: {done.stderr.strip() or done.stdout.strip()}")
    session = shlex.quote(str(folder / "session.sh"))
    write_private(folder / "sshd_config", _CONFIG.format(folder=folder, user=current_user(), session=session))


@contextmanager
def entry(config: Path, folder: Path, job_id: int, server: Server) -> Iterator[Path]:
    """Keep an entry for ssh in a file of its own, ``config``/ssh/JOB.conf, for as long as the server is there."""
    key = (folder / "host_key.pub").read_text(encoding="utf-8").split()
    write_private(folder / "known_hosts", f"{_name(job_id)} {key[0]} {key[1]}\n")
    file = config / "ssh" / f"{job_id}.conf"
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Entries of sessions whose caller was lost: the node has removed their keys.
    for other in file.parent.glob("*.conf"):
        with suppress(OSError):  # another session may be taking its own away at this moment
            lost = re.search(r'IdentityFile "(.+)"', other.read_text(encoding="utf-8", errors="replace"))
            if lost and not Path(lost[1]).exists():
                other.unlink(missing_ok=True)
    lines = [
        *_host(job_id, server),
        f'IdentityFile "{folder}/client_key"',
        f'UserKnownHostsFile "{folder}/known_hosts"',
    ]
    file.unlink(missing_ok=True)
    write_private(file, "\n    ".join(lines) + "\n")
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)


def for_elsewhere(folder: Path, job_id: int, server: Server, login_node: str) -> str:
    """Return the lines that give another computer, such as a laptop, the same entry through the login node."""
    user, name = current_user(), _name(job_id)
    keys = "~/.ssh/" + name
    lines = [
        *_host(job_id, server),
        f"ProxyJump {user}@{login_node}",
        f"IdentityFile {keys}",
        f"UserKnownHostsFile {keys}.host",
    ]
    copy = [
        f"scp {user}@{login_node}:{shlex.quote(f'{folder}/{file}')} {keys}{ending}"
        for file, ending in (("client_key", ""), ("known_hosts", ".host"))
    ]
    return "\n".join([*copy, "\n    ".join(lines)])


def _name(job_id: int) -> str:
    return f"{job_id}.slurmgpu"


def _host(job_id: int, server: Server) -> list[str]:
    name = _name(job_id)
    return [
        f"Host {name}",
        f"HostName {server.node}",
        f"Port {server.port}",
        f"User {current_user()}",
        f"HostKeyAlias {name}",
        "StrictHostKeyChecking yes",
        "IdentitiesOnly yes",
    ]


def include_line(config: Path) -> str:
    """Return the line of ~/.ssh/config that leads to the entries."""
    return f'Include "{config}/ssh/*.conf"'


def includes(config: Path, user_file: Path) -> bool:
    """Return True if ssh reads the entries already."""
    try:
        return include_line(config) in user_file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False


def include_in(config: Path, user_file: Path) -> None:
    """Put the line at the top of ~/.ssh/config, where it holds for every host; the rest stays as it is."""
    try:
        before = user_file.read_text(encoding="utf-8") if user_file.exists() else ""
        user_file.parent.mkdir(mode=0o700, exist_ok=True)
        path = user_file.resolve()  # it may be a link
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
        write_atomically(path, f"{include_line(config)}\n{before}")
        os.chmod(path, mode)  # noqa: PTH101 - the file's, not a link's
    except (OSError, UnicodeDecodeError) as error:
        raise RunFailed(
            f"--write-ssh-config: {user_file} cannot be changed: {error}",
            hint=f"put this line at its top yourself: {include_line(config)}",
        ) from None


def prepare_jupyter(folder: Path) -> str:
    """Write the configuration, which only its owner can read; return its token.

    Given by --config, it is read in place of the user's own, which may ask for no token. Older servers read the older names.
    """
    token = secrets.token_hex(24)
    shared = {"token": token, "password": "", "ip": "0.0.0.0", "port_retries": 0, "open_browser": False}
    shared |= {"allow_root": os.geteuid() == 0}
    config = {
        "ServerApp": shared,
        "NotebookApp": shared,
        "IdentityProvider": {"token": token},
        "PasswordIdentityProvider": {"hashed_password": ""},
    }
    write_private(folder / "jupyter_config.json", json.dumps(config, indent=2) + "\n")
    return token


def check_installed(plan: Plan, folder: Path | None) -> None:
    """Raise PlanError where this machine can see that the job's Python has no Jupyter.

    The programs of modules and containers show only on the node.
    """
    python = _python_here(plan, folder)
    if python is None:
        return
    try:
        # Not in the current folder, which may be somebody else's: Python would import from it.
        look = "import importlib.util as u; print(any(map(u.find_spec, ('jupyterlab', 'notebook', 'jupyter_server'))))"
        command = [str(Path(python).absolute()), "-c", look]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return  # it may run on the node
    if done.returncode == 0 and done.stdout.strip() == "False":
        raise PlanError(
            f"--jupyter: {python} has neither jupyterlab, notebook nor jupyter_server",
            hint=f"install one: {python} -m pip install jupyterlab; or name an environment that has it: --environment NAME",
        )


def _python_here(plan: Plan, folder: Path | None) -> str | None:
    """Return the job's interpreter as a program of this machine; None where only the node knows it."""
    environment = plan.environment
    if environment.container is not None or environment.modules is not None:
        return None
    python = environment.python
    if python.activated is None:
        return shutil.which(python.interpreter)
    path = environment_here(python, folder, os.environ)[0] if folder is not None else None
    program = path / "bin" / "python" if path is not None else None
    return str(program) if program is not None and program.is_file() else None
