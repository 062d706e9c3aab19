"""A script's arguments, judged by the parser that it makes by argparse; the script is read and never run."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from slurmgpu.files.trust import read_regular
from slurmgpu.launchers import launcher_module, python_files
from slurmgpu.lines.command import changes_folder, python_command
from slurmgpu.lines.slurm import SBATCH
from slurmgpu.runs.command_checks.command import Command, Slip, near_word
from slurmgpu.runs.command_checks.hydra_overrides import hydra_slip
from slurmgpu.runs.command_checks.python import parse_python
from slurmgpu.runs.command_checks.python_source import OF_SHELL, is_conditional, literals, name_of, parents_of
from slurmgpu.runs.command_checks.script import code_of

if TYPE_CHECKING:
    import click

__all__ = ["argument_slip"]


# With these a parser is another than it seems, or gets other words than the command's.
_NOT_PLAIN = re.compile(
    r"sys\.argv|parse_known|default_subparser|parse_intermixed|\bparents=|prefix_chars|argument_default|\bargparse\.REMAINDER"
    r"|jsonargparse|configargparse|argparse_\w|set_config"
)
_ACTIONS = frozenset(
    {"append", "count", "extend", "help", "store", "store_const", "store_false", "store_true", "version"}
)
_ADDERS = frozenset(
    {"add_argument", "add_argument_group", "add_mutually_exclusive_group", "add_parser", "add_subparsers"}
)
_SHOWN = frozenset({"description", "epilog", "formatter_class", "help", "metavar", "prog", "title", "usage"})
_OF_SHELL = re.compile(OF_SHELL)


class _Refusal(NamedTuple):
    said: str
    unknown: list[str]
    """Words that the parser does not have."""
    options: list[str]
    """Those that it has."""
    commands: list[str]
    """Commands that it may be given where it lacks one."""


def argument_slip(command: Command, folder: Path) -> Slip | None:
    """Return what the script refuses among its arguments; None where it takes them, or its parser cannot be read."""
    script, python = code_of(command.words), python_command(command.words)
    at = command.words.index(script) + 1 if script in command.words else 0
    if script is None and python is not None and python.module and not launcher_module(python.module):
        script = next((one for one in python_files(command.words) if (folder / one).is_file()), None)
        at = len(command.words) - len(python.arguments)
    if script is None or not at or {"deepspeed", "torch.distributed.launch"} & set(command.words):
        return None  # those hand the script further arguments
    before, given = command.words[:at], command.words[at:]
    if {"-h", "--help"} & set(given):
        return None
    open_words = any(_OF_SHELL.search(word) for word in given) and command.in_script
    try:
        text = read_regular(folder / script).decode("utf-8")
        if "hydra.main" in text:
            return None if changes_folder(before) else hydra_slip(command, folder, script, text)
        if re.search(r"\bclick\b", text) and "argparse" not in text:
            from slurmgpu.runs.command_checks.click_options import (
                click_command,  # a browser's page has no click
            )

            moved = command.blind or bool(command.plan.steps) or changes_folder(before)
            main = click_command(text, None if moved else folder)
            refusal = _click_refusal(main, given, open_words=open_words) if main else None
        else:
            parser = _parser_of(text)
            refusal = _argparse_refusal(parser, given, open_words=open_words) if parser else None
            if parser and refusal is None:
                return _lacking(script, text, parser)
    except (OSError, SyntaxError, TypeError, ValueError, RecursionError):
        return None
    if refusal is None:
        return None
    said, unknown, options, commands = refusal
    value = re.search(
        r"'([^']*)' (?:\(choose from|is not one of) (.*)[).]|(?=.*\bfloat\b).*'(\d+,\d+)'|"
        r"(?:required: |Missing (?:option|argument) ')([^\s']+)",
        said,
    )
    if unknown:
        hint = _way_out(command, before, given, unknown, options) or ""
        hint = hint or f"it has {', '.join(options[:20]) or 'no options'}"
    elif commands:
        hint = f"it has {', '.join(commands[:20])}: {command.instead(*command.words, commands[0])}"
    elif value and value[4]:
        needed = value[4].rstrip(",")
        words = [needed, "VALUE"] if needed.startswith("-") else [needed.upper()]
        hint = f"give it: {command.instead(*command.words, *words)}"
    elif value:
        choices = re.findall(r"[\w.-]+", value[2] or "")
        meant = value[3].replace(",", ".") if value[3] else near_word(value[1], choices)
        words = [meant if word == (value[1] or value[3]) else word for word in given if meant]
        hint = f"did you mean {meant}? {command.instead(*before, *words)}" if meant else "write one of these"
        later = next((word for word in given if word in choices), None)
        if later and not meant:
            rest = (word for word in given if word != later)
            hint = f"options of {later} come behind it: {command.instead(*before, later, *rest)}"
    elif (
        "expected one argument" in said and command.plan.option("array") is not None and not command.in_script
    ):
        text = " ".join((*command.words, "$SLURM_ARRAY_TASK_ID"))
        hint = f"your shell has no such variable: let the job's shell read it: {command.instead('bash', '-c', text)}"
    else:
        hint = f"python {script} --help says what each option takes"
    return Slip(f"command: {script} refuses its arguments: {said}", hint, sure=not command.blind)


def _argparse_refusal(
    parser: argparse.ArgumentParser, given: tuple[str, ...], *, open_words: bool
) -> _Refusal | None:
    options, commands = _options_of(parser, given)
    try:
        _, unknown = parser.parse_known_args(list(given))
    except _Refused as refused:
        said = str(refused)
        if open_words and re.search(rf"required|expected|choice: '[^']*{OF_SHELL}", said):
            return None
        needed = re.search(r"required: (?:.*, )?(\S+)\Z", said)
        return _Refusal(said, [], options, commands.get(needed[1], []) if needed else [])
    unknown = [word for word in unknown if not (open_words and (_OF_SHELL.search(word) or word[:2] != "--"))]
    said = f"unrecognized arguments: {' '.join(unknown)}"
    return _Refusal(said, unknown, options, []) if unknown else None


def _lacking(script: str, text: str, parser: argparse.ArgumentParser) -> Slip | None:
    """Return the first attribute that the script takes of its arguments and that no option of its parser sets."""
    tree = parse_python(text.encode())
    above, nodes = parents_of(tree), list(ast.walk(tree))
    parses = next(one for one in nodes if isinstance(one, ast.Attribute) and one.attr == "parse_args")
    within = _function_of(parses, above)
    made = {ast.unparse(above[parses])}
    if isinstance(within, ast.FunctionDef) and isinstance(above[above[parses]], ast.Return):
        made.add(f"{within.name}()")
    bound = [one for one in nodes if isinstance(one, ast.Assign) and ast.unparse(one.value) in made]
    names = {target.id for one in bound for target in one.targets if isinstance(target, ast.Name)}
    given = [one for one in nodes if isinstance(one, ast.Name) and one.id in names]
    others = [one for one in given if isinstance(one.ctx, ast.Store) and above[one] not in bound]
    if others or re.search(r"setattr|vars\(|__dict__|set_defaults|Namespace|\*args\b", text):
        return None
    has, actions = set(parser._defaults), list(parser._actions)
    for action in actions:  # grows by those of each command
        has.add(action.dest)
        for inner in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            actions += inner._actions
    taken = [above[one] for one in given if isinstance(above[one], ast.Attribute)]
    stored = {one.attr for one in taken if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)}
    for one in taken:
        known = not isinstance(one, ast.Attribute) or one.attr in {*has, *stored}
        if isinstance(one, ast.Attribute) and not (known or hasattr(argparse.Namespace, one.attr)):
            near = near_word(one.attr, has)
            said = f"command: {script} line {one.lineno}: {ast.unparse(one)}: its parser has no such argument"
            hint = f"did you mean {near}?" if near else f"it has {', '.join(sorted(has - {'help'})[:20])}"
            return Slip(f"{said}: an AttributeError when it is reached", hint, sure=False)
    return None


def _options_of(
    parser: argparse.ArgumentParser, given: tuple[str, ...]
) -> tuple[list[str], dict[str, list[str]]]:
    """Return the options of a parser and of its commands that are given, and the commands by their ``dest``."""
    flags = (flag for action in parser._actions for flag in action.option_strings)
    options = [flag for flag in flags if flag not in {"-h", "--help"}]
    commands: dict[str, list[str]] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands[action.dest] = list(action.choices)
            for name in {*given} & action.choices.keys():
                inner, more = _options_of(action.choices[name], given)
                options, commands = options + inner, commands | more
    return options, commands


def _click_refusal(main: click.Command, given: tuple[str, ...], *, open_words: bool) -> _Refusal | None:
    import click

    try:
        main.main(list(given), prog_name="script", standalone_mode=False)
    except click.UsageError as error:
        inner = error.ctx.command if error.ctx else main
        commands = inner.commands if isinstance(inner, click.Group) else {}
        said = " ".join(error.format_message().split())
        unknown: list[str] = []
        if isinstance(error, click.NoSuchOption):
            said, flag = error.message.rstrip("."), error.option_name
            unknown = [word for word in given if word.partition("=")[0] == flag or (word[:2] == flag != "--")]
            owner = next((one for one, of in commands.items() if flag in _flags_of(of)), "")
            said += f": it is an option of {owner}, and comes behind that" if owner else ""
        if open_words and not (unknown and flag[:2] == "--" and not _OF_SHELL.search(unknown[0])):
            return None
        if isinstance(error, click.exceptions.NoArgsIsHelpError):
            said = "Missing command."
        extra = re.search(r"unexpected extra arguments? \((\S+?)[ )]", said)
        unknown += [word for word in given if extra and word == extra[1]][:1]
        if named := re.match(r"No such command '(.*?)'", said):
            said = f"No such command '{named[1]}' (choose from {', '.join(commands)})"
        return _Refusal(said, unknown, _flags_of(inner), list(commands) if said == "Missing command." else [])
    except (click.ClickException, click.Abort):
        pass
    return None


def _flags_of(command: click.Command) -> list[str]:
    flags = (flag for one in command.params for flag in (*one.opts, *one.secondary_opts))
    return [flag for flag in flags if flag.startswith("-")]


def _way_out(
    command: Command, before: tuple[str, ...], given: tuple[str, ...], unknown: list[str], options: list[str]
) -> str | None:
    """Return what was meant by the first argument that the script does not have."""
    joined = [word for word in unknown if " " in word.strip() and word.startswith("-")]
    if joined:
        tight = {word: re.sub(r"\s*=\s*", "=", word).split() for word in joined}
        split = [part for word in given for part in tight.get(word, [word])]
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
    above = parents_of(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    made = [call for call in calls if name_of(call.func) == "ArgumentParser"]
    parses = [one for one in calls if isinstance(one.func, ast.Attribute) and one.func.attr == "parse_args"]
    added = [call for call in calls if name_of(call.func) in _ADDERS]
    added.sort(key=lambda call: (call.lineno, call.col_offset))
    if len(made) != 1 or len(parses) != 1 or parses[0].args or parses[0].keywords:
        return None
    named = [node for node in ast.walk(tree) if name_of(node) == "ArgumentParser"]
    annotations = (ast.arg, ast.FunctionDef)
    if any(above[node] is not made[0] and not isinstance(above[node], annotations) for node in named):
        return None  # the parser is of a class derived from it
    if any(is_conditional(call, above) for call in (made[0], parses[0], *added)):
        return None
    assigned = above[made[0]]
    target = assigned.targets[0] if isinstance(assigned, ast.Assign) else None
    if not isinstance(target, ast.Name):
        return None
    parser = _Parser()
    owners: dict[str, Any] = {target.id: parser}
    has_commands = any(name_of(call.func) == "add_subparsers" for call in added)
    if has_commands and len({_function_of(call, above) for call in (made[0], *added)}) > 1:
        return None  # a name may stand for another parser in each function
    for call in added:
        owner = owners.get(getattr(getattr(call.func, "value", None), "id", ""))
        if not isinstance(call.func, ast.Attribute) or (owner is None and has_commands):
            return None
        new = _add(owner or parser, call)
        if new is None:
            return None
        outer = above[call]
        if isinstance(outer, ast.Assign):
            owners |= {name.id: new for name in outer.targets if isinstance(name, ast.Name)}
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in owners]
    if not all(isinstance(above[use], (ast.Attribute, ast.Return, ast.Assign)) for use in uses):
        return None  # handed to a function that may add others
    return parser


def _function_of(node: ast.AST, above: dict[ast.AST, ast.AST]) -> ast.AST:
    while node in above and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        node = above[node]
    return node


def _add(owner: Any, call: ast.Call) -> Any:
    """Add to a parser as a call does; return what was added, None where the call cannot be read."""
    adder = name_of(call.func) or ""
    if adder == "add_argument_group":
        return owner
    if adder != "add_argument":
        try:
            return getattr(owner, adder)(*map(ast.literal_eval, call.args), **literals(call, _SHOWN))
        except (AttributeError, TypeError, ValueError, argparse.ArgumentError):
            return None
    given: dict[str, Any] = {}
    own_type = False
    for keyword in call.keywords:
        name, value = keyword.arg or "", keyword.value
        if name in {"help", "metavar", "default"}:
            continue
        if name == "type":
            kind = {"int": int, "float": float, "str": str}.get(getattr(value, "id", ""))
            given["type"], own_type = _typed(kind or str), kind is None
        elif name == "action" and name_of(value) == "BooleanOptionalAction":
            given["action"] = argparse.BooleanOptionalAction
        else:
            try:
                given[name] = ast.literal_eval(value)
            except ValueError:
                if name not in {"choices", "const", "version"}:
                    return None
                if name == "choices" and isinstance(value, ast.Call) and ast.unparse(value.func) == "range":
                    given[name] = _range_of(value)
    action = given.get("action", "store")
    if isinstance(action, str) and action not in _ACTIONS:
        return None
    if action == "store_const":
        given.setdefault("const", None)
    choices = given.pop("choices", None)
    if choices is not None and not own_type:
        given["choices"] = _Open(choices)
    try:
        return owner.add_argument(*map(ast.literal_eval, call.args), **given)
    except (AttributeError, TypeError, ValueError, argparse.ArgumentError):
        return None


def _range_of(call: ast.Call) -> range | None:
    """Return a range of literals that is short enough to be named in a message."""
    try:
        found = range(*map(ast.literal_eval, call.args))
    except (TypeError, ValueError):
        return None
    return found if len(found) <= 100 else None
