"""What a site has and a sandbox's machine may lack: containers, modules, nvidia-smi. Found last, where there is none."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from slurmgpu.lines.container import PROGRAMS
from slurmgpu.local import standins
from slurmgpu.local.standins.job import PretendedJob

__all__ = ["task_prolog", "write_stand_ins"]

_SAID = 'echo "slurmgpu sandbox:'
_NVIDIA_SMI = f"""\
#!/bin/sh
{_SAID} nvidia-smi: the GPUs are pretended" >&2
case "${{1-}}" in -L | --list-gpus) ;; *) exit 0 ;; esac
gpu=0
while [ "$gpu" -lt "${{SLURM_GPUS_ON_NODE:-0}}" ]; do
    echo "GPU $gpu: pretended (UUID: GPU-$gpu)"
    gpu=$((gpu + 1))
done
"""


def write_stand_ins(folder: Path) -> None:
    """Write the programs of a local run that a job in a sandbox may need, into a folder of their own."""
    folder.mkdir()
    nobody = PretendedJob(0, "", 1, 1, 1, 0, 1, "", "", "/bin/bash", "", sys.executable, "", 1, 1, 1, 0, 0.0)
    nobody.save(str(folder))
    main = Path(standins.__file__).with_name("__main__.py")
    for name in PROGRAMS:
        words = shlex.join([sys.executable, "-I", "-S", str(main), "container"])
        # In a folder of each job's own, where what was said once is noted.
        own = f'own={shlex.quote(str(folder))}/job-${{SLURM_JOB_ID:-0}}\nmkdir -p "$own"\nln -sf ../job.json "$own/job.json"\n'
        (folder / name).write_text(f'#!/bin/sh\n{own}exec {words} "$own" {name} "$@"\n', encoding="utf-8")
    (folder / "nvidia-smi").write_text(_NVIDIA_SMI, encoding="utf-8")
    for name in (*PROGRAMS, "nvidia-smi"):
        (folder / name).chmod(0o755)


def task_prolog(without_gpus: Path, stand_ins: Path) -> str:
    """Return the TaskProlog: a shell script whose lines that begin with ``export`` Slurm sets in each task.

    It puts a folder first on PYTHONPATH, the stand-ins last on PATH, and defines ``module`` for bash where nothing does.
    """
    loaded = 'LOADEDMODULES="${LOADEDMODULES-}:$(IFS=:; echo "${*:2}")"'  # where a script looks at what it has loaded
    module = f'() {{  {_SAID} module $*: nothing is loaded" >&2; {loaded}; }}'
    words = "list|av|avail|purge|use|unuse|load|unload|add|del|rm|swap|show|spider|save|restore|help"
    ml = f'() {{  case ${{1-list}} in {words}) module "$@" ;; *) module load "$@" ;; esac; }}'
    return f"""\
#!/bin/sh
place={shlex.quote(str(without_gpus))}
own={shlex.quote(str(stand_ins))}
case ":${{PYTHONPATH-}}:" in
*":$place:"*) ;;
*) echo "export PYTHONPATH=$place${{PYTHONPATH:+:$PYTHONPATH}}" ;;
esac
case ":${{PATH-}}:" in
*":$own:"*) ;;
*) echo "export PATH=${{PATH:-/usr/bin:/bin}}:$own" ;;
esac
env | grep '^BASH_FUNC_module\\|^LMOD_CMD=\\|^MODULESHOME=' >/dev/null ||
    printf 'export BASH_FUNC_%s%%%%=%s\\n' module {shlex.quote(module)} ml {shlex.quote(ml)}
"""
