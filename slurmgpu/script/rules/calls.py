"""The programs that a script's body starts: by itself, by srun, within ``bash -c``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from slurmgpu.launchers import PROGRAMS as LAUNCHERS
from slurmgpu.launchers import TORCHRUN, torchrun_at
from slurmgpu.lines.command import prefix_length, python_command
from slurmgpu.lines.container import PROGRAMS
from slurmgpu.lines.slurm import SRUN
from slurmgpu.script.known_names import names_secret
from slurmgpu.script.shell import Simple, pieces, read_shell, simple_commands, unquoted

__all__ = ["CONTAINERS", "Call", "Variables", "calls_of", "expanded"]


_HOUSEKEEPING = {
    *("echo", "cd", "module", "ml", "source", ".", "export", "conda", "mamba", "micromamba", "set", "mkdir", "date"),
    *("hostname", "nvidia-smi", "which", "pwd", "unset", "ulimit", "eval", "cp", "rm", "ls", "cat", "printf", "sleep"),
    *("true", ":", "trap", "test", "[", "[[", "env", "kill", "free", "lscpu", "uname", "whoami", "umask", "declare", "local"),
    *("if", "for", "case", "in", "function", "exit", "wait", "pip", "rsync", "touch", "ln", "mv", "tar", "deactivate"),
    *("shopt", "sbatch", "read", "return", "command", "type", "id", "df", "du", "chmod", "nproc", "rocm-smi", "sync", "break"),
}  # fmt: skip
CONTAINERS = {*PROGRAMS, "shifter", "podman", "podman-hpc", "docker", "enroot"}


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
    """It is within the text of another command (``bash -c '...'``)."""

    @property
    def name(self) -> str:
        """The program's name, without its folder."""
        return self.words[0].rsplit("/", 1)[-1] if self.words else ""

    @cached_property
    def torchrun(self) -> int | None:
        """Where torchrun's own arguments begin; None where this is not torchrun."""
        return torchrun_at(self.words)

    @cached_property
    def python(self) -> tuple[str, ...] | None:
        """The script or ``-m`` and module, and the arguments; None where no Python is started, or only asked something."""
        for index in range(len(self.words)):
            python = python_command(self.words[index:])
            if python is not None and python.module in {"pip", "venv", "ensurepip"}:
                return None
            if python is not None:
                target = ("-m", python.module) if python.module else (python.script,)
                return (*filter(None, target), *python.arguments)
        return None

    @property
    def script(self) -> str | None:
        """The Python script that it runs, as written: started by python, or by torchrun."""
        words: tuple[str, ...] = self.python or ()
        if self.torchrun is not None:
            words = self.words[TORCHRUN.read(self.words, self.torchrun).end :]
        elif words[:1] == ("-m",):
            return None
        return next((word for word in words if word.endswith(".py")), None)

    @property
    def shell_script(self) -> str:
        """The shell script that it runs, as written: ``bash run.sh``, ``./run.sh``; empty where it runs none."""
        words = self.words[1:] if self.name in {"bash", "sh"} else self.words[:1]
        first = next((word for word in words if not word.startswith("-")), "")
        return first if first.endswith(".sh") and "$" not in first else ""

    @property
    def trains(self) -> bool:
        """True if it starts a Python program, or one of the launchers of PyTorch."""
        return self.python is not None or self.torchrun is not None or self.by_launcher

    @property
    def by_launcher(self) -> bool:
        """True if a launcher of processes other than srun starts it."""
        names = {word.rsplit("/", 1)[-1] for word in self.words}
        return bool(names & (LAUNCHERS - {"srun"})) or self.torchrun is not None

    @property
    def housekeeping(self) -> bool:
        """True if it is one of the small commands around the real work."""
        return self.srun is None and self.name in _HOUSEKEEPING

    @property
    def container(self) -> bool:
        """True if it runs inside a container."""
        options = self.srun or {}
        return self.name in CONTAINERS or bool({"container-image", "environment"} & set(options))


def expanded(raw: str) -> set[str]:
    """Return the variables that the shell expands in a word as written; those in single quotes stay."""
    live = (text for quote, text in pieces(raw) if quote in ("", '"') and "$" in text)
    return {name for text in live for name in re.findall(r"\$\{?[#!]?([A-Za-z_]\w*)", text)}


_REFERENCE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*(?:\[@\])?)\})")
_SET = r"(?<![\w$-])([A-Za-z_]\w*)(?:\[[^]\n]*\])?(?::?[-+]?=(?!=)|\+\+)"
_SET_BY = r"(?m)\b(?:for|select|read|unset|let|getopts|mapfile|readarray|printf -v)\s(.*?)(?:\sin\s|;|$)"


_LONGEST = 4096
"""Characters of a variable that are kept: variables made of variables double with each line."""


class Variables:
    """The variables that a script sets once and unconditionally, to text that it writes out; secrets are left out."""

    def __init__(self, body: str = "") -> None:
        code = re.sub(r"(?m)^\s*#.*", "", body)
        others = " ".join(re.findall(_SET_BY, code))
        times = Counter(re.findall(_SET, code) + re.findall(r"\w+", others))
        self.names = frozenset(times)
        self._once = {name for name, number in times.items() if number == 1 and not names_secret(name)}
        self._values: dict[str, str] = {}
        self._exported: set[str] = set()

    def read(self, simple: Simple, *, always: bool) -> None:
        """Take in what a command sets and exports; ``always``: it runs once, whatever happens."""
        sets = simple.name in {"", "export", "readonly"}
        for word in simple.assignments + simple.raw[1:] if sets else ():
            name, _, value = word.partition("=")
            self._exported |= {name} if simple.name == "export" else set()
            array = value.startswith("(")
            lines = read_shell(value[1:-1]) if array else ()
            words = [one for line in lines for one in line.words or ("$",)] if array else [value]
            if always and value and name in self._once and all(map(_is_written_out, words)):
                text = "\0".join(map(self._value, words))
                if len(text) <= _LONGEST:
                    self._values[name + "[@]" * array] = text

    def expand(self, raw: str, *, inherited: bool) -> list[str]:
        """Return the words that a shell makes of one as written; a variable that it does not know or inherit stays."""
        return [one for one in self._value(raw, inherited).split("\0") if one] or [unquoted(raw)]

    def _value(self, raw: str, inherited: bool = False) -> str:
        def replace(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            value = match[0] if inherited and name not in self._exported else self._values.get(name, match[0])
            return value if quote else re.sub(r"\s+", "\0", value)

        text = ""
        for quote, part in pieces(raw):
            text += _REFERENCE.sub(replace, part) if quote in ("", '"') else part
        return text


def _is_written_out(raw: str) -> bool:
    """Return True if a value needs no shell to be known: no command, no wildcard, no number by chance."""
    parts = (part if quote in ("'", "\\") else _REFERENCE.sub("", part) for quote, part in pieces(raw))
    return not re.search(r"[$`*?{\[]|RANDOM", raw if "RANDOM" in raw else "".join(parts))


def calls_of(simple: Simple, outer: Call | None = None, variables: Variables | None = None) -> Iterator[Call]:
    """Yield the program that a simple command starts, and those in the text that it hands to a shell."""
    if not simple.words:
        return
    call = _call(simple, outer, variables or Variables())
    yield call
    for text in _inner_texts(call.words) if outer is None else ():
        for command in read_shell(text, simple.line):
            for inner in simple_commands(command):
                yield from calls_of(inner, call, variables)


def _inner_texts(words: tuple[str, ...]) -> Iterator[str]:
    """Yield the texts that ``bash -c`` runs, one in the other's ``"$@"`` among them."""
    for index, word in enumerate(words[:-1]):
        if re.fullmatch(r"-\w*c", word) and any(
            one.rsplit("/", 1)[-1] in {"bash", "sh"} for one in words[:index]
        ):
            yield words[index + 1]


def _call(simple: Simple, outer: Call | None, variables: Variables) -> Call:
    pairs = [(word, raw) for raw in simple.raw for word in variables.expand(raw, inherited=bool(outer))]
    words, raw = _without_prefixes(tuple(word for word, _ in pairs), tuple(raw for _, raw in pairs))
    options: dict[str, str | None] | None = None
    hidden = False
    if words and words[0].rsplit("/", 1)[-1] == "srun":
        line, hidden = SRUN.read_unexpanded(words, 1)
        options, words, raw = line.given, words[line.end :], raw[line.end :]
    if outer is not None:
        srun = options if outer.srun is None else outer.srun  # of an srun without options {}
        return Call(simple.line, words, raw, simple, srun, outer.open_options, nested=True)
    return Call(simple.line, words, raw, simple, options, hidden)


def _without_prefixes(
    words: tuple[str, ...], raw: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a command without what merely comes before it: ``exec``, ``nohup``, ``time``, ``env A=1``."""
    while words:
        at = prefix_length(words)
        if words[0] in {"exec", "time"}:
            at = next((at for at, word in enumerate(words) if at and not word.startswith("-")), 0)
        if not 0 < at < len(words):
            break
        words, raw = words[at:], raw[at:]
    return words, raw
