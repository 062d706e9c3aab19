"""What a site has and a sandbox's machine may lack: containers, and modules in every shell. Found last, where there is none."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from slurmgpu.lines.container import PROGRAMS
from slurmgpu.local.standins.folder import MAIN, write_executable
from slurmgpu.local.standins.job import PretendedJob

__all__ = ["add_stand_ins"]


def add_stand_ins(folder: Path) -> None:
    """Write the stand-ins of a local run into a sandbox's folder, and have its TaskProlog hand them to each task."""
    own = folder / "stand-ins"
    own.mkdir()
    nobody = PretendedJob(0, "", 1, 1, 1, 0, 1, "", "", "/bin/bash", "", sys.executable, "", 1, 1, 1, 0, 0.0)
    nobody.save(str(own))
    for name in PROGRAMS:
        words = shlex.join([sys.executable, "-I", "-S", str(MAIN), "container"])
        # In a folder of each job's own, where what was said once is noted.
        job = f'job={shlex.quote(str(own))}/${{SLURM_JOB_ID:-0}}\nmkdir -p "$job"\nln -sf ../job.json "$job/job.json"\n'
        write_executable(own / name, f'{job}exec {words} "$job" {name} "$@"')
    with (folder / "task_prolog").open("a", encoding="utf-8") as prolog:
        prolog.write(_prolog(own))


def _prolog(own: Path) -> str:
    """Return lines of a TaskProlog: Slurm sets in each task what they print behind ``export``."""
    said = 'echo "slurmgpu sandbox: module $*: nothing is loaded" >&2'
    loaded = 'LOADEDMODULES="${LOADEDMODULES-}:$(IFS=:; echo "${*:2}")"'  # where a script looks at what it has loaded
    words = "list|av|avail|purge|use|unuse|load|unload|add|del|rm|swap|show|spider|save|restore|help"
    module = f"() {{  {said}; {loaded}; }}"
    ml = f'() {{  case ${{1-list}} in {words}) module "$@" ;; *) module load "$@" ;; esac; }}'
    # Where the machine has a module system, a batch shell of a user has its function: here it is loaded at the first call.
    return f"""\
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
