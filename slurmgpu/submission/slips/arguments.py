"""A script's arguments, judged by the parser that it makes by argparse; the script is read and never run."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from slurmgpu.lines.slurm import SBATCH
from slurmgpu.submission.slips.command import Command, Slip
from slurmgpu.submission.slips.nearby import near_word
from slurmgpu.submission.slips.python import parse_python
from slurmgpu.submission.slips.script import code_of

__all__ = ["argument_slip"]

# With these a parser is another than it seems, or gets other words than the command's.
_NOT_PLAIN = re.compile(
    r"sys\.argv|parse_known|add_subparsers|parse_intermixed|\bparents=|prefix_chars|argument_default|\bargparse\.REMAINDER"
    r"|jsonargparse|configargparse|set_config|local[-_]rank"
)
_ACTIONS = frozenset(
    {"append", "count", "extend", "help", "store", "store_const", "store_false", "store_true", "version"}
)
_OF_SHELL = re.compile(r"[$`*?]")
"""Characters by which a shell replaces a word, maybe by several."""


def argument_slip(command: Command, folder: Path) -> Slip | None:
    """Return what the script refuses among its arguments; None where it takes them, or its parser cannot be read."""
    script = code_of(command.words)
    if (
        script is None
        or script not in command.words
        or {"deepspeed", "torch.distributed.launch"} & set(command.words)
    ):
        return None  # those hand the script further arguments
    try:
        text = (folder / script).read_text(encoding="utf-8")
        parser = _parser_of(text)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    at = command.words.index(script) + 1
    before, given = command.words[:at], command.words[at:]
    if parser is None or {"-h", "--help"} & set(given):
        return None
    open_words = any(_OF_SHELL.search(word) for word in given) and command.in_script
    try:
        _, unknown = parser.parse_known_args(list(given))
    except _Refused as refused:
        if open_words and re.search(r"required|expected", str(refused)):
            return None
        said, unknown = str(refused), []
    else:
        unknown = [
            word for word in unknown if not (open_words and (_OF_SHELL.search(word) or word[:2] != "--"))
        ]
        if not unknown:
            return None
        said = f"unrecognized arguments: {' '.join(unknown)}"
    options = [
        flag for action in parser._actions for flag in action.option_strings if flag not in {"-h", "--help"}
    ]
    value = re.search(r"'(.*?)' \(choose from (.*)\)|float value: '(\d+,\d+)'|required: (\S+)", said)
    if unknown:
        hint = (
            _way_out(command, before, given, unknown, options)
            or f"it has {', '.join(options[:20]) or 'no options'}"
        )
    elif value and value[4]:
        needed = value[4].rstrip(",")
        words = [needed, "VALUE"] if needed.startswith("-") else [needed.upper()]
        hint = f"give it: {command.instead(*command.words, *words)}"
    elif value:
        meant = (
            near_word(value[1], re.findall(r"[\w.-]+", value[2])) if value[1] else value[3].replace(",", ".")
        )
        words = [meant if word == (value[1] or value[3]) else word for word in given if meant]
        hint = f"did you mean {meant}? {command.instead(*before, *words)}" if meant else "write one of these"
    elif (
        "expected one argument" in said and command.plan.option("array") is not None and not command.in_script
    ):
        text = " ".join((*command.words, "$SLURM_ARRAY_TASK_ID"))
        hint = f"your shell has no such variable: let the job's shell read it: {command.instead('bash', '-c', text)}"
    else:
        hint = f"python {script} --help says what each option takes"
    return Slip(f"command: {script} refuses its arguments: {said}", hint, sure=not command.blind)


def _way_out(
    command: Command, before: tuple[str, ...], given: tuple[str, ...], unknown: list[str], options: list[str]
) -> str | None:
    """Return what was meant by the first argument that the script does not have."""
    joined = [word for word in unknown if " " in word.strip() and word.startswith("-")]
    if joined:
        split = [part for word in given for part in (word.split() if word in joined else [word])]
        return f"{joined[0]!r} is one word: {command.instead(*before, *split)}"
    for word in unknown[:1]:
        at = given.index(word)
        name, _, value = word.partition("=")
        rest = given[at + 1 :]
        if not word.startswith("-") and at and given[at - 1] in options:
            return f"{given[at - 1]} takes no value: {command.instead(*before, *given[:at], *rest)}"
        flag = "--" + name.lstrip("-").replace("_", "-")
        same = {one.replace("_", "-"): one for one in options}
        glued_to = next((one for one in options if re.fullmatch(rf"{one}\d\S*", word)), None)
        if glued_to:
            parted = [glued_to, word[len(glued_to) :]]
            return f"a blank is missing: {command.instead(*before, *given[:at], *parted, *rest)}"
        ours = SBATCH.letters.get(name[1:], name.lstrip("-"))
        if word.startswith("-") and ours in SBATCH.options and flag not in same and not command.in_script:
            return f"{name} is an option of slurmgpu's and of sbatch's: it comes before --"
        near = flag if flag in same else near_word(flag, same)
        if near is not None:
            meant = same[near]
            glued = [meant, value] if value and not word.startswith("-") else [meant + word[len(name) :]]
            return f"did you mean {meant}? {command.instead(*before, *given[:at], *glued, *rest)}"
    return None


class _Refused(Exception):
    """The parser's own words."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Refused(message)


class _Open:
    """Choices that a word of the shell's may turn out to be."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __contains__(self, value: object) -> bool:
        return value in self.values or bool(_OF_SHELL.search(str(value)))

    def __iter__(self) -> Iterator[object]:
        return iter(self.values)


def _typed(kind: type) -> Callable[[str], object]:
    def read(text: str) -> object:
        return text if _OF_SHELL.search(text) else kind(text)

    read.__name__ = kind.__name__
    return read


def _parser_of(text: str) -> argparse.ArgumentParser | None:
    """Return the parser that a script makes; None where its arguments may be others than can be read.

    They must be literals that stand under no condition.
    """
    if "argparse" not in text or _NOT_PLAIN.search(text):
        return None
    tree = parse_python(text.encode())
    above = {inner: outer for outer in ast.walk(tree) for inner in ast.iter_child_nodes(outer)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    made = [call for call in calls if _name(call.func) == "ArgumentParser"]
    parses = [call for call in calls if _name(call.func) == "parse_args"]
    added = [call for call in calls if _name(call.func) == "add_argument"]
    if len(made) != 1 or len(parses) != 1 or parses[0].args or parses[0].keywords:
        return None
    named = [node for node in ast.walk(tree) if _name(node) == "ArgumentParser"]
    annotations = (ast.arg, ast.FunctionDef)
    if any(above[node] is not made[0] and not isinstance(above[node], annotations) for node in named):
        return None  # the parser is of a class derived from it
    if any(_conditional(call, above) for call in (made[0], parses[0], *added)):
        return None
    assigned = above[made[0]]
    target = assigned.targets[0] if isinstance(assigned, ast.Assign) else None
    if not isinstance(target, ast.Name):
        return None
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == target.id]
    if not all(isinstance(above[use], (ast.Attribute, ast.Return, ast.Assign)) for use in uses):
        return None  # handed to a function that may add others
    parser = _Parser()
    return parser if all(_add(parser, call) for call in added) else None


def _add(parser: argparse.ArgumentParser, call: ast.Call) -> bool:
    """Add an argument to a parser as a call does; return whether it could be read."""
    given: dict[str, Any] = {}
    own_type = False
    for keyword in call.keywords:
        name, value = keyword.arg or "", keyword.value
        if name in {"help", "metavar", "default"}:
            continue
        if name == "type":
            kind = {"int": int, "float": float, "str": str}.get(getattr(value, "id", ""))
            given["type"], own_type = _typed(kind or str), kind is None
        elif name == "action" and _name(value) == "BooleanOptionalAction":
            given["action"] = argparse.BooleanOptionalAction
        else:
            try:
                given[name] = ast.literal_eval(value)
            except ValueError:
                if name not in {"choices", "const", "version"}:
                    return False
    action = given.get("action", "store")
    if isinstance(action, str) and action not in _ACTIONS:
        return False
    if action == "store_const":
        given.setdefault("const", None)
    choices = given.pop("choices", None)
    if choices is not None and not own_type:
        given["choices"] = _Open(choices)
    try:
        parser.add_argument(*map(ast.literal_eval, call.args), **given)
    except (TypeError, ValueError, argparse.ArgumentError):
        return False
    return True


def _name(node: ast.AST) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def _conditional(node: ast.AST, above: dict[ast.AST, ast.AST]) -> bool:
    """Return whether a node may not run; ``if __name__ == "__main__"`` counts as run."""
    while node in above:
        node = above[node]
        if isinstance(node, ast.If) and "__name__" not in ast.dump(node.test):
            return True
        if isinstance(
            node, (ast.For, ast.While, ast.Try, ast.Lambda, ast.IfExp, ast.comprehension, ast.ListComp)
        ):
            return True
    return False
