"""The command of a script that uses click, made again from its decorators; the script is read and never run."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import click

from slurmgpu.runs.command_checks.command import is_there
from slurmgpu.runs.command_checks.python import parse_python
from slurmgpu.runs.command_checks.python_source import OF_SHELL, is_started, literals, name_of, parents_of

__all__ = ["click_command"]


_NOT_PLAIN = re.compile(
    r"sys\.argv|argparse|rich_click|asyncclick|envvar|default_map|\.params\b|\.parse_args|CommandCollection"
)
_SHOWN = frozenset(
    {"help", "short_help", "epilog", "metavar", "options_metavar", "hidden", "show_default", "show_choices"}
)
"""Arguments that change the help alone."""
_OF_PARAMETER = {"default", "required", "multiple", "nargs", "is_flag", "flag_value", "count", "type"}
_INSIDE = frozenset({"no_grad", "inference_mode", "pass_context", "pass_obj", "record"})
"""Decorators that leave a command's arguments as they are."""
_MAKERS = frozenset({"add_command", "argument", "command", "group", "option"})
_TYPES: dict[str | None, Any] = {
    **{"int": click.INT, "float": click.FLOAT, "str": click.STRING, "bool": click.BOOL, "Path": click.STRING},
    **{"INT": click.INT, "FLOAT": click.FLOAT, "STRING": click.STRING, "BOOL": click.BOOL},
}


class _ExistingPath(click.Path):
    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self.folder = folder

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        outside = self.folder is None or value[:1] in {"/", "-", "~"} or re.search(OF_SHELL, value)
        if self.folder is not None and not outside and not is_there(self.folder / value):
            self.fail(f"Path {value!r} does not exist.", param, ctx)
        return value


def click_command(text: str, folder: Path | None) -> click.Command | None:
    """Return the command that a script starts, without callbacks; None where it may be another than can be read.

    ``folder`` is where paths that must exist are looked for; None: nowhere.
    """
    tree = parse_python(text.encode())
    imports = [name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    if _NOT_PLAIN.search(text) or ("click", None) not in {(name.name, name.asname) for name in imports}:
        return None
    above = parents_of(tree)
    made: dict[str, click.Command] = {}
    used = 0
    for node in tree.body:
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            decorators = ((one, one if isinstance(one, ast.Call) else None) for one in node.decorator_list)
            maker, *inner = (call or ast.Call(one, [], []) for one, call in decorators)
            owner = maker.func.value if isinstance(maker.func, ast.Attribute) else None
            kind, group = name_of(maker.func), made.get(getattr(owner, "id", ""))
            if kind not in {"command", "group"} or (getattr(owner, "id", "") != "click" and group is None):
                continue  # it is counted as unread below, if it is of click's
            if literals(maker, _SHOWN | {"name"}) or re.search(r"_(?:command|cmd|group|grp)\Z", node.name):
                return None  # the name is another since click 8.2
            names = [*maker.args, *(one.value for one in maker.keywords if one.arg == "name")]
            name = ast.literal_eval(names[0]) if names else node.name.lower().replace("_", "-")
            command = (click.Group if kind == "group" else click.Command)(name, add_help_option=False)
            read = [one for one in inner if ast.unparse(one.func) in {"click.argument", "click.option"}]
            if any(name_of(one.func) not in _INSIDE for one in inner if one not in read):
                return None
            command.params = [_parameter(one, None if "chdir" in text else folder) for one in read]
            used += 1 + len(read)
            made[node.name] = command
            if isinstance(group, click.Group):
                group.add_command(command)
        elif isinstance(call, ast.Call) and name_of(call.func) == "add_command":
            group = made.get(getattr(getattr(call.func, "value", None), "id", ""))
            added = made.get(getattr(call.args[0], "id", "")) if len(call.args) == 1 else None
            if not isinstance(group, click.Group) or call.keywords or added is None:
                return None
            group.add_command(added)
            used += 1
    named = [node for node in ast.walk(tree) if name_of(node) in _MAKERS and isinstance(node, ast.Attribute)]
    started = [name for name in made if is_started(name, tree, above)]
    return made[started[0]] if len(started) == 1 and used == len(named) else None


def _parameter(call: ast.Call, folder: Path | None) -> click.Parameter:
    """Return the option or argument that a decorator adds."""
    given: dict[str, Any] = {}
    for keyword in call.keywords:
        name, value = keyword.arg or "", keyword.value
        if name == "type":
            given["type"] = _type(value, folder)
        elif name == "default":
            try:
                given["default"] = ast.literal_eval(value)
            except ValueError:
                given["default"] = ...
        elif name in _OF_PARAMETER:
            given[name] = ast.literal_eval(value)
        elif name not in _SHOWN:
            raise ValueError(f"{name}: may change what is taken")
    if "default" in given:
        if given["default"] is not None or "required" not in given:
            given["required"] = False
        if "type" in given or given["default"] is ...:  # its type is not that of its default
            given.setdefault("type", None if given.get("is_flag") else click.STRING)
            del given["default"]
    kind = click.Option if name_of(call.func) == "option" else click.Argument
    return kind([ast.literal_eval(one) for one in call.args], **given)


def _type(node: ast.AST, folder: Path | None) -> Any:
    if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("click."):
        name = name_of(node.func)
        if name == "Path":
            return _ExistingPath(folder if literals(node, frozenset({"path_type"})).get("exists") else None)
        if name in {"Choice", "FloatRange", "IntRange"}:
            return getattr(click, name)(*map(ast.literal_eval, node.args), **literals(node, frozenset()))
    made = _TYPES.get(name_of(node))
    if made is None:
        raise ValueError("a type of its own")
    return made
