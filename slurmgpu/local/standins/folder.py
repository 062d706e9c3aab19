"""The pretended job: what the stand-ins are told, and how they say what they did.

Writes the folder that is first on PATH, and what bash reads before the script (BASH_ENV).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from slurmgpu.lines.container import PROGRAMS

__all__ = [
    "MAIN",
    "PretendedJob",
    "Site",
    "node_names",
    "say",
    "say_once",
    "write_executable",
    "write_folder",
]


@dataclass(frozen=True)
class PretendedJob:
    """The figures of the local run beside those that the script was written for."""

    job_id: int
    job_name: str
    nodes: int
    processes_per_node: int
    cpus_per_task: int
    gpus_per_node: int
    cpus_on_node: int
    partition: str
    submit_dir: str
    bash: str
    script: str
    python: str
    """Path of the Python that stands in for the site's."""
    loopback: str
    """Name of the loopback interface (``lo``, ``lo0``), empty where it is not known."""
    threads: int
    """This machine's CPUs over the processes of the run: the most that OMP_NUM_THREADS may be."""
    script_nodes: int
    script_tasks_per_node: int
    nice: int
    grace: float
    """Seconds between asking the processes to end and killing them."""
    python_path: str = ""
    """Folder that comes first on PYTHONPATH."""
    devices: Sequence[str] = ()
    """The GPUs that are used, as many for each node; empty: the CPU stands in for them."""
    devices_variable: str = ""
    """Variable that shows them to a process."""

    def save(self, folder: str) -> None:
        """Write it as ``job.json`` into the folder of the stand-ins."""
        Path(folder, "job.json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, folder: str) -> PretendedJob:
        """Read what :meth:`save` wrote."""
        return cls(**json.loads(Path(folder, "job.json").read_text(encoding="utf-8")))

    def with_python_path(self, others: str) -> str:
        """PYTHONPATH with ours first: a script that sets its own would lose it."""
        rest = [path for path in others.split(os.pathsep) if path not in ("", self.python_path)]
        return os.pathsep.join([self.python_path, *rest])

    def shown_devices(self, node: int) -> dict[str, str]:
        """Return the variable that shows the processes of a node (0, 1, ...) its GPUs, and no others."""
        each = len(self.devices) // self.nodes
        if not each:
            return {"CUDA_VISIBLE_DEVICES": ""}
        return {self.devices_variable: ",".join(self.devices[node * each : (node + 1) * each])}


def node_names(nodes: int) -> list[str]:
    """Return the names of the pretended nodes: node1, node2, ..."""
    return [f"node{number}" for number in range(1, nodes + 1)]


def say(text: str) -> None:
    """Tell the user on stderr, in one write so that lines of several processes do not mix."""
    with contextlib.suppress(OSError):  # nobody reads; the job goes on
        sys.stderr.write(f"slurmgpu run: {text}\n")
        sys.stderr.flush()


def say_once(folder: str, text: str) -> None:
    """Tell the user the first time only, however many processes of the run say the same."""
    mark = Path(folder, "said-" + hashlib.sha256(text.encode()).hexdigest()[:24])
    try:
        mark.touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        return
    except OSError:
        pass  # the folder is on its way out: say it rather twice than never
    say(text)


MAIN = Path(__file__).with_name("__main__.py")

_SHORT = ("scontrol", "getent", "module", "nvidia-smi", "sbatch", "salloc", "scancel", "torchrun")
# The stand-in's module by the wrapper's name.
_ALWAYS = {"srun": "srun", **dict.fromkeys(PROGRAMS, "container"), **dict.fromkeys(_SHORT, "commands")}

_BASH_ENV = """\
# Read once by the batch shell of a local run; the processes that it starts do not see it.
unset BASH_ENV
__slurmgpu_bin={bin}
__slurmgpu_submit_dir={submit_dir}
__slurmgpu_work=
__slurmgpu_cds=0
__slurmgpu_say() {{ printf 'slurmgpu run: %s\\n' "$*" >&2; }}

# Functions, because a site's own module is one, too.
__slurmgpu_modules() {{
  module() {{
    "$__slurmgpu_bin/module" "$@"
    LOADEDMODULES=${{LOADEDMODULES-}}:${{!#}}  # where a script looks at what it has loaded
  }}
  ml() {{ module load "$@"; }}
}}
__slurmgpu_modules

# The work folder, which is where the script goes first, may be on the cluster only.
cd() {{
  __slurmgpu_cds=$((__slurmgpu_cds + 1))
  if [[ $# -gt 0 && ${{!#}} == /* && ! -d ${{!#}} ]]; then
    if [[ $__slurmgpu_cds == 1 ]]; then
      __slurmgpu_work=${{!#}}
      __slurmgpu_say "cd $__slurmgpu_work: not here, $__slurmgpu_submit_dir instead"
    fi
    if [[ -n $__slurmgpu_work && ${{!#}} == "$__slurmgpu_work" ]]; then
      builtin cd -- "$__slurmgpu_submit_dir"
      return
    elif [[ -n $__slurmgpu_work && ${{!#}} == "$__slurmgpu_work"/* ]]; then
      builtin cd -- "$__slurmgpu_submit_dir/${{!##"$__slurmgpu_work"/}}"
      return
    fi
  fi
  builtin cd "$@"
}}
"""

_SOURCE = """
# A sourced file that is not here (a venv's, conda's or a module system's) is passed over.
__slurmgpu_source() {
  if [[ ${1-} == /* && ! -e $1 ]] || [[ ${1-} == activate && ! -e activate ]]; then
    __slurmgpu_say "source $*: not here, passed over"
    return 0
  fi
  builtin source "$@"
  set -- $?
  __slurmgpu_modules
  return "$1"
}
source() { __slurmgpu_source "$@"; }
.() { __slurmgpu_source "$@"; }
"""

_TEST = """
# Tests of these files see the cluster, not this machine.
__slurmgpu_there() {
  local there
  case ${1-} in -e | -f | -d | -r | -s | -x) ;; *) return 1 ;; esac
  for there in "${__slurmgpu_files[@]}"; do
    if [[ ${2-} == "$there" && ! -e $there ]]; then return 0; fi
  done
  return 1
}
__slurmgpu_test() {
  if [[ $# == 2 ]] && __slurmgpu_there "$@"; then return 0; fi
  if [[ $# == 3 && $1 == '!' ]] && __slurmgpu_there "$2" "$3"; then return 1; fi
  builtin test "$@"
}
test() { __slurmgpu_test "$@"; }
[() { __slurmgpu_test "${@:1:$#-1}"; }
"""


@dataclass(frozen=True)
class Site:
    """Things that the script expects and that are not on this machine."""

    variables: Sequence[str] = ()
    files: Sequence[str] = ()
    """Files and folders that its tests are told exist."""
    pythons: Sequence[str] = ()
    """Paths of interpreters."""
    conda: bool = False
    sources: bool = False
    """True if it sources anything that is not here, or that would define ``module`` again."""


def write_folder(folder: Path, job: PretendedJob, site: Site, interpreter: str) -> dict[str, str]:
    """Write wrappers, ``bash_env.sh`` and ``job.json``; return the pretended variables with their values."""
    binaries = folder / "bin"
    binaries.mkdir()
    job.save(str(folder))
    wrappers = dict(_ALWAYS)
    if site.conda:
        wrappers |= dict.fromkeys(("conda", "mamba", "micromamba"), "commands")
        hooks = folder / "conda/etc/profile.d"
        hooks.mkdir(parents=True)
        for hook in ("conda.sh", "mamba.sh"):
            (hooks / hook).touch()
    if job.devices:
        del wrappers["nvidia-smi"]
    for name, module in wrappers.items():
        said = "conda" if name in ("mamba", "micromamba") else name
        first = [] if module == name else [said]
        command = [interpreter, "-I", "-S", str(MAIN), module, str(folder), *first]
        write_executable(binaries / name, f'exec {shlex.join(command)} "$@"')
    for name in ("python", "python3"):
        write_executable(binaries / name, f'exec {shlex.quote(job.python)} "$@"')
    (folder / "bash_env.sh").write_text(_bash_env(binaries, job, site), encoding="utf-8")
    values = {name: str(folder / "site" / name) for name in site.variables}
    if "SLURM_TMPDIR" in values:
        Path(values["SLURM_TMPDIR"]).mkdir(parents=True)
    return values


def write_executable(path: Path, line: str) -> None:
    """Write a shell script of a line or more that may be executed."""
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(0o755)


def _bash_env(binaries: Path, job: PretendedJob, site: Site) -> str:
    text = _BASH_ENV.format(bin=shlex.quote(str(binaries)), submit_dir=shlex.quote(job.submit_dir))
    if site.sources:
        text += _SOURCE
    if site.files:
        text += f"\n__slurmgpu_files=({shlex.join(site.files)})\n" + _TEST
    for python in site.pythons:
        if re.fullmatch(r"[\w./+-]+", python, re.ASCII):  # bash has no function whose name needs quotes
            text += f'\n{python}() {{ "$__slurmgpu_bin/python3" "$@"; }}\n'
    return text
