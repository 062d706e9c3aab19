"""What ``slurmgpu checkpoint`` does."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import click

from slurmgpu.cli.preparing import note
from slurmgpu.cli.shared_answers import own_slurm
from slurmgpu.errors import InvalidInput, RunFailed
from slurmgpu.files.settings import runs_by_settings
from slurmgpu.jobs.runs import find_run, newest_run
from slurmgpu.jobs.select import current_user
from slurmgpu.printable import printable
from slurmgpu.runs.checkpoints import (
    Checkpoint,
    best_of,
    checkpoint_folders,
    checkpoints,
    damage,
    newest_complete,
    read_through,
)
from slurmgpu.runs.directory import ask_entrypoint, chosen_python

_HEADER = ("TASK", "STEP", "EPOCH", "SAVED", "SIZE", "RANKS", "RESTART", "STATE", "NOTE")
_STATE = _HEADER.index("STATE")
_COLOURS = {"complete": "green", "intact": "green", "torn": "yellow", "damaged": "red", "set aside": "red"}


def print_table(rows: list[dict[str, object]]) -> None:
    """Print a line for each checkpoint, the task's column only for an array."""
    lines = [_HEADER, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    first = 0 if any(row["task"] for row in rows) else 1
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        cells[-1] = line[-1]
        if not line[-1]:
            cells[_STATE:] = [line[_STATE]]
        cells[_STATE] = click.style(cells[_STATE], fg=_COLOURS.get(line[_STATE]))
        click.echo("  ".join(cells[first:]))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    remarks = [
        "a resume takes it, if intact" if row["resume"] else "",
        "end of the training" if row["end_of_training"] else "",
        "kept for good" if row["kept_for_good"] else "",
        f"best: {row['best']['metric']} {row['best']['value']:.6g}" if row["best"] else "",
        printable(row["problem"] or ""),
    ]
    return (
        *_known(row, "task", "step", "epoch"),
        _saved(row["time"]),
        "-" if row["bytes"] is None else size(row["bytes"]),
        *_known(row, "world_size", "restart"),
        row["state"],
        ", ".join(filter(None, remarks)),
    )


def _known(row: dict[str, object], *names: str) -> list[str]:
    return ["-" if row[name] is None else str(row[name]) for name in names]


def _saved(time: float | None) -> str:
    if time is None:
        return "-"
    try:
        return f"{datetime.fromtimestamp(time):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):  # no manifest of ours has such a time
        return "unknown"


def size(amount: int) -> str:
    """Bytes as people read them: 95.6 KiB."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if amount >= factor:
            return f"{amount / factor:.1f} {unit}"
    return f"{amount} B"


def print_verdict(row: dict[str, Any]) -> None:
    """Print what was found of one checkpoint."""
    where = f"task {row['task']}: " if row["task"] else ""
    state = click.style(row["state"], fg=_COLOURS[row["state"]])
    about = printable(row["problem"] or "") or f"{row['parts']} files, {size(row['bytes'])}"
    click.echo(f"{where}{row['path']}: {state}, {about}")


class _Task(NamedTuple):
    """One folder of checkpoints: an array task's, or the run's own."""

    name: str
    folder: Path
    found: list[Checkpoint]


def act_list(ctx: click.Context, run: str | None, as_json: bool) -> None:
    run_dir, tasks = tasks_of(ctx, run)
    rows = [
        _facts(task, one, resume=one is newest_complete(task.found)) for task in tasks for one in task.found
    ]
    if as_json:
        _print_json(run_dir, rows)
        return
    for aside in sorted(run_dir.glob("earlier-checkpoints-*")):
        click.echo(f"note: a start with resume: false set earlier ones aside, in {aside}", err=True)
    if not rows:
        folder = (run_dir if run_dir.name else run_dir.absolute()) / "checkpoints"
        click.echo(f"No checkpoints of slurmgpu's (step-N folders) in {folder}.", err=True)
        return
    click.echo(str(run_dir))
    print_table(rows)


def act_verify(ctx: click.Context, run: str | None, step: int | None, as_json: bool) -> None:
    run_dir, tasks = tasks_of(ctx, run)
    if step is not None:
        _require_step(run_dir, tasks, step)
    rows: list[dict[str, object]] = []
    for task in tasks:
        rows += _verified(task, step, show=not as_json)
    if as_json:
        _print_json(run_dir, rows)
    elif not rows:
        note(
            f"there is no checkpoint to verify in {run_dir}{'' if step is None else ': it was pruned meanwhile'}"
        )
    bad = [
        row for row in rows if row["state"] == "damaged" or (step is not None and row["state"] != "intact")
    ]
    ctx.exit(1 if bad or not rows else 0)


def _verified(task: _Task, step: int | None, *, show: bool) -> list[dict[str, object]]:
    """Verify a folder's generations, as many as are asked for and as the question of a resume needs."""
    rows: list[dict[str, object]] = []
    intact: list[int] = []
    any_counts = False
    for one, problems in read_through(task.folder, step):
        counts = one.state in {"complete", "damaged"}
        any_counts = any_counts or counts
        if not problems:
            intact.append(one.step)
        if step in {None, one.step}:
            state = one.state if not counts else "damaged" if problems else "intact"
            problem = "; ".join(problems) or None
            rows.append({**_facts(task, one, resume=False), "state": state, "problem": problem})
            if show:
                print_verdict(rows[-1])
    for row in rows:
        row["resume"] = row["state"] == "intact" and row["step"] == max(intact)
    if show and rows:
        where = f"task {task.name}: " if task.name else ""
        if intact:
            click.echo(f"{where}a resume takes step-{max(intact)}")
        elif any_counts:
            click.echo(f"{where}none is intact: a resume ends with an error until one is restored")
        else:
            click.echo(f"{where}there is none that counts: a resume begins anew")
    return rows


class Which(NamedTuple):
    """The checkpoint to export: that of a step, the best one, or else the newest."""

    step: int | None
    best: bool


class Into(NamedTuple):
    """Where an export goes: a file, or a new folder such as ``like``."""

    target: Path
    force: bool
    like: Path | None


def act_export(
    ctx: click.Context, run: str | None, which: Which, into: Into, part: str, python: str | None
) -> None:
    run_dir, tasks = tasks_of(ctx, run)
    _check_target(into, tasks)
    target, _, like = into
    interpreter = chosen_python(python, os.environ)
    step = _best_step(run_dir, tasks, which.step) if which.best else which.step
    one = _intact(run_dir, tasks, step)
    arguments = [str(one.path.absolute()), str(target.absolute()), part]
    arguments += [] if like is None else [str(like.expanduser().absolute())]
    facts = json.loads(ask_entrypoint(interpreter, "export", arguments, os.environ))
    kind = " (the average of its weights)" if facts.get("averaged") else ""
    note(
        f"wrote {target}: {part}{kind} of step {one.step} in {run_dir}, {facts['tensors']} tensors, "
        f"{facts['values']} values, {size(facts['bytes'])}"
    )
    for names, what in (
        (facts.get("added"), "in the checkpoint alone, added"),
        (facts.get("left_out"), f"in {like} alone, left out"),
    ):
        if names:
            note(f"  {len(names)} {what}: {', '.join(names[:8])}{' ...' if names[8:] else ''}")


def _check_target(into: Into, tasks: list[_Task]) -> None:
    target, force, like = into
    if not target.absolute().parent.is_dir():
        raise InvalidInput(f"--output {target}: there is no folder {target.parent}", hint="make it first")
    if any(task.folder.resolve() in target.resolve().parents for task in tasks):
        raise InvalidInput(f"--output {target}: lies among the checkpoints", hint="give a file elsewhere")
    if like is not None and not like.expanduser().is_dir():
        raise InvalidInput(f"--like {like}: is no folder", hint="give one with a config.json and weights")
    if like is not None and (target.exists() or target.is_symlink()):
        raise InvalidInput(f"--output {target}: is there already", hint="give a folder that is not there yet")
    if target.exists() and not target.is_file():
        raise InvalidInput(f"--output {target}: is not a plain file", hint="give a file's name")
    if target.exists() and not force:
        raise InvalidInput(f"--output {target}: is there already", hint="--force replaces it")


def _intact(run_dir: Path, tasks: list[_Task], step: int | None) -> Checkpoint:
    """The checkpoint to export, read through: that of the step, else the newest intact one."""
    require_one(run_dir, tasks)
    read: Iterable[tuple[Checkpoint, list[str] | None]] = ()
    if step is not None:
        _require_step(run_dir, tasks, step)
        read = ((one, damage(one)) for one in tasks[0].found if one.step == step)
    elif tasks:
        read = read_through(tasks[0].folder)
    for one, problems in read:
        if one.state == "set aside" or problems is None:
            continue
        if not problems:
            return one
        note(f"step-{one.step} is {'torn' if one.state == 'torn' else 'damaged'}: {'; '.join(problems)}")
    raise RunFailed(
        f"there is no intact checkpoint{'' if step is None else f' of step {step}'} in {run_dir}",
        hint="slurmgpu checkpoint list shows which there are",
    )


def _best_step(run_dir: Path, tasks: list[_Task], step: int | None) -> int:
    """The step of the best checkpoint."""
    if step is not None:
        raise InvalidInput("--best and --step: each names a checkpoint", hint="give one of them")
    require_one(run_dir, tasks)
    found, one = best_of(tasks[0].found) if tasks else (None, None)
    if found is None:
        raise InvalidInput(
            f"--best: no checkpoint in {run_dir} is known as the best one",
            hint="a training keeps its best checkpoint with train.best, say {metric: accuracy, mode: max}",
        )
    if one is None:
        raise RunFailed(
            f"the best checkpoint in {run_dir}, step-{found.step} ({found.metric} {found.value:.6g}), is damaged or gone",
            hint="slurmgpu checkpoint list shows which there are",
        )
    return found.step


def require_one(run_dir: Path, tasks: list[_Task]) -> None:
    if len(tasks) > 1:
        raise InvalidInput(
            f"{run_dir} is an array, with tasks {', '.join(task.name or '(none)' for task in tasks)}",
            hint=f"name one of them: {run_dir / tasks[-1].name}",
        )


def _require_step(run_dir: Path, tasks: list[_Task], step: int) -> None:
    if not any(one.step == step for task in tasks for one in task.found):
        there = sorted({one.step for task in tasks for one in task.found}, reverse=True)
        listed = ", ".join(map(str, there))
        raise InvalidInput(
            f"--step {step}: there is no such checkpoint in {run_dir}",
            hint=f"there are those of steps {listed}" if there else "there is none at all",
        )


def tasks_of(ctx: click.Context, run: str | None) -> tuple[Path, list[_Task]]:
    """The run directory that is meant, and its folders of checkpoints."""
    runs_of = runs_by_settings(Path.cwd(), os.environ)
    slurm = own_slurm(ctx)
    run_dir = find_run(slurm, run, runs_of, current_user()) if run else newest_run(runs_of(Path.cwd()))
    folders = checkpoint_folders(run_dir)
    return run_dir, [_Task(name, folder, checkpoints(folder)) for name, folder in folders.items()]


def _facts(task: _Task, one: Checkpoint, *, resume: bool) -> dict[str, object]:
    """What a row shows and JSON holds: bytes, seconds since 1970, null for what is not known."""
    manifest = one.manifest
    best, where = best_of(task.found)
    return {
        "task": task.name or None,
        "step": one.step,
        "state": one.state,
        "problem": one.problem,
        "resume": resume,
        "kept_for_good": one.kept_for_good,
        "best": {"metric": best.metric, "value": best.value} if best and where is one else None,
        "end_of_training": bool(manifest and manifest.complete),
        "epoch": manifest.epoch if manifest else None,
        "samples": manifest.samples if manifest else None,
        "time": manifest.time if manifest else None,
        "bytes": one.size,
        "parts": len(manifest.parts) if manifest else None,
        "world_size": manifest.world_size if manifest else None,
        "restart": manifest.restart if manifest else None,
        "torch": manifest.torch if manifest else None,
        "path": str(one.path.relative_to(task.folder.parent)),
    }


def _print_json(run_dir: Path, rows: list[dict[str, object]]) -> None:
    document = {"schema": "slurmgpu.checkpoints/1", "run_dir": str(run_dir.absolute()), "checkpoints": rows}
    click.echo(json.dumps(document, indent=2))
