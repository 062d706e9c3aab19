"""The options that describe a job, shared by render, plan, submit and run: sbatch's names where it has one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from slurmgpu.cli.completing import BY_FIELD, clusters
from slurmgpu.cli.options import Decorator, gathered
from slurmgpu.cli.usage import ARGUMENTS, COMMAND
from slurmgpu.errors import InvalidInput
from slurmgpu.models.options import ROWS, Row

_PYTHON = r"(\A|/)python[\d.]*\Z|\.py\Z"


class JobCommand(click.Command):
    """A command that takes ``[JOB.yaml|SCRIPT] [options] [-- COMMAND...]``: what comes after ``--`` is the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep what comes after ``--`` apart: click would mix it with the arguments before."""
        if "--" in args:
            split = args.index("--")
            ctx.meta[COMMAND] = tuple(args[split + 1 :])
            args = args[:split]
            if not ctx.meta[COMMAND] and not ctx.resilient_parsing:  # the shell completes the command
                raise InvalidInput(
                    "command: there is nothing after --",
                    hint="write the command there, as in -- python train.py, or leave -- out with a job file",
                )
        ctx.meta[ARGUMENTS] = tuple(args)
        # Looked for now, because parsing consumes the words.
        has_script = any("py" in word and re.search(_PYTHON, word) for word in args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if has_script and COMMAND not in ctx.meta:
                raise InvalidInput(
                    f"{ctx.info_name}: {error.format_message()}",
                    hint="a command goes after two dashes: -- python train.py ...",
                ) from None
            raise

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show the command's place in the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def _given(**values: object) -> dict[str, object]:
    named = {name.removeprefix("job__").replace("__", "."): value for name, value in values.items()}
    return {**named, "command": click.get_current_context().meta.get(COMMAND)}


def _option(row: Row) -> Decorator:
    flag: dict[str, Any] = {"is_flag": True, "default": None} if row.kind == "flag" else {}
    return click.option(
        *row.flags,
        "job__" + row.key.replace(".", "__"),
        type=click.INT if row.kind == "count" else None,
        metavar=row.metavar,
        help=row.help,
        shell_complete=BY_FIELD.get(row.key),
        **flag,
    )


# A path, so that shells complete the names of files.
_FILE = click.argument(
    "job__file", metavar="[JOB.yaml|SCRIPT]", required=False, type=click.Path(readable=False)
)
_OPTIONS: tuple[Decorator, ...] = (
    *(_option(row) for row in ROWS if row.flags),
    click.option(
        "--cluster", "job__cluster", metavar="NAME", help="The cluster profile: its name, or a file.",
        shell_complete=clusters,
    ),
    click.option("--requeue/--no-requeue", "job__requeue", default=None, help="Whether Slurm may start it again."),
    click.option(
        "--set", "job__set", multiple=True, metavar="KEY=VALUE", help="Any part of the job file: train.epochs=3."
    ),
    click.option(
        "--sbatch", "job__sbatch", multiple=True, metavar="NAME[=VALUE]", help="Any other sbatch option."
    ),
    click.option(
        "--force", "job__force", is_flag=True,
        help="Go on against a refusal: a request that does not fit, a command that is not there.",
    ),
    click.option(
        "--template", "job__template", metavar="PATH", type=click.Path(readable=False),
        help="Your own template: a file, or a folder.",
    ),
)  # fmt: skip

device_option = click.option(
    "--gpu/--cpu",
    "on_gpus",
    default=None,
    help="Use the GPUs that are here, or none (default: those of the Slurm job that this is in, and none elsewhere).",
)
run_dir_option = click.option(
    "--run-dir",
    metavar="RUN",
    type=click.Path(path_type=Path, file_okay=False),
    help="Go on in this run directory, of the same job (default: a new one).",
)
job_options = gathered("given", _given, _FILE, *_OPTIONS)
"""Add the job file argument and every option that describes a job; they arrive as one dict ``given``,
by the fields of a job file (``resources.gpus``); ``file``, ``cluster``, ``set``, ``force`` ... are what is none."""
change_options = gathered("given", _given, *_OPTIONS)
"""Add every option that describes a job, for a command whose job file is known; they arrive as ``given``."""
