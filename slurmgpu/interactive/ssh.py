"""An sshd of the user's own on the node: its keys, its configuration, and the entry by which ssh finds it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slurmgpu.errors import RunFailed
from slurmgpu.files.run_record import write_atomically
from slurmgpu.interactive.folder import write_private
from slurmgpu.interactive.server import Server
from slurmgpu.slurm import current_user

__all__ = ["FILES", "entry", "for_elsewhere", "include_in", "include_line", "includes", "prepare_ssh"]

FILES = ("enter.sh", "session.sh")
"""What the node's script reads, besides what `prepare` writes."""

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
    """Make the keys of both sides and the server's configuration; RunFailed without ssh-keygen."""
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
    _sweep(file.parent)
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


def _sweep(entries: Path) -> None:
    """Remove the entries of sessions whose caller was lost: the node has removed their keys."""
    for file in entries.glob("*.conf"):
        with suppress(OSError):  # another session may be taking its own away at this moment
            key = re.search(r'IdentityFile "(.+)"', file.read_text(encoding="utf-8", errors="replace"))
            if key and not Path(key[1]).exists():
                file.unlink(missing_ok=True)


def for_elsewhere(folder: Path, job_id: int, server: Server, login_node: str) -> str:
    """What gives another computer, such as a laptop, the same entry: through the login node."""
    user, name = current_user(), _name(job_id)
    keys = "~/.ssh/" + name
    lines = [
        *_host(job_id, server),
        f"ProxyJump {user}@{login_node}",
        f"IdentityFile {keys}",
        f"UserKnownHostsFile {keys}.host",
    ]
    block = "\n    ".join(lines)
    copy = [
        f"scp {user}@{login_node}:{shlex.quote(f'{folder}/{file}')} {keys}{ending}"
        for file, ending in (("client_key", ""), ("known_hosts", ".host"))
    ]
    return "\n".join([*copy, block])


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
    """The line of ~/.ssh/config that leads to the entries."""
    return f'Include "{config}/ssh/*.conf"'


def includes(config: Path, user_file: Path) -> bool:
    """Whether ssh reads the entries already."""
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
