"""The programs a sandbox runs: where they are, which release, how to install what is missing; and its errors."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping

from slurmgpu.errors import SlurmGpuError, SlurmUnreachable

__all__ = [
    "ONE_NODE_ONLY",
    "ProgramsMissing",
    "SandboxFailed",
    "find_program",
    "missing_programs",
    "program",
    "require_programs",
    "scrubbed",
    "slurm_release",
    "slurm_version",
]

NEEDED = ("munged", "slurmctld", "slurmd", "scontrol", "sinfo", "sbatch", "srun", "squeue")
FOR_ACCOUNTING = ("slurmdbd", "mariadbd", "mariadb-install-db", "my_print_defaults", "sacctmgr", "sacct")
# Distributions keep daemons where an ordinary user's PATH does not look.
SYSTEM_FOLDERS = ("/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/libexec")

_AMBIENT = re.compile(
    r"(SLURM|SLURMD|SBATCH|SRUN|SALLOC|SQUEUE|SINFO|SACCT|SACCTMGR|SCONTROL|SCANCEL|SSTAT)_"
)

INSTALLING = """\
Debian 12, Ubuntu 24.04, or newer:
    sudo apt-get install --no-install-recommends slurm-wlm munge slurmdbd mariadb-server-core mariadb-client-core
Debian 11, Ubuntu 22.04:
    sudo apt-get install --no-install-recommends slurm-wlm munge slurmdbd mariadb-server
Fedora, and RHEL 8 or 9 and alike once EPEL is enabled (sudo dnf install epel-release):
    sudo dnf install slurm slurm-slurmctld slurm-slurmd slurm-slurmdbd munge mariadb-server
openSUSE:
    sudo zypper install slurm slurm-node slurm-munge slurm-slurmdbd munge mariadb
Their services need not run. Fedora's, EPEL's and openSUSE's Slurm runs one node a machine: up --nodes 1, or --like.
Elsewhere, or for more nodes there: a container or virtual machine with Debian, or Slurm built from its source with
./configure --enable-multiple-slurmd; or no Slurm at all: slurmgpu run.
On a machine that belongs to a cluster, install none of them: ask its administrators."""

ONE_NODE_ONLY = "Duplicated NodeHostName"
"""What slurmctld says of several nodes on a host when it was built without --enable-multiple-slurmd."""


class SandboxFailed(SlurmGpuError):
    """A sandbox that did not start, is not there, or cannot do what was asked (exit code 1)."""


class ProgramsMissing(SlurmUnreachable):
    """Slurm's or munge's programs are not installed on this machine (exit code 4)."""


def find_program(name: str) -> str | None:
    """The program's path, looked up on PATH and then in the system's own folders."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(SYSTEM_FOLDERS))


def program(name: str) -> str:
    """The program's path; ProgramsMissing when this machine lacks it."""
    path = find_program(name)
    if path is None:
        raise ProgramsMissing(f"{name} is not on this machine", hint=INSTALLING)
    return path


def missing_programs(accounting: bool = True) -> list[str]:
    """The programs a sandbox needs that this machine lacks."""
    return [name for name in NEEDED + (FOR_ACCOUNTING if accounting else ()) if find_program(name) is None]


def require_programs() -> None:
    """Raise ProgramsMissing, with the commands that install them, when Slurm or munge is not here."""
    missing = missing_programs(accounting=False)
    if missing:
        raise ProgramsMissing(
            f"a sandbox needs Slurm and munge, and this machine has no {', '.join(missing)}.\n{INSTALLING}",
            hint="install the packages as above; the sandbox itself needs no root",
        )


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what a surrounding job or a user's habits tell Slurm's commands."""
    return {name: value for name, value in environment.items() if not _AMBIENT.match(name)}


def slurm_version() -> str:
    """Version of the installed Slurm, such as 22.05.8."""
    answer = subprocess.run([program("slurmctld"), "-V"], capture_output=True, text=True).stdout
    match = re.search(r"\d+\.\d+\.\S+", answer)
    if match is None:
        raise SandboxFailed(f"slurmctld -V says {answer!r}, which names no release")
    return match[0]


def slurm_release(version: str) -> tuple[int, int]:
    """Release of a version, such as (22, 5) for 22.05.8."""
    year, month = version.split(".")[:2]
    return int(year), int(month)
