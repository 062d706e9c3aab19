"""What the rules look at: the options as numbers, and the programs that the body starts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from slurmgpu.models.units import Duration, Memory
from slurmgpu.scripts.options import OPTIONS, SHORT, canonical
from slurmgpu.scripts.reading import Directive, Script
from slurmgpu.scripts.rules.base import Facts
from slurmgpu.scripts.shell import Simple, read_shell, simple_commands

__all__ = ["Asked", "Call", "View", "expanded", "gpu_entries", "is_placeholder"]

_SRUN_REQUIRED = {
    *("accel-bind", "cpu-bind", "cpu_bind", "epilog", "het-group", "jobid", "max-threads", "mem-bind", "mpi"),
    *("pack-group", "prolog", "relative", "task-epilog", "task-prolog", "threads", "wait"),
}
# Of srun's letters only these differ from sbatch's.
_SRUN_LETTERS = {**SHORT, "r": "relative", "T": "threads", "W": "wait"}
_SRUN_FLAGS = set("KluXZEsOHQvVhIk")
_LAUNCHERS = {
    *("srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "ibrun", "jsrun", "aprun", "torchrun"),
    *("accelerate", "deepspeed", "ray", "horovodrun", "composer", "colossalai", "parallel", "torchpippy"),
    *("pdsh", "clush", "dask", "charmrun", "sbatch"),
}  # fmt: skip
_HOUSEKEEPING = {
    *("echo", "cd", "module", "ml", "source", ".", "export", "conda", "mamba", "micromamba", "set", "mkdir", "date"),
    *("hostname", "nvidia-smi", "which", "pwd", "unset", "ulimit", "eval", "cp", "rm", "ls", "cat", "printf", "sleep"),
    *("true", ":", "trap", "test", "[", "[[", "env", "free", "lscpu", "uname", "whoami", "umask", "declare", "local"),
    *("if", "for", "case", "in", "function", "exit", "wait", "pip", "rsync", "touch", "ln", "mv", "tar", "deactivate"),
    *("shopt", "read", "return", "command", "type", "id", "df", "du", "chmod", "nproc", "rocm-smi", "sync", "break"),
}  # fmt: skip
_CONTAINERS = {"apptainer", "singularity", "shifter", "podman", "podman-hpc", "docker", "enroot"}


@dataclass(frozen=True)
class Asked:
    """The options of one component; numbers are None where none stands, or none can be read."""

    options: Mapping[str, Directive]

    def line(self, *names: str) -> int:
        """The line of the first of these options that stands there, else 1."""
        return next((self.options[name].line for name in names if name in self.options), 1)

    def value(self, name: str) -> str | None:
        """An option's value; None where it has none or is not given."""
        return self.options[name].value if name in self.options else None

    def number(self, name: str) -> int | None:
        """A whole number; of a range such as ``2-4`` the first."""
        match = re.match(r"(\d+)(?:-\d+)?\Z", self.value(name) or "")
        return int(match[1]) if match else None

    @property
    def nodes(self) -> int | None:
        """How many nodes, where they are named."""
        return self.number("nodes")

    @property
    def tasks_per_node(self) -> int | None:
        """How many tasks on a node, where that follows from the options."""
        if "ntasks-per-node" in self.options:
            return self.number("ntasks-per-node")
        tasks = self.number("ntasks")
        if tasks is not None and (self.nodes or 1) == 1:
            return tasks if self.nodes else (1 if tasks == 1 else None)
        return tasks // self.nodes if tasks and self.nodes and tasks % self.nodes == 0 else None

    @property
    def tasks(self) -> int | None:
        """How many tasks in all, where the options say it."""
        if "ntasks" in self.options:
            return self.number("ntasks")
        per_node = self.number("ntasks-per-node")
        if per_node is not None:
            return per_node * (self.nodes or 1)
        return self.nodes if "nodes" in self.options else 1

    @property
    def gpu_options(self) -> list[str]:
        """The options that ask for GPUs."""
        names = [
            name
            for name in ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
            if name in self.options
        ]
        if gpu_entries(self.value("gres") or ""):
            names.insert(0, "gres")
        if re.search(r"\bgres/gpu", self.value("tres-per-task") or ""):
            names.append("tres-per-task")
        return names

    def gpus_in(self, name: str) -> int | None:
        """The number of GPUs that one of the GPU options names; entries of several types are added up."""
        entries = gpu_entries(self.value(name) or "", typed=name != "gres")
        return sum(count for _, count in entries) if entries else None

    @property
    def gpu_types(self) -> set[str]:
        """The types of GPU that are named."""
        return {
            kind
            for name in self.gpu_options
            for kind, _ in gpu_entries(self.value(name) or "", typed=name != "gres")
            if kind
        }

    @property
    def gpus_per_node(self) -> int | None:
        """GPUs on each node, where that follows from the options."""
        for name in ("gres", "gpus-per-node"):
            if name in self.gpu_options:
                return self.gpus_in(name)
        if "gpus" in self.gpu_options:
            total, nodes = self.gpus_in("gpus"), self.nodes or 1
            return total // nodes if total and total % nodes == 0 else None
        if "gpus-per-task" in self.gpu_options:
            each, tasks = self.gpus_in("gpus-per-task"), self.tasks_per_node
            return each * tasks if each and tasks else None
        return None

    @property
    def time(self) -> Duration | None:
        """The time limit."""
        try:
            return Duration.parse(self.value("time") or "")
        except ValueError:
            return None

    def memory(self, name: str) -> Memory | None:
        """An amount of memory."""
        try:
            return Memory.parse(self.value(name) or "")
        except ValueError:
            return None


@dataclass(frozen=True)
class Call:
    """A program that the body starts, perhaps by srun, perhaps within ``bash -c``."""

    line: int
    words: tuple[str, ...]
    """The program and its arguments, without srun and its options."""
    raw: tuple[str, ...]
    simple: Simple
    srun: Mapping[str, str | None] | None = None
    """The options of the srun that starts it by their long names; None without srun."""
    open_options: bool = False
    """Some options of srun stand in a variable and are not seen."""
    nested: bool = False
    """It stands within the text of another command (``bash -c '...'``)."""

    @property
    def name(self) -> str:
        """The program's name, without its folder."""
        return self.words[0].rsplit("/", 1)[-1] if self.words else ""

    @cached_property
    def torchrun(self) -> int | None:
        """Where torchrun's own arguments begin; None where this is not torchrun."""
        for index, word in enumerate(self.words):
            if word.rsplit("/", 1)[-1] == "torchrun":
                return index + 1
            if (
                word in {"torch.distributed.run", "torch.distributed.launch"}
                and self.words[index - 1] == "-m"
            ):
                return index + 1
        return None

    @cached_property
    def python(self) -> tuple[str, ...] | None:
        """Python's own words after ``python``; None where no Python is started, or only asked something."""
        for index, word in enumerate(self.words):
            if re.fullmatch(r"python[\d.]*", word.rsplit("/", 1)[-1]):
                words = self.words[index + 1 :]
                while words and re.match(r"-(?![mcV-])\w", words[0]):
                    words = words[2:] if words[0] in {"-X", "-W"} else words[1:]
                if not words or words[0] in {"-c", "-V", "--version", "-"}:
                    return None
                if words[0] == "-m" and words[1:2] and words[1] in {"pip", "venv", "ensurepip"}:
                    return None
                return words
        return None

    @property
    def script(self) -> str | None:
        """The Python script that it runs, as written: started by python, or by torchrun."""
        words: tuple[str, ...] = self.python or ()
        if self.torchrun is not None:
            words = self.words[self.torchrun :]
        elif words[:1] == ("-m",):
            return None
        return next((word for word in words if word.endswith(".py")), None)

    @property
    def trains(self) -> bool:
        """Whether it starts a Python program, or one of the launchers of PyTorch."""
        return self.python is not None or self.torchrun is not None or self.by_launcher

    @property
    def by_launcher(self) -> bool:
        """Whether a launcher of processes other than srun starts it."""
        names = {word.rsplit("/", 1)[-1] for word in self.words}
        return bool(names & (_LAUNCHERS - {"srun"})) or self.torchrun is not None

    @property
    def housekeeping(self) -> bool:
        """Whether it is one of the small commands around the real work."""
        return self.srun is None and self.name in _HOUSEKEEPING

    @property
    def container(self) -> bool:
        """Whether it runs inside a container."""
        options = self.srun or {}
        return self.name in _CONTAINERS or bool({"container-image", "environment"} & set(options))


class View:
    """A script with what the rules want to know of it."""

    def __init__(self, script: Script, facts: Facts) -> None:
        self.script = script
        self.facts = facts

    @cached_property
    def components(self) -> list[Asked]:
        """The options of each component."""
        return [Asked(self.script.effective(one)) for one in range(self.script.components)]

    @cached_property
    def asked(self) -> Asked:
        """The options of the (first) component."""
        return self.components[0]

    @cached_property
    def simple(self) -> tuple[Simple, ...]:
        """The body's simple commands."""
        return self.script.simple_commands()

    @cached_property
    def calls(self) -> list[Call]:
        """The programs that the body starts, those within ``bash -c`` texts after the one that holds them."""
        return [call for simple in self.simple for call in _calls(simple)]

    @cached_property
    def sure(self) -> bool:
        """Whether every command is one that we know: no other script or program could start processes."""
        return all(call.housekeeping or call.trains or call.srun is not None for call in self.calls)

    @property
    def launches(self) -> bool:
        """Whether anything starts several processes: srun, mpirun, torchrun, ..."""
        return any(call.srun is not None or call.by_launcher for call in self.calls)

    @cached_property
    def body(self) -> str:
        """The body's text."""
        return "\n".join(self.script.lines[self.script.body_start - 1 :])

    @cached_property
    def comments(self) -> str:
        """The comment lines."""
        return "\n".join(
            line for line in self.script.lines if line.startswith("#") and not line.startswith("#SBATCH")
        )

    def sets(self, variable: str) -> bool:
        """Whether the body sets a variable."""
        return re.search(rf"(?m)(?:^|[\s;]){variable}=", self.body) is not None


def gpu_entries(value: str, *, typed: bool = False) -> list[tuple[str | None, int]]:
    """The GPUs in an option's value as (type, count); ``typed``: the value of --gpus and its like, without ``gpu:``."""
    found: list[tuple[str | None, int]] = []
    for entry in value.split(","):
        parts = re.sub(r"^gres[/:]", "", entry.strip()).split(":")
        if parts[0] == "gpu":
            parts = parts[1:]
        elif not typed:
            continue
        parts = [re.sub(r"\(.*", "", part) for part in parts]  # gpu:2(S:0-1)
        count = parts.pop() if parts and re.fullmatch(r"\d+", parts[-1]) else "1"
        if entry.strip():
            found.append((parts[0] if parts and parts[0] else None, int(count)))
    return found


def is_placeholder(value: str) -> bool:
    """Whether a value still waits to be filled in: ``<project>``, ``{{ name }}``."""
    return re.search(r"<[A-Za-z][\w .@/-]*>|\{\{.*\}\}|^#+$|^\.\.\.$", value) is not None


def expanded(raw: str) -> set[str]:
    """The variables that the shell expands in a word as written; those in single quotes stay."""
    found: set[str] = set()
    quote = ""
    at = 0
    while at < len(raw):
        char = raw[at]
        if char == "\\" and quote != "'":
            at += 2
            continue
        if char in "'\"" and quote in ("", char):
            quote = "" if quote else char
        elif char == "$" and quote != "'":
            match = re.match(r"\{?[#!]?([A-Za-z_]\w*)", raw[at + 1 :])
            if match:
                found.add(match[1])
        at += 1
    return found


def _calls(simple: Simple, outer: Call | None = None) -> Iterator[Call]:
    if not simple.words:
        return
    call = _call(simple, outer)
    yield call
    text = _inner_text(call.words)
    if text is not None and outer is None:
        for command in read_shell(text, simple.line):
            for inner in simple_commands(command):
                yield from _calls(inner, call)


def _inner_text(words: tuple[str, ...]) -> str | None:
    """The text that ``bash -c`` runs."""
    for index, word in enumerate(words[:-1]):
        if re.fullmatch(r"-\w*c", word) and any(
            one.rsplit("/", 1)[-1] in {"bash", "sh"} for one in words[:index]
        ):
            return words[index + 1]
    return None


def _call(simple: Simple, outer: Call | None) -> Call:
    words, raw = _without_prefixes(simple.words, simple.raw)
    options: dict[str, str | None] | None = None
    hidden = False
    if words and words[0].rsplit("/", 1)[-1] == "srun":
        options, at, hidden = _srun_options(words)
        words, raw = words[at:], raw[at:]
    if outer is not None:
        return Call(simple.line, words, raw, simple, outer.srun or options, outer.open_options, nested=True)
    return Call(simple.line, words, raw, simple, options, hidden)


def _without_prefixes(
    words: tuple[str, ...], raw: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A command without what merely stands before it: ``exec``, ``nohup``, ``time``, ``env A=1``."""
    while words and words[0] in {"exec", "nohup", "time", "env", "stdbuf", "setsid"}:
        at = 1
        while at < len(words) and (words[at].startswith("-") or re.match(r"\w+=", words[at])):
            at += 1
        if at >= len(words):
            break
        words, raw = words[at:], raw[at:]
    return words, raw


def _srun_options(words: tuple[str, ...]) -> tuple[dict[str, str | None], int, bool]:
    """The options of an srun, where its program begins, and whether a variable may hold more of them."""
    options: dict[str, str | None] = {}
    hidden = False
    at = 1
    while at < len(words):
        word = words[at]
        at += 1
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = canonical(name)
            takes = name in _SRUN_REQUIRED or (name in OPTIONS and OPTIONS[name].takes == "required")
            if takes and not equals and at < len(words):
                value, equals = words[at], "="
                at += 1
            options[name] = value if equals else None
        elif word.startswith("-") and len(word) > 1:
            name = _SRUN_LETTERS.get(word[1], word[1])
            if word[1] in _SRUN_FLAGS:
                options["kill-on-bad-exit" if word[1] == "K" else name] = word[2:] or None
            elif len(word) > 2:
                options[name] = word[2:]
            elif at < len(words):
                options[name] = words[at]
                at += 1
        elif re.match(r"\$[\w{]", word) and at < len(words):
            hidden = True
        else:
            return options, at - 1, hidden
    return options, at, hidden
