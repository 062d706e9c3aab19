"""``slurmgpu train``: train a task here, or only prepare it, as a job of the same settings would."""

from __future__ import annotations

import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from slurmgpu.cli.completing import clusters
from slurmgpu.cli.gathering import Decorator, gathered
from slurmgpu.cli.job_options import device_option, run_dir_option
from slurmgpu.files.layered import Layered, Origin
from slurmgpu.models.train import TrainSettings

_PREFIX = "train__"
# The task is the argument, and config has KEY=VALUE; other mappings have --set.
_NOT_HERE = ("task", "config", "pretrained_rename", "best", "early_stop")
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
    share = ["P%"] if number and str in kinds else []
    text = ["TEXT"] if str in kinds and not number else []
    metavar = "|".join([*number, *share, *text, *words, *(["none"] if type(None) in kinds else [])])
    return click.option(f"--{flag}", _PREFIX + name, metavar=metavar, help=help_text)


def _kinds(annotation: object) -> list[object]:
    """The types in an annotation, and the words of its literals."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return [kind for inner in get_args(annotation) for kind in _kinds(inner)]
    return list(get_args(annotation)) if origin is Literal else [annotation]


def layer_of(settings: Mapping[str, object]) -> Layered:
    """The options as a layer over a job file; what is not a number stays a word, for the model to refuse by name."""
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


class Training(NamedTuple):
    """What is trained, and where its environment is described."""

    what: str
    config: tuple[str, ...]
    sets: tuple[str, ...]
    cluster: str | None


class Instead(NamedTuple):
    """What is done in place of a training."""

    only_prepare: bool
    estimate: bool
    as_json: bool


class Machine(NamedTuple):
    """How this machine is used."""

    processes: int | None
    here: bool
    python: str | None
    on_gpus: bool | None
    run_dir: Path | None


@click.command()
@train_options
@gathered(
    "asked",
    Training,
    click.argument("what", metavar="TASK.py:CLASS|slurmgpu:NAME|JOB.yaml"),
    click.option("--config", multiple=True, metavar="KEY=VALUE", help="What the task reads as cfg.KEY."),
    click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Any other part of the job file."),
    click.option(
        "--cluster",
        metavar="NAME",
        help="The cluster profile whose environments count: its name, or a file.",
        shell_complete=clusters,
    ),
)
@gathered(
    "instead",
    Instead,
    click.option("--prepare", "only_prepare", is_flag=True, help="Only run the task's prepare(cfg), once."),
    click.option(
        "--estimate",
        is_flag=True,
        help="Only work out the memory that it takes, by strategy and number of GPUs, and which GPUs have it.",
    ),
    click.option("--json", "as_json", is_flag=True, help="The estimate as JSON."),
)
@gathered(
    "machine",
    Machine,
    click.option(
        "--processes",
        type=click.IntRange(1),
        help="Processes in all (default: as JOB.yaml has; of a task one for each GPU of the Slurm job that this is in, or 1).",
    ),
    click.option(
        "--here",
        is_flag=True,
        help="Train on this machine although it looks like a login node; stays small.",
    ),
    click.option(
        "--python", metavar="PATH", help="A Python that has torch, in place of the job's environment."
    ),
    device_option,
    run_dir_option,
)
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Train a task on this machine, without Slurm; or prepare it for jobs.

    TASK.py:CLASS is a file and a class in it, slurmgpu:NAME a built-in task (gpt2, resnet, ...); of a JOB.yaml
    its train: counts, with the options laid over it. Runs as `slurmgpu run` does, in a run directory of its own, and
    ends with the training's exit code.

    With --prepare it runs the task's prepare(cfg) alone, in the job's modules, container and Python, as on a login
    node, where there is a network: a download, an unpacking. The job then finds it done.

    With --estimate it trains nothing: in the same environment it works out what a rank keeps in memory, without a GPU and
    without that memory, and compares it with the cluster's types of GPU. It never refuses a job.
    """
    from slurmgpu.cli.actions.train import act

    act(ctx, layer_of(given["settings"]), **given)
