"""``slurmgpu checkpoint``: list a run's checkpoints, verify them, export one, train an interval again and compare."""

from __future__ import annotations

import json
import os
import tempfile
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurmgpu.amounts import size_text
from slurmgpu.cli.completing import runs
from slurmgpu.cli.options import own_slurm
from slurmgpu.cli.terminal import note
from slurmgpu.errors import InvalidInput
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.runs.checkpoints import TaskCheckpoints


_HEADER = ("TASK", "STEP", "EPOCH", "SAVED", "SIZE", "RANKS", "RESTART", "STATE", "NOTE")
_STATE = _HEADER.index("STATE")
_COLOURS = {"complete": "green", "intact": "green", "torn": "yellow", "damaged": "red", "set aside": "red"}


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

    run_dir, tasks = _checkpoints_of(ctx, run)
    rows = [
        task.facts(one, resume=one is newest_complete(task.found)) for task in tasks for one in task.found
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
    lines = [_HEADER, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        cells[-1] = line[-1]
        if not line[-1]:
            cells[_STATE:] = [line[_STATE]]
        cells[_STATE] = click.style(cells[_STATE], fg=_COLOURS.get(line[_STATE]))
        click.echo("  ".join(cells[0 if any(row["task"] for row in rows) else 1 :]))


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
    from slurmgpu.runs.checkpoints import read_through, require_step

    run_dir, tasks = _checkpoints_of(ctx, run)
    if step is not None:
        require_step(run_dir, tasks, step)
    rows: list[dict[str, Any]] = []
    for task in tasks:
        of_task: list[dict[str, Any]] = []
        where = f"task {task.name}: " if task.name else ""
        intact: list[int] = []
        any_counts = False
        for one, problems in read_through(task.folder, step):
            counts = one.state in {"complete", "damaged"}
            any_counts = any_counts or counts
            if not problems:
                intact.append(one.step)
            if step in {None, one.step}:
                state = one.state if not counts else "damaged" if problems else "intact"
                row = {
                    **task.facts(one, resume=False),
                    "state": state,
                    "problem": "; ".join(problems) or None,
                }
                of_task.append(row)
                if not as_json:
                    shown = click.style(state, fg=_COLOURS[state])
                    about = (
                        printable(row["problem"] or "") or f"{row['parts']} files, {size_text(row['bytes'])}"
                    )
                    click.echo(f"{where}{row['path']}: {shown}, {about}")
        for row in of_task:
            row["resume"] = row["state"] == "intact" and row["step"] == max(intact)
        rows += of_task
        if not as_json and of_task and intact:
            click.echo(f"{where}a resume takes step-{max(intact)}")
        elif not as_json and of_task and any_counts:
            click.echo(f"{where}none is intact: a resume ends with an error until one is restored")
        elif not as_json and of_task:
            click.echo(f"{where}there is none that counts: a resume begins anew")
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
    from slurmgpu.runs.checkpoints import best_step, find_intact
    from slurmgpu.runs.directory import ask_entrypoint, chosen_python

    run_dir, tasks = _checkpoints_of(ctx, run)
    _check_target(target, tasks, force=force, like=like)
    interpreter = chosen_python(python, os.environ)
    if best and step is not None:
        raise InvalidInput("--best and --step: each names a checkpoint", hint="give one of them")
    one = find_intact(run_dir, tasks, best_step(run_dir, tasks) if best else step, note)
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
    from slurmgpu.runs.checkpoints import require_one
    from slurmgpu.runs.directory import chosen_python
    from slurmgpu.runs.replay_verdict import (
        CODES,
        compare_here,
        find_interval,
        judge_replay,
        replay_in_words,
        train_here,
    )

    run_dir, tasks = _checkpoints_of(ctx, run)
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
        found = judge_replay(interval, trainer.train, trainer.compare)
        trainer.settle(well=CODES[found["verdict"]] == 0)
        found["jobs"] = trainer.jobs
    else:
        with tempfile.TemporaryDirectory(prefix="slurmgpu-replay-") as temporary:
            interpreter = chosen_python(python, os.environ)
            train = partial(train_here, interpreter, Path(temporary))
            found = judge_replay(interval, train, partial(compare_here, interpreter))
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


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    remarks = [
        "a resume takes it, if intact" if row["resume"] else "",
        "end of the training" if row["end_of_training"] else "",
        "kept for good" if row["kept_for_good"] else "",
        f"best: {row['best']['metric']} {row['best']['value']:.6g}" if row["best"] else "",
        printable(row["problem"] or ""),
    ]
    try:
        saved = "-" if row["time"] is None else f"{datetime.fromtimestamp(row['time']):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):  # no manifest of ours has such a time
        saved = "unknown"
    size = "-" if row["bytes"] is None else size_text(row["bytes"])
    task, step, epoch, ranks, restart = (
        "-" if row[name] is None else str(row[name])
        for name in ("task", "step", "epoch", "world_size", "restart")
    )
    return task, step, epoch, saved, size, ranks, restart, row["state"], ", ".join(filter(None, remarks))


def _check_target(target: Path, tasks: list[TaskCheckpoints], *, force: bool, like: Path | None) -> None:
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


def _checkpoints_of(ctx: click.Context, run: str | None) -> tuple[Path, list[TaskCheckpoints]]:
    """Return the run directory that is meant, and its checkpoints by the array's tasks."""
    from slurmgpu.files.settings import runs_by_settings
    from slurmgpu.jobs.runs import find_run, newest_run
    from slurmgpu.jobs.select import current_user
    from slurmgpu.runs.checkpoints import checkpoints_of_run

    runs_of = runs_by_settings(Path.cwd(), os.environ)
    slurm = own_slurm(ctx)
    run_dir = find_run(slurm, run, runs_of, current_user()) if run else newest_run(runs_of(Path.cwd()))
    return run_dir, checkpoints_of_run(run_dir)


def _print_json(run_dir: Path, rows: list[dict[str, object]]) -> None:
    document = {"schema": "slurmgpu.checkpoints/1", "run_dir": str(run_dir.absolute()), "checkpoints": rows}
    click.echo(json.dumps(document, indent=2))
