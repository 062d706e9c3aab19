"""``slurmgpu checkpoint``: list a run's checkpoints, verify them, export one, train an interval again and compare."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from slurmgpu.amounts import size_text
from slurmgpu.cli.completing import runs
from slurmgpu.cli.shared_answers import own_slurm
from slurmgpu.cli.terminal import note
from slurmgpu.errors import InvalidInput, RunFailed
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.runs.checkpoints import Checkpoint


@click.group()
def command() -> None:
    """List a run's checkpoints, verify them, export one, train an interval again and compare."""


@command.command("list", short_help="Show a run's checkpoints.")
@click.argument("run", metavar="[RUN]", required=False, shell_complete=runs)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def checkpoint_list(ctx: click.Context, run: str | None, as_json: bool) -> None:
    """Show a run's checkpoints, and which one a resume would take; reads manifests and sizes alone.

    RUN is a run directory, a job id (112_3 for one task of an array) or a job name; without it, the newest run here
    that has checkpoints. An array has one folder per task.
    """
    from slurmgpu.runs.checkpoints import newest_complete

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


@command.command("verify", short_help="Read checkpoints through; say which are intact.")
@click.argument("run", metavar="[RUN]", required=False, shell_complete=runs)
@click.option("--step", type=click.IntRange(0), help="Only the checkpoint of this step.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def checkpoint_verify(ctx: click.Context, run: str | None, step: int | None, as_json: bool) -> None:
    """Read every file of a run's checkpoints and hold its size and SHA-256 against the manifest.

    RUN as for `checkpoint list`. Says which one a resume would take. Exit code 1 when one of those asked for is
    damaged. A training may go on meanwhile.
    """
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


@command.command("export", short_help="Write one checkpoint's weights as a plain state_dict.")
@click.argument("run", metavar="[RUN]", required=False, shell_complete=runs)
@click.option(
    "--step", type=click.IntRange(0), help="The checkpoint of this step (default: the newest intact one)."
)
@click.option("--best", is_flag=True, help="The checkpoint that train.best has kept.")
@click.option(
    "-o",
    "--output",
    "target",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Where to; FILE.pt or FILE.safetensors, with --like a new folder.",
)
@click.option(
    "--like",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Write a folder of Hugging Face's, with the names, dtypes, files and configuration of this one.",
)
@click.option(
    "--part",
    default="model",
    show_default=True,
    help="What to write: model (with ema the average of its weights), raw (the weights as they are trained), optimizer, "
    "or a name that Run.state was given.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@click.option("--python", metavar="PATH", help="A Python that has torch (default: one found here).")
@click.pass_context
def checkpoint_export(
    ctx: click.Context,
    run: str | None,
    step: int | None,
    best: bool,
    target: Path,
    force: bool,
    like: Path | None,
    part: str,
    python: str | None,
) -> None:
    """Write the weights of a checkpoint as one plain state_dict.

    RUN as for `checkpoint list`. Read it with `torch.load(FILE, weights_only=True)`, without slurmgpu; the names are those
    of the model without DDP or torch.compile. Checksums are held first. Only this command needs torch.
    """
    from slurmgpu.runs.directory import ask_entrypoint, chosen_python

    run_dir, tasks = tasks_of(ctx, run)
    _check_target(target, tasks, force=force, like=like)
    interpreter = chosen_python(python, os.environ)
    step = _best_step(run_dir, tasks, step) if best else step
    one = _intact(run_dir, tasks, step)
    arguments = [str(one.path.absolute()), str(target.absolute()), part]
    arguments += [] if like is None else [str(like.expanduser().absolute())]
    facts = json.loads(ask_entrypoint(interpreter, "export", arguments, os.environ))
    kind = " (the average of its weights)" if facts.get("averaged") else ""
    note(
        f"wrote {target}: {part}{kind} of step {one.step} in {run_dir}, {facts['tensors']} tensors, "
        f"{facts['values']} values, {size_text(facts['bytes'])}"
    )
    for names, what in (
        (facts.get("added"), "in the checkpoint alone, added"),
        (facts.get("left_out"), f"in {like} alone, left out"),
    ):
        if names:
            note(f"  {len(names)} {what}: {', '.join(names[:8])}{' ...' if names[8:] else ''}")


@command.command("replay", short_help="Train an interval again; say where it differs from the run.")
@click.argument("run", metavar="[RUN]", required=False, shell_complete=runs)
@click.option(
    "--from",
    "begin",
    type=click.IntRange(0),
    metavar="STEP",
    help="Begin at the checkpoint of this step, or the one before it (default: the newest but one; 0: the beginning).",
)
@click.option(
    "--to",
    "end",
    type=click.IntRange(1),
    metavar="STEP",
    help="The last step (default: the newest checkpoint).",
)
@click.option(
    "--on",
    "nodes",
    multiple=True,
    metavar="NODES",
    help="Train it as a job on these nodes, such as 'node[03-04]', in place of this machine; as many as the run had. "
    "May be given several times.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--python", metavar="PATH", help="A Python that has torch (default: one found here).")
@click.pass_context
def checkpoint_replay(
    ctx: click.Context,
    run: str | None,
    begin: int | None,
    end: int | None,
    nodes: tuple[str, ...],
    as_json: bool,
    python: str | None,
) -> None:
    """Train an interval of a run again, and compare losses, checksums and the checkpoint at its end, bit for bit.

    RUN as for `checkpoint list`. It runs on this machine, with as many processes as the run had, in a temporary folder; with
    --on as a job, with the run's own settings, in a run directory beside the run's. The run is only read. Exit code 0: all is
    equal; 1: something differs; 2: there is no such interval, or a node that it can't have; 3: it cannot be told.
    """
    from slurmgpu.cli.replay import OnNodes
    from slurmgpu.runs.directory import chosen_python
    from slurmgpu.runs.replay_verdict import CODES, Here, find_interval, judge_replay, replay_in_words

    run_dir, tasks = tasks_of(ctx, run)
    require_one(run_dir, tasks)
    folder = tasks[0].folder.parent if tasks else run_dir
    interval = find_interval(folder, tasks[0].found if tasks else [], begin, end)
    began = time.monotonic()
    if nodes:
        if python is not None:
            raise InvalidInput(
                f"--python {python}: with --on, the Python is that of the run's own environment",
                hint="leave one of the two out",
            )
        slurm = own_slurm(ctx)
        trainer = OnNodes(slurm, interval.run_dir, run, nodes)
        found = judge_replay(interval, trainer)
        trainer.settle(well=CODES[found["verdict"]] == 0)
        found["jobs"] = trainer.jobs
    else:
        with tempfile.TemporaryDirectory(prefix="slurmgpu-replay-") as temporary:
            found = judge_replay(interval, Here(chosen_python(python, os.environ), Path(temporary)))
    document = {
        "schema": "slurmgpu.replay/1",
        "run_dir": str(folder.absolute()),
        "from": interval.after,
        "to": interval.until,
        "verdict": found["verdict"],
        "difference": None,
        "why": None,
        "parts": None,
        "jobs": [],
        **found,
        "seconds": round(time.monotonic() - began, 3),
    }
    if as_json:
        click.echo(json.dumps(document, indent=2))
    else:
        for line in replay_in_words(document):
            click.echo(printable(line))
    ctx.exit(CODES[document["verdict"]])


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
        "-" if row["bytes"] is None else size_text(row["bytes"]),
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


def print_verdict(row: dict[str, Any]) -> None:
    """Print what was found of one checkpoint."""
    where = f"task {row['task']}: " if row["task"] else ""
    state = click.style(row["state"], fg=_COLOURS[row["state"]])
    about = printable(row["problem"] or "") or f"{row['parts']} files, {size_text(row['bytes'])}"
    click.echo(f"{where}{row['path']}: {state}, {about}")


class _Task(NamedTuple):
    """One folder of checkpoints: an array task's, or the run's own."""

    name: str
    folder: Path
    found: list[Checkpoint]


def _verified(task: _Task, step: int | None, *, show: bool) -> list[dict[str, object]]:
    """Verify a folder's generations, as many as are asked for and as the question of a resume needs."""
    from slurmgpu.runs.checkpoints import read_through

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


def _check_target(target: Path, tasks: list[_Task], *, force: bool, like: Path | None) -> None:
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
    """Return the checkpoint to export, read through: that of the step, else the newest intact one."""
    from slurmgpu.runs.checkpoints import damage, read_through

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
    """Return the step of the best checkpoint."""
    from slurmgpu.runs.checkpoints import best_of

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
    """Return the run directory that is meant, and its folders of checkpoints."""
    from slurmgpu.files.settings import runs_by_settings
    from slurmgpu.jobs.runs import find_run, newest_run
    from slurmgpu.jobs.select import current_user
    from slurmgpu.runs.checkpoints import checkpoint_folders, checkpoints

    runs_of = runs_by_settings(Path.cwd(), os.environ)
    slurm = own_slurm(ctx)
    run_dir = find_run(slurm, run, runs_of, current_user()) if run else newest_run(runs_of(Path.cwd()))
    folders = checkpoint_folders(run_dir)
    return run_dir, [_Task(name, folder, checkpoints(folder)) for name, folder in folders.items()]


def _facts(task: _Task, one: Checkpoint, *, resume: bool) -> dict[str, object]:
    """Return a row's facts, as JSON holds them: bytes, seconds since 1970, null if not known."""
    from slurmgpu.runs.checkpoints import best_of

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
