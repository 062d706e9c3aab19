"""The last line of a script (container, launcher, command), and sbatch's options as fields of a job file."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from slurmgpu.launchers import TORCHRUN, launcher_module
from slurmgpu.lines.command import python_command
from slurmgpu.lines.container import PROGRAMS, read_container
from slurmgpu.lines.options import Option, Table
from slurmgpu.lines.slurm import SRUN
from slurmgpu.models.job import Job
from slurmgpu.models.options import ROWS
from slurmgpu.planning.exact import ExactSize, component_options, exact_options
from slurmgpu.script.shell import BUILTINS, pieces, unquoted

__all__ = [
    "PLACEHOLDER",
    "Asked",
    "Key",
    "Unsure",
    "asked_of",
    "literal",
    "options_to_data",
    "path",
    "place",
    "read_command",
    "valid",
]


# What an unquoted word may hold and still be itself: nothing that the shell expands or splits at.
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})")
_IN_QUOTES = re.compile(r'[^"\\$`]+')


class Unsure(Exception):
    """A word or a line that has no certain meaning; its text says why."""


def literal(word: str) -> str:
    """Return the text of a word in which nothing expands; Unsure otherwise."""
    return _read(word, variables=False)


def path(word: str) -> str:
    """Return a word in which only ``$NAME``, ``${NAME}`` and a leading ``~/`` expand, as a job file has it; else Unsure."""
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
_OWN_WORDS = BUILTINS | frozenset({
    "command", "echo", "conda", "mamba", "micromamba", "ml", "module", "sbatch", "scancel", "sleep", "spack", "time",
})  # fmt: skip
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
    """Return the fields ``command`` and ``launch``, and the container; Unsure where the line says more than they can."""
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
    if command[0] in _OWN_WORDS or "=" in command[0] or not command[0]:
        raise Unsure(f"{command[0] or 'an empty word'} is the shell's own, no program")
    if launch["launcher"] == "srun" and mode == "run":
        raise Unsure("srun starts an image's own runscript, which gets no ranks")
    return {"launch": launch if len(launch) > 1 else launch["launcher"], "command": command}, container


def _is_torchrun_module(words: list[str]) -> bool:
    try:
        python = python_command(tuple(map(literal, words)))
    except Unsure:
        return False
    return python is not None and launcher_module(python.module) == "torchrun" and not python.runner


def _tasks_are_sure(job: Job) -> bool:
    """Return True if Slurm starts as many tasks, and on as many nodes, as the rendered srun asks for."""
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
    """Return the options that words as written begin with, and the words behind them; Unsure where something expands."""
    line = table.read([unquoted(word) for word in words])
    for word in words[: line.end]:
        literal(word)
    for fault in line.faults:
        raise Unsure(f"{fault.text}: {fault.why.replace('-', ' ')}")
    return line.options, words[line.end :]


def _srun(words: list[str], job: Job) -> tuple[list[str], list[str]]:
    """Return what srun runs, and its options."""
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
    """Return the command that torchrun runs, on one node with a process per GPU; anything else is not sure."""
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


Key = tuple[str | int, ...]
Asked = list[tuple[str, str | None]]
"""Options by their long names, in the order in which they count; None: without a value."""

PLACEHOLDER = {"exact": True, "script": "true"}
"""Options that alone make a whole job."""

# Options that set the same thing in Slurm: the last one counts, so their order must stay.
_TOGETHER = (
    frozenset({"requeue", "no-requeue"}),
    frozenset({"exclusive", "oversubscribe"}),
    frozenset({"mem", "mem-per-cpu", "mem-per-gpu"}),
    frozenset({"cpus-per-task", "cpus-per-gpu"}),
)


def _text(value: str | None) -> Any:
    if not value:
        raise ValueError
    return value


def _number(value: str | None) -> object:
    return (
        int(value)
        if value is not None and value.isascii() and value.isdigit() and str(int(value)) == value
        else _text(value)
    )


def _list(value: str | None) -> object:
    return _text(value).split(",")


def _flag(value: str | None) -> object:
    if value is not None:
        raise ValueError
    return True


def _reasons(*reasons: str) -> Callable[[str | None], object]:
    return lambda value: list(reasons) if _flag(value) else None


_READERS: dict[str, Callable[[str | None], object]] = {
    "text": _text, "count": _number, "amount": _number, "list": _list, "flag": _flag
}  # fmt: skip
_RESTART: Key = ("restart", "on")
_FIELDS: dict[str, tuple[Key, Callable[[str | None], object]]] = {
    row.option: (tuple(row.key.split(".")), _READERS[row.kind])
    for row in ROWS
    if row.option is not None and row.key != "work_dir"  # a script's own folder is where it is submitted
} | {
    "requeue": (_RESTART, _reasons("preemption", "node_failure")),
    "no-requeue": (_RESTART, _reasons()),
}
"""Where an option of sbatch stands in a job file, and what its value is there."""


def options_to_data(components: list[Asked]) -> dict[str, object]:
    """Return the options of each component of a job as its file holds them, ``exact`` included; no script yet.

    Of an option that is given twice in a component the last counts.
    """
    data, _ = place([list(dict(one).items()) for one in components])
    return data


def place(components: list[Asked]) -> tuple[dict[str, object], dict[tuple[int, str], Key]]:
    """Return the options of each component as a job's data, and the key of each (component and name)."""
    data: dict[str, Any] = {"exact": True}
    keys: dict[tuple[int, str], Key] = {}
    for number, asked in enumerate(components):
        inside: Key = () if number == 0 else ("components", number - 1)
        if number:
            data.setdefault("components", []).append({})
        kept: set[str] = set()  # what is under sbatch: it is rendered after the fields
        for name, value in asked:
            together = next((group for group in _TOGETHER if name in group), frozenset())
            key = None if kept & together else _fit(data, inside, name, value)
            if key is None:
                key = (*inside, "sbatch", name)
                kept.add(name)
                _put(data, key, _plain(value))
            keys[number, name] = key
    return data, keys


def _plain(value: str | None) -> str | int | bool:
    if value is None:
        return True
    number = _number(value) if value else value
    return number if isinstance(number, int) else value


def _fit(data: dict[str, object], inside: Key, name: str, value: str | None) -> Key | None:
    """Put an option into the field that stands for it; None where the field would not ask for just that."""
    field, convert = _FIELDS.get(name, (None, None))
    if field is None or convert is None or (inside and field[0] != "resources"):
        return None
    key = (*inside, *field)
    if _get(data, key) is not None:
        return None
    try:
        placed = convert(value)
    except ValueError:
        return None
    attempt = json.loads(json.dumps(data))
    _put(attempt, key, placed)
    job = valid({**attempt, **PLACEHOLDER})
    if job is None or (name, value) not in asked_of(job)[int(inside[1]) + 1 if inside else 0]:
        return None
    _put(data, key, placed)
    return key


def _put(data: Any, key: Key, value: object) -> None:
    for part in key[:-1]:
        data = data[part] if isinstance(part, int) else data.setdefault(part, {})
    data[key[-1]] = value


def _get(data: Any, key: Key) -> object:
    for part in key:
        if isinstance(part, int):
            data = data[part]
        elif part not in data:
            return None
        else:
            data = data[part]
    return data


def valid(data: dict[str, object]) -> Job | None:
    """Return the job of this data; None where it is not a job."""
    try:
        return Job.model_validate_json(json.dumps(data))
    except ValidationError:
        return None


def asked_of(job: Job) -> list[Asked]:
    """Return what the job asks of Slurm, component by component."""
    first = [(option.name, option.value) for option in exact_options(job)]
    further = [[(option.name, option.value) for option in component_options(one)] for one in job.components]
    return [first, *further]
