"""Reads a batch script, without running it: what of the cluster does it count on?

The stand-ins still meet what it misses; only the list that is printed before the run is shorter then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..script.batch_script import parse_batch_script
from ..script.shell import Command, pieces, read_shell, simple_commands, substitutions
from .standins.fitting import number

__all__ = ["ScriptReading", "expand", "read_needs"]

# Takes the place of a dollar sign that quoting keeps from expanding, until `expand` puts it back.
_LITERAL_DOLLAR = "\ue000"
# What runs the command behind it in the same shell.
_BEFORE = {"exec", "command", "builtin", "eval"}
_VARIABLE = re.compile(r"\$(?:([A-Z_][A-Z0-9_]*)|\{([A-Z_][A-Z0-9_]*)(?:\}|:?\?|[%#/^,\[@]|:[ 0-9]))")
_BASH_OWN = re.compile(
    r"BASH\w*|_|EUID|UID|PPID|RANDOM|SRANDOM|SECONDS|LINENO|HOSTNAME|HOSTTYPE|OSTYPE|MACHTYPE|IFS|PWD|OLDPWD"
    r"|PATH|OPTARG|OPTIND|REPLY|FUNCNAME|PIPESTATUS|EPOCH\w+|DIRSTACK|GROUPS|SHELLOPTS|SHLVL|COLUMNS|LINES|CONDA_\w+"
    r"|VIRTUAL_ENV|(?:SLURM(?!_TMPDIR)|SLURMGPU)\w*"
)
# A pretended secret would only fail later and less clearly.
_SECRET = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)$")


@dataclass(frozen=True)
class ScriptReading:
    """What a batch script asks of the machine that it runs on."""

    nodes: int
    tasks_per_node: int
    options: Mapping[str, str]
    """Its ``#SBATCH`` options by their long names."""
    commands: tuple[tuple[str, ...], ...]
    """Its simple commands, quotes removed and nothing expanded: hand a word to :func:`expand`."""
    variables: tuple[str, ...]
    """Upper-case variables that it uses, without a default, and never sets."""

    def calls(self, *names: str) -> Iterator[tuple[str, ...]]:
        """Yield the commands of these names."""
        return (words for words in self.commands if words[0] in names)

    def mentions(self, *names: str) -> bool:
        """Whether one of the words is anywhere in a command (behind srun, too)."""
        return any(name in words for words in self.commands for name in names)

    def asks(self, *names: str) -> str:
        """Return the value of the first of these options that is given, empty when none is."""
        return next((self.options[name] for name in names if name in self.options), "")

    def array_indices(self) -> list[int]:
        """Return the indices of a job array (``0-9%2``, ``1,3``, ``0-8:4``), empty for any other job."""
        indices: list[int] = []
        for span in self.asks("array").split("%")[0].split(","):
            if match := re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", span):
                low, high, step = match.groups()
                indices += range(int(low), int(high or low) + 1, int(step or 1))
        return indices

    def work_folder(self) -> str:
        """Return the argument of the first ``cd``, empty without one."""
        words = next(self.calls("cd"), ())
        return next((word for word in words[1:] if not word.startswith("-")), "")

    def sourced(self) -> list[str]:
        """Return the files that are sourced."""
        return [words[1] for words in self.calls("source", ".") if len(words) > 1]

    def module_loads(self) -> list[str]:
        """Return the ``module load`` commands (``ml`` likewise), as text."""
        loads = (words for words in self.calls("module", "ml") if words[0] == "ml" or "load" in words)
        return list(dict.fromkeys(" ".join(words) for words in loads))

    def conda_environment(self) -> str:
        """Return the environment that is activated or run in, empty without one."""
        for words in self.commands:
            match words:
                case ("conda" | "mamba" | "micromamba" | "source" | ".", "activate", name, *_):
                    return name
                case ("conda" | "mamba" | "micromamba", "run", "-n" | "--name" | "-p" | "--prefix", name, *_):
                    return name
        return ""

    def words(self, pattern: str) -> list[str]:
        """Return every word that a pattern matches whole."""
        found = (word for words in self.commands for word in words if re.fullmatch(pattern, word))
        return list(dict.fromkeys(found))


def expand(word: str, environment: Mapping[str, str]) -> str:
    """Expand ``~``, ``$NAME`` and ``${NAME}``; what is not set stays as it is."""
    if word == "~" or word.startswith("~/"):
        word = environment.get("HOME", "~") + word[1:]

    def value(match: re.Match[str]) -> str:
        return environment.get(match[1] or match[2], match[0])

    return re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, word).replace(_LITERAL_DOLLAR, "$")


def read_needs(script: str) -> ScriptReading:
    """Read a batch script's options, commands and variables."""
    options = {name: one.value or "" for name, one in parse_batch_script(script).effective().items()}
    nodes = number(options, "nodes") or 1
    tasks = number(options, "ntasks")
    commands = read_shell(script)
    return ScriptReading(
        nodes=nodes,
        tasks_per_node=number(options, "ntasks-per-node") or -(-(tasks or nodes) // nodes),
        options=options,
        commands=tuple(_commands(commands)),
        variables=tuple(_variables("\n".join(map(_expanding, commands)))),
    )


def _commands(commands: Iterable[Command]) -> Iterator[tuple[str, ...]]:
    """The simple commands, each followed by those of its substitutions."""
    for simple in (one for command in commands for one in simple_commands(command)):
        words = list(map(_with_literal_dollars, simple.raw))
        while words and words[0] in _BEFORE:
            words.pop(0)
        if words:
            yield tuple(words)
        for word in (*simple.assignments, *simple.raw):
            for text in substitutions(word):
                yield from _commands(read_shell(text))


def _with_literal_dollars(word: str) -> str:
    return "".join(
        text.replace("$", _LITERAL_DOLLAR) if quote in ("'", "\\") else text for quote, text in pieces(word)
    )


def _expanding(command: Command) -> str:
    """What the batch shell expands of a command: single quotes and escapes blanked."""
    words = (command.text,) if command.words is None else command.words
    return " ".join(
        "".join(" " if quote in ("'", "\\") else text for quote, text in pieces(word)) for word in words
    )


def _variables(text: str) -> Iterator[str]:
    used = dict.fromkeys(match[1] or match[2] for match in _VARIABLE.finditer(text))
    for name in used:
        assigned = (
            rf"(?:^|[\s;&({{]){name}(?:\[[^]]*\])?\+?=|\$\{{{name}:?=|\bfor\s+{name}\b"
            rf"|\b(?:read|mapfile|readarray|printf)\b[^\n]*\b{name}\b"
        )
        own = _BASH_OWN.fullmatch(name) or _SECRET.search(name)
        if not own and not re.search(assigned, text, re.MULTILINE):
            yield name
