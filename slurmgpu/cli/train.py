"""``slurmgpu train``: train a task here, or only prepare it or work out its memory, as a job of the same settings would."""

from __future__ import annotations

import os
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import click

from slurmgpu.cli.completing import clusters
from slurmgpu.cli.job_options import device_option, run_dir_option
from slurmgpu.cli.options import Decorator, gathered
from slurmgpu.cli.terminal import echo_json, note
from slurmgpu.errors import InvalidInput, RunFailed
from slurmgpu.files.layered import Layered, Origin
from slurmgpu.models.train import TrainSettings

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from slurmgpu.models.cluster import Cluster
    from slurmgpu.models.plan import Plan
    from slurmgpu.runs.bench.verdict import Kind
    from slurmgpu.runs.prepared import Prepared


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
    """Return the types in an annotation, and the words of its literals."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return [kind for inner in get_args(annotation) for kind in _kinds(inner)]
    return list(get_args(annotation)) if origin is Literal else [annotation]


def layer_of(settings: Mapping[str, object]) -> Layered:
    """Return the options as a layer over a job file; what is not a number stays a word, for the model to refuse by name."""
    layer = Layered({}, {})
    for name, given in settings.items():
        kinds = _kinds(TrainSettings.model_fields[name].annotation)
        value: object = list(given) if isinstance(given, tuple) else given
        number: type[int] | type[float] | None = int if int in kinds else float if float in kinds else None
        if isinstance(value, str) and type(None) in kinds and value.lower() in _NULL:
            value = None
        elif isinstance(value, str) and number is not None:
            with suppress(ValueError):
                value = number(value)
        layer.put(("train", name), value, Origin(f"option --{name.replace('_', '-')}"))
    return layer


train_options = gathered(
    "settings",
    _given,
    *(_option(name, field) for name, field in TrainSettings.model_fields.items() if name not in _NOT_HERE),
)
"""Add an option for each setting; they arrive as one dict ``settings``, as words, with those given alone."""


@click.command()
@train_options
@click.argument("what", metavar="TASK.py:CLASS|slurmgpu:NAME|JOB.yaml")
@click.option("--config", multiple=True, metavar="KEY=VALUE", help="What the task reads as cfg.KEY.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Any other part of the job file.")
@click.option(
    "--cluster",
    metavar="NAME",
    help="The cluster profile whose environments count: its name, or a file.",
    shell_complete=clusters,
)
@click.option("--prepare", "only_prepare", is_flag=True, help="Only run the task's prepare(cfg), once.")
@click.option(
    "--estimate",
    is_flag=True,
    help="Only work out the memory that it takes, by strategy and number of GPUs, and which GPUs have it.",
)
@click.option("--json", "as_json", is_flag=True, help="The estimate as JSON.")
@click.option(
    "--processes",
    type=click.IntRange(1),
    help="Processes in all (default: as JOB.yaml has; of a task one for each GPU of the Slurm job that this is in, or 1).",
)
@click.option(
    "--here", is_flag=True, help="Train on this machine although it looks like a login node; stays small."
)
@click.option("--python", metavar="PATH", help="A Python that has torch, in place of the job's environment.")
@device_option
@run_dir_option
@click.pass_context
def command(
    ctx: click.Context,
    settings: dict[str, object],
    what: str,
    config: tuple[str, ...],
    sets: tuple[str, ...],
    cluster: str | None,
    only_prepare: bool,
    estimate: bool,
    as_json: bool,
    processes: int | None,
    here: bool,
    python: str | None,
    on_gpus: bool | None,
    run_dir: Path | None,
) -> None:
    """Train a task on this machine, without Slurm; or prepare it for jobs.

    TASK.py:CLASS is a file and a class in it, slurmgpu:NAME a built-in task (gpt2, resnet, ...); of a JOB.yaml
    its train: counts, with the options laid over it. Runs as `slurmgpu run` does, in a run directory of its own, and
    ends with the training's exit code.

    With --prepare it runs the task's prepare(cfg) alone, in the job's modules, container and Python, as on a login
    node, where there is a network: a download, an unpacking. The job then finds it done.

    With --estimate it trains nothing: in the same environment it works out what a rank keeps in memory, without a GPU and
    without that memory, and compares it with the cluster's types of GPU. It never refuses a job.
    """
    from slurmgpu.runs.directory import chosen_python, run_preparation
    from slurmgpu.runs.here import (
        count_of_the_job,
        looks_like_a_login_node,
        on_login_node,
        plan_training_here,
        run_prepared,
    )
    from slurmgpu.runs.preflight import check_task

    if as_json and not estimate:
        raise InvalidInput("--json goes with --estimate", hint="add --estimate, or leave out --json")
    if estimate and only_prepare:
        raise InvalidInput(
            "--estimate and --prepare: give one of them",
            hint="--prepare first, if the data are not there yet",
        )
    interpreter = Path(chosen_python(python, os.environ)) if python else None
    alone = settings.get("strategy") == "single" or on_gpus is False
    gpus = 1 if estimate or only_prepare else processes or (1 if alone else max(1, count_of_the_job()))
    prepared = plan_training_here(
        layer_of(settings), what, config=config, sets=sets, cluster=cluster, gpus=gpus
    )
    if estimate:
        _estimate(prepared, interpreter, processes, cluster, as_json=as_json)
        return
    if only_prepare:
        plan, script, folder, nice = _entrypoint_alone(prepared, interpreter)
        code = run_preparation(plan, script, folder, nice=nice)
        if code:
            instead = "; it ran in the job's environment, and --python PATH takes another Python"
            note(f"preparing ended with exit code {code}{'' if python else instead}")
        ctx.exit(code)
    if looks_like_a_login_node() and not here:
        check_task(prepared.plan, prepared.folder)  # a fault of one's own is said before the refusal
    code = run_prepared(
        prepared,
        note,
        login_node=on_login_node(here),
        processes=processes,
        on_gpus=on_gpus,
        python=interpreter,
        run_dir=run_dir,
    )
    ctx.exit(code)


ESTIMATED = (1, 8, 16, 64)
"""The numbers of GPUs in the table, beside the job's own."""
_HEAD_ROOM = 0.1
"""Share of a GPU that stays free, as with ``fit_head_room``: the allocator holds more than is in use."""
_CONTEXT = 1 << 30
"""Bytes: CUDA itself and NCCL's buffers."""
_AMOUNTS = {
    "parameters": "PARAMETERS", "gradients": "GRADIENTS", "optimizer": "OPTIMIZER", "averages": "EMA",
    "gathered": "GATHERED", "activations": "ACTIVATIONS", "total": "TOTAL", "host": "HOST",
}  # fmt: skip
"""The amounts of a rank, and their columns."""


def fits(row: Mapping[str, Any], memory: float | None) -> dict[str, Any]:
    """Return whether a row's total is likely to fit into a GPU's memory, and the samples at a time that would.

    ``memory``: bytes; None: not known, and then neither is anything else.
    """
    if memory is None:
        return {"fits": None, "micro_batch": None}
    left = memory * (1 - _HEAD_ROOM) - _CONTEXT
    if row["per_sample"] is None:  # the activations are not known: only what is too large for certain
        return {"fits": False if row["total"] > left else None, "micro_batch": None}
    most = int((left - row["fixed"]) // max(1, row["per_sample"]))
    return {"fits": row["total"] <= left, "micro_batch": max(0, most)}


def print_estimate(found: Mapping[str, Any], cluster: Cluster, *, as_json: bool) -> None:
    """The estimate as a table with a line for each type of GPU, or as JSON."""
    from slurmgpu.runs.bench.verdict import kinds_of

    known = {kind.name: kind for kind in kinds_of(cluster)}
    there = {kind.gpu_type for part in cluster.partitions.values() for kind in part.kinds if kind.gpu_type}
    # One of which nobody knows the memory is None.
    kinds = [(name, known.get(name)) for name in sorted(there | set(cluster.gpu_types))]
    rows = [
        {**row, "on": {name: fits(row, kind and kind.bytes) for name, kind in kinds}} for row in found["rows"]
    ]
    if as_json:
        types = {
            name: {"memory": kind and int(kind.bytes), "guess": kind and kind.doubt} for name, kind in kinds
        }
        document = {**found, "rows": rows, "cluster": cluster.name, "gpu_types": types}
        echo_json(document, ensure_ascii=True)
        return
    for line in _lines(found, rows, cluster, kinds):
        click.echo(line)


def _lines(
    found: Mapping[str, Any],
    rows: list[dict[str, Any]],
    cluster: Cluster,
    kinds: list[tuple[str, Kind | None]],
) -> Iterator[str]:
    from slurmgpu.columns import aligned

    yield f"{found['task']}: {found['parameters']:,} parameters, {found['precision']}; GiB of each rank at its peak, worked out"
    yield ""
    types = (name.upper() for name, _ in kinds)
    header = ("STRATEGY", "GPUS", "AT A TIME", *_AMOUNTS.values(), *types)
    yield from aligned([header, *(_cells(row) for row in rows)])
    yield ""
    sizes = ", ".join(f"{size}: {_gib(size_of)}" for size, size_of in found["activations"].items())
    if None in found["activations"].values():
        yield "activations: not known, because the task has a step of its own; the totals are without them"
    else:
        yield f"activations by samples at a time: {sizes}"
    if found["micro_batch_to_be_found"]:
        yield "micro_batch is auto: the totals are those of a single sample at a time"
    if kinds:
        yield (
            f"yes, N: the total is likely to fit on {cluster.name}, and up to N samples at a time would "
            "(a tenth and 1 GiB stay free)"
        )
    else:
        yield f"which GPUs have it is unknown: the profile of {cluster.name} names no type of GPU"
    for name, kind in kinds:
        if kind is None:
            yield f"{name}: its memory is unknown; gpu_types.{name}.memory in the profile tells it"
        elif kind.doubt:
            yield f"{name}: {_gib(kind.bytes)} GiB is a guess ({kind.doubt})"
    if any(row["strategy"] in ("fsdp2", "pipeline") for row in rows):
        yield (
            f"fsdp2, pipeline: at the start each process has {_gib(found['made'])} GiB of the model in the node's memory "
            "(meta_device: true: none, and on the device a block at a time)"
        )
    if any(row["strategy"] == "pipeline" for row in rows):
        yield "pipeline: of all stages the largest; activations taken as shared out equally"
    if found["note"]:
        yield f"note: {found['note']}"
    yield "Work spaces of kernels and compile are not in it. slurmgpu probe measures."


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    name = row["strategy"] + (", cpu_offload" if row["cpu_offload"] else "")
    amounts = [row[each] for each in _AMOUNTS]
    answers = []
    for one in row["on"].values():
        most = "" if one["micro_batch"] is None else f", {one['micro_batch']}"
        answers.append("unknown" if one["fits"] is None else f"{'yes' if one['fits'] else 'no'}{most}")
    said = ("?" if amount is None else _gib(amount) if amount else "-" for amount in amounts)
    return (name, str(row["gpus"]), str(row["micro_batch"]), *said, *answers)


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.2f}"


def _estimate(
    prepared: Prepared, python: Path | None, processes: int | None, named: str | None, *, as_json: bool
) -> None:
    """Run it to work out the memory, and print that beside the cluster's types of GPU."""
    from slurmgpu.files.clusters import choose_cluster
    from slurmgpu.runs.directory import estimate_here

    plan, script, folder, nice = _entrypoint_alone(prepared, python)
    counts = {*ESTIMATED, processes or max(1, prepared.plan.nodes * prepared.plan.processes_per_node)}
    found = estimate_here(plan, script, folder, nice=nice, gpus=sorted(counts))
    if found is None:
        instead = "" if python else ": --python PATH takes another Python than the job's"
        raise RunFailed(f"nothing was worked out{instead}")
    cluster, _ = choose_cluster(named, prepared.loaded.settings, os.environ)
    print_estimate(found, cluster, as_json=as_json)


def _entrypoint_alone(prepared: Prepared, python: Path | None) -> tuple[Plan, str, Path, int]:
    """Return the plan and the script of the entrypoint alone, the folder where it runs, and how nice it is to others."""
    from slurmgpu.runs.directory import preparation_plan
    from slurmgpu.runs.here import LOGIN_NICE, looks_like_a_login_node
    from slurmgpu.runs.preflight import check_task, is_folder

    folder = prepared.folder
    if folder is None or not is_folder(folder):
        raise InvalidInput(
            f"work_dir: {prepared.loaded.work_dir} is not on this machine",
            hint="give another: --set work_dir=FOLDER",
        )
    check_task(prepared.plan, folder)
    plan = preparation_plan(prepared.plan, python)
    by_slurm = [f"--{name}" for name in plan.environment.sbatch] + [*plan.environment.srun_options]
    if by_slurm:
        note(
            f"in the job, Slurm itself sets up part of the environment ({', '.join(by_slurm)}), and not here; "
            "--python PATH takes another Python"
        )
    script = prepared._replace(plan=plan).render()
    return plan, script, folder, LOGIN_NICE if looks_like_a_login_node() else 0
