"""``slurmgpu checkpoint``: list a run's checkpoints, verify them, export one, train an interval again and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slurmgpu.cli.completing import runs


@click.group()
def command() -> None:
    """List a run's checkpoints, verify them, export one, train an interval again and compare."""


@command.command("list", short_help="Show a run's checkpoints.")
@click.argument("run", metavar="[RUN]", required=False, shell_complete=runs)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def checkpoint_list(ctx: click.Context, /, **given: Any) -> None:
    """Show a run's checkpoints, and which one a resume would take; reads manifests and sizes alone.

    RUN is a run directory, a job id (112_3 for one task of an array) or a job name; without it, the newest run here
    that has checkpoints. An array has one folder per task.
    """
    from slurmgpu.cli.actions.checkpoint import act_list

    act_list(ctx, **given)


@command.command("verify", short_help="Read checkpoints through; say which are intact.")
@click.argument("run", metavar="[RUN]", required=False, shell_complete=runs)
@click.option("--step", type=click.IntRange(0), help="Only the checkpoint of this step.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def checkpoint_verify(ctx: click.Context, /, **given: Any) -> None:
    """Read every file of a run's checkpoints and hold its size and SHA-256 against the manifest.

    RUN as for `checkpoint list`. Says which one a resume would take. Exit code 1 when one of those asked for is
    damaged. A training may go on meanwhile.
    """
    from slurmgpu.cli.actions.checkpoint import act_verify

    act_verify(ctx, **given)


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
    /,
    step: int | None,
    best: bool,
    target: Path,
    force: bool,
    like: Path | None,
    **given: Any,
) -> None:
    """Write the weights of a checkpoint as one plain state_dict.

    RUN as for `checkpoint list`. Read it with `torch.load(FILE, weights_only=True)`, without slurmgpu; the names are those
    of the model without DDP or torch.compile. Checksums are held first. Only this command needs torch.
    """
    from slurmgpu.cli.actions.checkpoint import Into, Which, act_export

    act_export(ctx, which=Which(step, best), into=Into(target, force, like), **given)


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
def checkpoint_replay(ctx: click.Context, /, **given: Any) -> None:
    """Train an interval of a run again, and compare losses, checksums and the checkpoint at its end, bit for bit.

    RUN as for `checkpoint list`. It runs on this machine, with as many processes as the run had, in a temporary folder; with
    --on as a job, with the run's own settings, in a run directory beside the run's. The run is only read. Exit code 0: all is
    equal; 1: something differs; 2: there is no such interval, or a node that it can't have; 3: it cannot be told.
    """
    from slurmgpu.cli.replay import act_replay

    act_replay(ctx, **given)
