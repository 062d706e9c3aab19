"""The last line of a script: container, launcher and command, where they are sure."""

from __future__ import annotations

import itertools
import re

from slurmgpu.lines.command import python_command
from slurmgpu.lines.container import PROGRAMS, read_container
from slurmgpu.lines.options import Option, Table
from slurmgpu.lines.slurm import SRUN
from slurmgpu.lines.torchrun import TORCHRUN
from slurmgpu.models.job import Job
from slurmgpu.planning.exact import ExactSize
from slurmgpu.scripts.shell import pieces, unquoted

__all__ = ["Unsure", "literal", "path", "read_command"]


# What an unquoted word may hold and still be itself: nothing that the shell expands or splits at.
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})")
_IN_QUOTES = re.compile(r'[^"\\$`]+')


class Unsure(Exception):
    """What a word or a line means cannot be told for certain; its text says why."""


def literal(word: str) -> str:
    """The text of a word in which nothing expands; Unsure otherwise."""
    return _read(word, variables=False)


def path(word: str) -> str:
    """A word in which only ``$NAME``, ``${NAME}`` and a leading ``~/`` expand, as a job file has it; else Unsure."""
    return _read(word, variables=True)


def _read(word: str, *, variables: bool) -> str:
    home = variables and (word == "~" or word.startswith("~/"))
    found = ["~"] if home else []
    for quote, text in pieces(word[1:] if home else word):
        if quote == "'":
            # A job file would expand what single quotes keep.
            if variables and re.search(r"\$[A-Za-z_{]", text):
                raise Unsure(f"{word} is to stay as it is, and a job file would expand it")
            found.append(text)
            continue
        plain, at = {"": _PLAIN, '"': _IN_QUOTES}.get(quote), 0
        while at < len(text):
            match = (plain and plain.match(text, at)) or (
                _VARIABLE.match(text, at) if variables and plain else None
            )
            if match is None:
                raise Unsure(f"the shell expands {word}, and in a job file it would stay as it is")
            found.append(match[0])
            at = match.end()
    if variables and not home and "".join(found).startswith("~"):
        raise Unsure(f"{word} is quoted, so it is not a home folder")
    # "$A"b is not $Ab.
    for index, (piece, following) in enumerate(itertools.pairwise(found)):
        if _VARIABLE.fullmatch(piece) and not piece.endswith("}") and re.match(r"\w", following):
            found[index] = f"${{{piece[1:]}}}"
    return "".join(found)


# The shell's own words are not programs: `command:` starts none of them.
_BUILTINS = """
    . : [ alias bg bind break builtin caller cd command compgen complete continue declare dirs disown echo enable eval
    exec exit export false fg getopts hash help history jobs kill let local logout mapfile ml module popd printf pushd
    pwd read readarray readonly return set shift shopt sleep source suspend test time times trap true type typeset
    ulimit umask unalias unset wait conda mamba micromamba spack sbatch scancel
"""
# Of srun's options those that change nothing about how many tasks there are, and where.
_SRUN_OPTIONS = {"cpu-bind", "gpu-bind", "mem-bind", "mpi", "hint", "distribution", "unbuffered", "label"}
# Options by which Slurm counts tasks in ways that a launcher's line does not say.
_COUNTED_OTHERWISE = {
    "ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core", "overcommit", "extra-node-info",
}  # fmt: skip
_GPU_OPTIONS = {"nv": "nvidia", "rocm": "amd"}
_SIZES = {"nodes", "ntasks", "ntasks-per-node", "gpus", "gpus-per-node", "gpus-per-task", "gres"}


def read_command(
    words: list[str], job: Job, size: ExactSize
) -> tuple[dict[str, object], dict[str, object] | None]:
    """The fields ``command`` and ``launch``, and the container; Unsure where the line says more than they can."""
    launch: dict[str, object] = {"launcher": "plain"}
    if words[0] == "srun":
        words, options = _srun(words[1:], job)
        launch = {"launcher": "srun", **({"srun_options": options} if options else {})}
    container = None
    if words and words[0] in PROGRAMS:
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


def _options(table: Table, words: list[str]) -> tuple[tuple[Option, ...], list[str]]:
    """The options that words as written begin with, and the words behind them; Unsure where something expands."""
    line = table.read([unquoted(word) for word in words])
    for word in words[: line.end]:
        literal(word)
    for fault in line.faults:
        raise Unsure(f"{fault.text}: {fault.why.replace('-', ' ')}")
    return line.options, words[line.end :]


def _srun(words: list[str], job: Job) -> tuple[list[str], list[str]]:
    """What srun runs, and its options."""
    if not _tasks_are_sure(job):
        raise Unsure("the options leave open how many tasks srun starts on each node")
    options, words = _options(SRUN, words)
    for one in options:
        if one.name not in _SRUN_OPTIONS:
            raise Unsure(f"srun's {one.spelling} may start other tasks than the job's options say")
    return words, [f"--{one.name}" + ("" if one.value is None else f"={one.value}") for one in options]


def _container(words: list[str], size: ExactSize) -> tuple[dict[str, object], list[str]]:
    runtime, mode = words[0], words[1] if len(words) > 1 else ""
    if mode not in {"exec", "run"}:
        raise Unsure(f"{runtime} {mode or 'alone'} is neither exec nor run")
    line = read_container([unquoted(word) for word in words[1:]]).line
    for fault in line.faults:
        raise Unsure(f"{fault.text} is not a known option of {runtime} {mode}, so the image cannot be told")
    found: dict[str, object] = {"runtime": runtime} if runtime != PROGRAMS[0] else {}
    gpu = "none"
    binds: list[str] = []
    options: list[str] = []
    for one in line.options:
        written = words[1 + one.at : 2 + one.value_at]
        if not written[0].startswith(one.spelling):
            raise Unsure(f"{written[0]} is several options of {runtime} {mode} in one word")
        if one.name in _GPU_OPTIONS and gpu == "none":
            gpu = _GPU_OPTIONS[one.name]
        elif one.name == "bind":
            binds += path(written[-1].removeprefix(one.spelling).removeprefix("=")).split(",")
        else:
            options += map(literal, written)
    rest = words[1 + line.end :]
    if not rest:
        raise Unsure(f"{runtime} {mode} names no image")
    found["image"] = path(rest.pop(0))
    if mode == "run":
        found["mode"] = mode
    if gpu == "none" or not size.gpus:
        # The rendered script says --nv where GPUs are asked for; sites with whole nodes ask for none.
        options = [*(f"--{name}" for name, kind in _GPU_OPTIONS.items() if kind == gpu), *options]
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
            raise Unsure(f"{words[1]} comes before torchrun's module")
    options, rest = _options(TORCHRUN, rest)
    processes: str | None = None
    for one in options:
        if one.name == "nproc-per-node":
            processes = one.value
        elif one.name != "standalone" and (one.name, one.value) != ("nnodes", "1"):
            raise Unsure(f"torchrun's {one.spelling} has no field")
    if processes not in {str(size.gpus), "gpu"}:
        raise Unsure(f"torchrun starts {processes or 1} processes, and the job has {size.gpus} GPUs")
    if not rest or not rest[0].endswith(".py"):
        raise Unsure("torchrun starts no Python script")
    return [python, *rest]
