"""The options of ``slurmgpu train``: one for each setting of ``train:`` in a job file, made from its model."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Literal, Union, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from slurmgpu.cli.gathering import Decorator, gathered
from slurmgpu.files.layered import Layered, Origin
from slurmgpu.models.train import TrainSettings

__all__ = ["layer_of", "train_options"]

_PREFIX = "train__"
# The task is the argument, and config has KEY=VALUE.
_NOT_HERE = ("task", "config")
_NULL = ("null", "none")


def _given(**values: object) -> dict[str, object]:
    named = ((name.removeprefix(_PREFIX), value) for name, value in values.items())
    return {name: value for name, value in named if value not in (None, ())}


def _option(name: str, field: FieldInfo) -> Decorator:
    flag, kinds = name.replace("_", "-"), _kinds(field.annotation)
    default = field.get_default(call_default_factory=True)
    help_text = (field.description or "").replace("; null: ", "; none: ").replace(" null: ", " none: ")
    if default not in (None, []):
        shown = f"{default:g}" if type(default) is float else str(default).lower()
        help_text += f"  [default: {shown}]"
    if kinds == [bool]:
        return click.option(f"--{flag}/--no-{flag}", _PREFIX + name, default=None, help=help_text)
    several = [_kinds(get_args(kind)[0]) for kind in kinds if get_origin(kind) is list]
    if several:
        choice = click.Choice(several[0]) if several != [[str]] else None
        metavar = None if choice else "TEXT"
        return click.option(
            f"--{flag}",
            _PREFIX + name,
            multiple=True,
            type=choice,
            metavar=metavar,
            help=f"{help_text}  [may be repeated]",
        )
    words = [kind for kind in kinds if isinstance(kind, str)]
    if len(words) == len(kinds):
        return click.option(f"--{flag}", _PREFIX + name, type=click.Choice(words), help=help_text)
    number = ["N"] if int in kinds else ["X"] if float in kinds else []
    metavar = "|".join([*number, *words, *(["none"] if type(None) in kinds else [])])
    return click.option(f"--{flag}", _PREFIX + name, metavar=metavar, help=help_text)


def _kinds(annotation: object) -> list[object]:
    """The types in an annotation, and the words of its literals."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return [kind for inner in get_args(annotation) for kind in _kinds(inner)]
    return list(get_args(annotation)) if origin is Literal else [annotation]


def layer_of(settings: Mapping[str, object]) -> Layered:
    """The options as a layer over a job file; what is no number stays a word, for the model to refuse by name."""
    layer = Layered({}, {})
    for name, value in settings.items():
        kinds = _kinds(TrainSettings.model_fields[name].annotation)
        layer.put(("train", name), _value(value, kinds), Origin(f"option --{name.replace('_', '-')}"))
    return layer


def _value(value: object, kinds: list[object]) -> object:
    if isinstance(value, tuple):
        return list(value)
    if not isinstance(value, str):
        return value
    if type(None) in kinds and value.lower() in _NULL:
        return None
    for number in (int, float):
        if number in kinds:
            try:
                return number(value)
            except ValueError:
                return value
    return value


train_options = gathered(
    "settings",
    _given,
    *(_option(name, field) for name, field in TrainSettings.model_fields.items() if name not in _NOT_HERE),
)
"""Add an option for each setting; they arrive as one dict ``settings``, as words, with those given alone."""
