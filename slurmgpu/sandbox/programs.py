"""The programs a sandbox runs: where they are, their release, how to install them, stand-ins for others."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from slurmgpu.errors import SlurmGpuError, SlurmUnreachable
from slurmgpu.lines.container import PROGRAMS
from slurmgpu.local.standins.folder import MAIN, PretendedJob, write_executable

__all__ = [
    "ONE_NODE_ONLY",
    "ProgramsMissing",
    "SandboxFailed",
    "add_stand_ins",
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
"""Words of slurmctld about several nodes on a host when it was built without --enable-multiple-slurmd."""


class SandboxFailed(SlurmGpuError):
    """A sandbox that did not start, is not there, or cannot do what was asked (exit code 1)."""


class ProgramsMissing(SlurmUnreachable):
    """Slurm's or munge's programs are not installed on this machine (exit code 4)."""


def find_program(name: str) -> str | None:
    """Return the program's path, looked up on PATH and then in the system's own folders."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(SYSTEM_FOLDERS))


def program(name: str) -> str:
    """Return the program's path; raise ProgramsMissing when this machine lacks it."""
    path = find_program(name)
    if path is None:
        raise ProgramsMissing(f"{name} is not on this machine", hint=INSTALLING)
    return path


def missing_programs(accounting: bool = True) -> list[str]:
    """Return the programs a sandbox needs that this machine lacks."""
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
    """Return the environment without the settings of Slurm's commands by a surrounding job or the user."""
    ambient = re.compile(
        r"(SLURM|SLURMD|SBATCH|SRUN|SALLOC|SQUEUE|SINFO|SACCT|SACCTMGR|SCONTROL|SCANCEL|SSTAT)_"
    )
    return {name: value for name, value in environment.items() if not ambient.match(name)}


def slurm_version() -> str:
    """Return the version of the installed Slurm, such as 22.05.8."""
    answer = subprocess.run([program("slurmctld"), "-V"], capture_output=True, text=True).stdout
    match = re.search(r"\d+\.\d+\.\S+", answer)
    if match is None:
        raise SandboxFailed(f"slurmctld -V says {answer!r}, which names no release")
    return match[0]


def slurm_release(version: str) -> tuple[int, int]:
    """Return the release of a version, such as (22, 5) for 22.05.8."""
    year, month = version.split(".")[:2]
    return int(year), int(month)


def add_stand_ins(folder: Path) -> None:
    """Give a sandbox's jobs the containers and modules that its machine lacks: its TaskProlog hands them to each task."""
    own = folder / "stand-ins"
    own.mkdir()
    nobody = PretendedJob(0, "", 1, 1, 1, 0, 1, "", "", "/bin/bash", "", sys.executable, "", 1, 1, 1, 0, 0.0)
    nobody.save(str(own))
    words = shlex.join([sys.executable, "-I", "-S", str(MAIN), "container"])
    # In a folder of each job's own, which notes what was said once.
    job = f'job={shlex.quote(str(own))}/${{SLURM_JOB_ID:-0}}\nmkdir -p "$job"\nln -sf ../job.json "$job/job.json"\n'
    for name in PROGRAMS:
        write_executable(own / name, f'{job}exec {words} "$job" {name} "$@"')
    nothing = 'echo "slurmgpu sandbox: module $*: nothing is loaded" >&2'
    loaded = 'LOADEDMODULES="${LOADEDMODULES-}:$(IFS=:; echo "${*:2}")"'  # for scripts that look at the loaded ones
    listing = "list|av|avail|purge|use|unuse|load|unload|add|del|rm|swap|show|spider|save|restore|help"
    module = f"() {{  {nothing}; {loaded}; }}"
    ml = f'() {{  case ${{1-list}} in {listing}) module "$@" ;; *) module load "$@" ;; esac; }}'
    # Slurm sets in each task what these lines print behind ``export``. The stand-ins come last on PATH. Where the machine
    # has a module system, a batch shell of a user has its function: here it is loaded at the first call.
    lines = f"""\
own={shlex.quote(str(own))}
module={shlex.quote(module)}
ml={shlex.quote(ml)}
case ":${{PATH-}}:" in
*":$own:"*) ;;
*) echo "export PATH=${{PATH:-/usr/bin:/bin}}:$own" ;;
esac
for init in /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh /etc/profile.d/modules.sh /usr/share/lmod/lmod/init/bash \\
    /usr/share/Modules/init/bash /usr/share/modules/init/bash; do
    [ -r "$init" ] || continue
    module="() {{  . $init; module \\"\\$@\\"; }}"
    ml="() {{  . $init; ml \\"\\$@\\"; }}"
    break
done
env | grep '^BASH_FUNC_module\\|^LMOD_CMD=\\|^MODULESHOME=' >/dev/null ||
    printf 'export BASH_FUNC_%s%%%%=%s\\n' module "$module" ml "$ml"
"""
    with (folder / "task_prolog").open("a", encoding="utf-8") as prolog:
        prolog.write(lines)
