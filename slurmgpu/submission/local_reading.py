"""Reads a batch script, without running it: what of the cluster does it count on?

A reading, not a shell: it knows quoting, here-documents, comments and simple commands. What it misses, the
stand-ins still meet when the script runs; only the list that is printed beforehand is then shorter.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

__all__ = ["ScriptReading", "expand", "read_script"]

_HEREDOC = re.compile(r"<<-?\s*(?P<quote>['\"\\]?)(?P<word>[A-Za-z_]\w*)['\"]?")
# Takes the place of a dollar sign that quoting keeps from expanding, until `expand` puts it back.
_LITERAL_DOLLAR = "\ue000"
# Words that stand before a command's own name.
_BEFORE = {
    "if",
    "then",
    "else",
    "elif",
    "do",
    "while",
    "until",
    "!",
    "{",
    "time",
    "exec",
    "command",
    "builtin",
    "eval",
}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
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
    """Its ``#SBATCH`` options, each by the name that is written."""
    commands: tuple[tuple[str, ...], ...]
    """Its simple commands, quotes removed and nothing expanded: hand a word to :func:`expand`."""
    variables: tuple[str, ...]
    """Upper-case variables that it uses, without a default, and never sets."""

    def calls(self, *names: str) -> Iterator[tuple[str, ...]]:
        """Yield the commands of these names."""
        return (words for words in self.commands if words[0] in names)

    def mentions(self, *names: str) -> bool:
        """Whether one of the words stands anywhere in a command (behind srun, too)."""
        return any(name in words for words in self.commands for name in names)

    def asks(self, *names: str) -> str:
        """Return the value of the first of these options that is given, empty when none is."""
        return next((self.options[name] for name in names if name in self.options), "")

    def array_indices(self) -> list[int]:
        """Return the indices of a job array (``0-9%2``, ``1,3``, ``0-8:4``), empty for any other job."""
        indices: list[int] = []
        for span in self.asks("array", "a").split("%")[0].split(","):
            if match := re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", span):
                low, high, step = match.groups()
                indices += range(int(low), int(high or low) + 1, int(step or 1))
        return indices

    def work_folder(self) -> str:
        """Return the argument of the first ``cd``, empty without one."""
        for words in self.calls("cd"):
            arguments = [word for word in words[1:] if not word.startswith("-")]
            return arguments[0] if arguments else ""
        return ""

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
                case ("conda" | "mamba" | "micromamba", "activate", name, *_) | (
                    "source" | ".",
                    "activate",
                    name,
                    *_,
                ):
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


def read_script(script: str) -> ScriptReading:
    """Read a batch script's options, commands and variables."""
    options = _sbatch_options(script)
    nodes = _number(options, "nodes", "N") or 1
    per_node = _number(options, "ntasks-per-node")
    tasks = _number(options, "ntasks", "n")
    text = _without_heredocs(script).replace("\\\n", " ")
    return ScriptReading(
        nodes=nodes,
        tasks_per_node=per_node or -(-(tasks or nodes) // nodes),
        options=options,
        commands=tuple(_commands(text)),
        variables=tuple(_variables(_without_single_quotes(text))),
    )


def _sbatch_options(script: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for line in script.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            words = _split(line[len("#SBATCH") :])
            for word, following in zip(words, [*words[1:], ""], strict=True):
                if match := re.match(r"--([\w-]+)=?(.*)|-(\w)=?(.*)", word):
                    name, value = match[1] or match[3], match[2] or match[4]
                    options[name] = value or ("" if following.startswith("-") else following)
    return options


def _number(options: Mapping[str, str], *names: str) -> int:
    for name in names:
        digits = options.get(name, "").split("-")[0]
        if digits.isdigit():
            return int(digits)
    return 0


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return []


def _without_heredocs(script: str) -> str:
    """Drop the bodies of here-documents: data, not commands (with ``<<WORD`` they may expand variables)."""
    kept, end = list[str](), ""
    for line in script.splitlines():
        if end:
            end = "" if line.lstrip("\t") == end else end
            continue
        kept.append(line)
        match = _HEREDOC.search(line)
        if match and not line.lstrip().startswith("#") and "<<<" not in line:
            end = match["word"]
    return "\n".join(kept) + "\n"


def _without_single_quotes(text: str) -> str:
    """Blank what the batch shell does not expand: single quotes, escapes, comments."""
    pattern = re.compile(
        r"""(?P<skip>\\.|(?<![^\s;])\#[^\n]*|'[^']*')|(?P<keep>"(?:\\.|[^"\\])*")""", re.DOTALL
    )

    def replace(match: re.Match[str]) -> str:
        return re.sub(r"\\.", " ", match["keep"]) if match["keep"] else " "

    return pattern.sub(replace, text)


def _with_literal_dollars(text: str) -> str:
    pattern = re.compile(r"""\\\$|'[^']*'|"(?:\\.|[^"\\])*"|\\.""", re.DOTALL)

    def replace(match: re.Match[str]) -> str:
        if match[0].startswith("'"):
            return match[0].replace("$", _LITERAL_DOLLAR)
        return match[0].replace("\\$", _LITERAL_DOLLAR)

    return pattern.sub(replace, text)


def _commands(text: str) -> Iterator[tuple[str, ...]]:
    for line in _with_literal_dollars(text).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        try:
            tokens = list(lexer)
        except ValueError:
            continue  # a quote that goes on over several lines
        for token in [*tokens, ";"]:
            if token and set(token) <= set(";&|()"):
                yield from _command(words)
                words = []
            else:
                words.append(token)


def _command(words: Iterable[str]) -> Iterator[tuple[str, ...]]:
    left = list(words)
    while left and (left[0] in _BEFORE or _ASSIGNMENT.match(left[0])):
        left.pop(0)
    if left:
        yield tuple(left)


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
