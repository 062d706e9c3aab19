"""The last line of a script: container, launcher and command, where they are sure."""

from __future__ import annotations

import re
from typing import Any

from slurmgpu.models.job import Job
from slurmgpu.planning.command import python_command
from slurmgpu.planning.exact import ExactSize
from slurmgpu.scripts.importing_words import Unsure, literal, path

__all__ = ["Unsure", "read_command"]

# The shell's own words are no programs: `command:` starts none of them.
_BUILTINS = """
    . : [ alias bg bind break builtin caller cd command compgen complete continue declare dirs disown echo enable eval
    exec exit export false fg getopts hash help history jobs kill let local logout mapfile ml module popd printf pushd
    pwd read readarray readonly return set shift shopt sleep source suspend test time times trap true type typeset
    ulimit umask unalias unset wait conda mamba micromamba spack sbatch scancel
"""
_SRUN_OPTIONS = re.compile(r"--(?:cpu-bind|gpu-bind|mem-bind|mpi|hint|distribution|unbuffered|label)(?:=|\Z)")
# Options of apptainer exec and run (its manual, 1.4), alone and with a value; each is kept as it stands.
_CONTAINER_FLAGS = """
    --allow-setuid --cleanenv -e --compat --contain -c --containall -C --disable-cache --fakeroot -f --ipc -i --keep-privs
    --net -n --no-eval --no-home --no-https --no-init --no-privs --no-umask --nohttps --nvccli --oom-kill-disable --pid -p
    --underlay --unsquash --userns -u --uts --writable -w --writable-tmpfs
"""
_CONTAINER_VALUES = """
    --add-caps --app --apply-cgroups --blkio-weight --cpu-shares --cpus --cpuset-cpus --cpuset-mems --cwd --dns
    --docker-host --drop-caps --env --env-file --fusemount --home -H --hostname --memory --memory-reservation
    --memory-swap --mount --network --network-args --no-mount --overlay -o --pids-limit --pwd --scratch -S --security
    --workdir -W
"""
# Options by which Slurm counts tasks in ways that a launcher's line does not say.
_COUNTED_OTHERWISE = {
    "ntasks-per-gpu",
    "ntasks-per-socket",
    "ntasks-per-core",
    "overcommit",
    "extra-node-info",
}
_SIZES = {"nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "gres"}


def read_command(words: list[str], job: Job, size: ExactSize) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The fields ``command`` and ``launch``, and the container; Unsure where the line says more than they can."""
    launch: dict[str, Any] = {"launcher": "plain"}
    if words[0] == "srun":
        words, options = _srun(words[1:], job)
        launch = {"launcher": "srun", **({"srun_options": options} if options else {})}
    container = None
    if words and words[0] in {"apptainer", "singularity"}:
        container, words = _container(words, size)
    if not words:
        raise Unsure("nothing follows that could be the command")
    mode = (container or {}).get("mode")
    if words[0] == "torchrun" or _is_torchrun_module(words):
        if mode == "run":
            raise Unsure("the image's own runscript gets the word torchrun")
        words = _torchrun(words, job, size)
        launch["launcher"] = "torchrun"
    command = [literal(word) for word in words]
    if command[0] in _BUILTINS.split() or "=" in command[0] or not command[0]:
        raise Unsure(f"{command[0] or 'an empty word'} is the shell's own, no program")
    if launch["launcher"] == "srun" and mode == "run":
        raise Unsure("srun starts an image's own runscript, which gets no ranks")
    return {"launch": launch if len(launch) > 1 else launch["launcher"], "command": command}, container


def _is_torchrun_module(words: list[str]) -> bool:
    try:
        python = python_command(tuple(map(literal, words)))
    except Unsure:
        return False
    return python is not None and python.launcher == "torchrun" and not python.runner


def _tasks_are_sure(job: Job) -> bool:
    """Whether Slurm starts as many tasks, and on as many nodes, as the rendered srun asks for."""
    resources = job.resources
    if {*_COUNTED_OTHERWISE, *_SIZES} & set(job.sbatch) or job.components:
        return False
    if resources.tasks is not None:
        nodes = resources.nodes
        if nodes is None:
            return resources.tasks == 1
        return resources.tasks == nodes * (resources.tasks_per_node or resources.tasks // nodes)
    # Slurm counts tasks by GPUs where both totals are named.
    return resources.gpus is None or resources.gpus_per_task is None


def _srun(words: list[str], job: Job) -> tuple[list[str], list[str]]:
    """What srun runs, and its options."""
    if not _tasks_are_sure(job):
        raise Unsure("the options leave open how many tasks srun starts on each node")
    options: list[str] = []
    while words and words[0].startswith("-"):
        option = {"-u": "--unbuffered", "-l": "--label"}.get(words[0], words[0])
        if not _SRUN_OPTIONS.match(option):
            raise Unsure(f"srun's {option} may start other tasks than the job's options say")
        options.append(literal(option))
        words = words[1:]
    return words, options


def _container(words: list[str], size: ExactSize) -> tuple[dict[str, Any], list[str]]:
    runtime, mode, rest = words[0], words[1] if len(words) > 1 else "", words[2:]
    if mode not in {"exec", "run"}:
        raise Unsure(f"{runtime} {mode or 'alone'} is neither exec nor run")
    found: dict[str, Any] = {"runtime": runtime} if runtime != "apptainer" else {}
    gpu, binds, options = "none", [], []
    flags, valued = _CONTAINER_FLAGS.split(), _CONTAINER_VALUES.split()
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option in {"--nv", "--rocm"} and not equals and gpu == "none":
            gpu = {"--nv": "nvidia", "--rocm": "amd"}[option]
        elif option in {"-B", "--bind"} and (equals or rest):
            binds += path(value if equals else rest.pop(0)).split(",")
        elif (option in flags and not equals) or (option in valued and equals):
            options.append(literal(option + equals + value))
        elif option in valued and rest:
            options += [option, literal(rest.pop(0))]
        else:
            raise Unsure(f"{option} is no known option of {runtime} {mode}, so the image cannot be told")
    if not rest:
        raise Unsure(f"{runtime} {mode} names no image")
    found["image"] = path(rest.pop(0))
    if mode == "run":
        found["mode"] = mode
    if gpu == "none" or not size.gpus:
        # The rendered script says --nv where GPUs are asked for; sites with whole nodes ask for none.
        options = [*({"nvidia": ["--nv"], "amd": ["--rocm"], "none": []}[gpu]), *options]
        gpu = "none"
    if gpu != "nvidia":
        found["gpu"] = gpu
    if binds:
        found["binds"] = binds
    if options:
        found["options"] = options
    return found, rest


def _torchrun(words: list[str], job: Job, size: ExactSize) -> list[str]:
    """The command that torchrun runs, on one node with a process per GPU; anything else is not sure."""
    if not _tasks_are_sure(job) or size.nodes != 1 or size.tasks != 1 or not size.gpus:
        raise Unsure("torchrun becomes a launcher where the options ask for one node, one task and its GPUs")
    if words[0] == "torchrun":
        python, rest = "python", words[1:]
    else:
        python, rest = words[0], words[words.index("-m") + 2 :]
        if words[1] != "-m":
            raise Unsure(f"{words[1]} stands before torchrun's module")
    processes: str | None = None
    while rest and rest[0].startswith("-"):
        option, _, value = literal(rest[0]).replace("_", "-").partition("=")
        rest = rest[1:]
        if option == "--nproc-per-node":
            processes = value or literal(rest[0] if rest else "")
            rest = rest if value else rest[1:]
        elif option == "--nnodes" and value == "1":
            continue
        elif option != "--standalone" or value:
            raise Unsure(f"torchrun's {option} has no field")
    if processes not in {str(size.gpus), "gpu"}:
        raise Unsure(f"torchrun starts {processes or 1} processes, and the job has {size.gpus} GPUs")
    if not rest or not rest[0].endswith(".py"):
        raise Unsure("torchrun starts no Python script")
    return [python, *rest]
