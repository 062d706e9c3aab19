"""The short stand-ins: scontrol, getent, module, conda, nvidia-smi, torchrun, and refusals."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import NoReturn

from slurmgpu.lines.slurm import expand
from slurmgpu.local.standins.fitting import fit_agent, is_pretended_host
from slurmgpu.local.standins.folder import PretendedJob, node_names, say, say_once

__all__ = ["main"]


def _execute(command: list[str]) -> NoReturn:
    os.execvp(command[0], command)


def _scontrol(_folder: str, job: PretendedJob, arguments: list[str]) -> int:
    words = [word for word in arguments if not word.startswith("-")]
    match words:
        case ["show", kind, *rest] if "hostnames".startswith(kind) and len(kind) > 4:
            nodelist = rest[0] if rest else os.environ.get("SLURM_JOB_NODELIST", "")
            print("\n".join(expand(nodelist)))
        case ["show", "hostlist" | "hostlistsorted", names]:
            print(names)
        case ["show", "node" | "nodes", *rest]:
            for name in rest or node_names(job.nodes):
                print(f"NodeName={name} NodeAddr=127.0.0.1 NodeHostName={name} State=ALLOCATED")
        case ["show", "job" | "jobs", *_]:
            print(f"JobId={job.job_id} JobName={job.job_name} JobState=RUNNING NumNodes={job.nodes}")
        case _:
            return _refuse("scontrol", arguments)
    return 0


def _getent(folder: str, job: PretendedJob, arguments: list[str]) -> int:
    """Keep a name server from knowing some other node1: a pretended node has no address of its own."""
    if any(is_pretended_host(word, node_names(job.nodes)) for word in arguments):
        return 2
    wrappers = str(Path(folder, "bin"))
    others = [path for path in os.environ.get("PATH", "").split(os.pathsep) if path != wrappers]
    real = shutil.which("getent", path=os.pathsep.join(others))
    return 2 if real is None else _execute([real, *arguments])


def _module(folder: str, _job: PretendedJob, arguments: list[str]) -> int:
    say_once(folder, f"{shlex.join(['module', *arguments])}: nothing is loaded or changed")
    return 0


def _conda(folder: str, _job: PretendedJob, arguments: list[str]) -> int:
    base = Path(folder, "conda")
    match arguments:
        case ["shell.bash" | "shell.posix", *_] | ["shell", *_]:
            print(f'conda() {{ {shlex.quote(str(Path(folder, "bin", "conda")))} "$@"; }}')
        case ["info", "--base"]:
            print(base)
        case ["run", *rest]:
            return _conda_run(folder, rest)
        case _:
            said = shlex.join(["conda", *arguments])
            say_once(folder, f"{said}: that environment is not here, nothing is changed")
    return 0


def _conda_run(folder: str, words: list[str]) -> int:
    left = list(words)
    while left and left[0].startswith("-"):
        option = left.pop(0)
        if option in ("-n", "--name", "-p", "--prefix", "--cwd") and left:
            left.pop(0)
    if not left:
        return 0
    say_once(folder, f"conda run: {left[0]} without the environment, which is not here")
    return _execute(left)


def _nvidia_smi(folder: str, job: PretendedJob, arguments: list[str]) -> int:
    say_once(folder, "nvidia-smi: no GPU is used in a local run")
    if arguments in (["-L"], ["--list-gpus"]):
        for index in range(job.gpus_per_node):
            print(f"GPU {index}: pretended (UUID: GPU-{index})")
    return 0


def _torchrun(folder: str, job: PretendedJob, arguments: list[str]) -> int:
    words, changes = fit_agent(
        ["torchrun", *arguments], job.nodes, job.processes_per_node, node_names(job.nodes)
    )
    say_once(folder, f"torchrun: {job.python} -m torch.distributed.run ({', '.join(changes) or 'as it is'})")
    return _execute([job.python, "-m", "torch.distributed.run", *words[1:]])


def _refuse(name: str, arguments: list[str]) -> int:
    say(f"{shlex.join([name, *arguments])}: there is no Slurm in a local run; nothing was done")
    return 1


_COMMANDS = {
    "scontrol": _scontrol,
    "getent": _getent,
    "module": _module,
    "conda": _conda,
    "nvidia-smi": _nvidia_smi,
    "torchrun": _torchrun,
}


def main(folder: str, arguments: list[str]) -> int:
    """Run the command that the first argument names."""
    name, *rest = arguments
    if name not in _COMMANDS:
        return _refuse(name, rest)
    return _COMMANDS[name](folder, PretendedJob.load(folder), rest)
