"""The options that describe a job, shared by render, plan, submit and run: sbatch's names where it has one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

from slurmgpu.cli.completing import BY_FIELD, clusters
from slurmgpu.cli.usage import ARGUMENTS
from slurmgpu.errors import InvalidInput

__all__ = ["JobCommand", "change_options", "job_options"]

F = TypeVar("F", bound=Callable[..., Any])
_COMMAND = "slurmgpu.command"
_PYTHON = re.compile(r"(\A|/)python[\d.]*\Z|\.py\Z")


class _Field(NamedTuple):
    flags: tuple[str, ...]
    key: str
    help: str
    type: Any = str
    metavar: str | None = None


FIELDS: tuple[_Field, ...] = (
    _Field(("-J", "--job-name"), "name", "The job's name.", metavar="NAME"),
    _Field(
        ("-A", "--account"),
        "resources.account",
        "The account (allocation, project) to charge.",
        metavar="NAME",
    ),
    _Field(
        ("-p", "--partition"), "resources.partition", "The partition; chosen when not given.", metavar="NAME"
    ),
    _Field(("-q", "--qos"), "resources.qos", "The quality of service.", metavar="NAME"),
    _Field(
        ("-t", "--time"), "resources.time", "The time limit: 90 (minutes), 12:00:00, 2-12:30.", metavar="TIME"
    ),
    _Field(("-N", "--nodes"), "resources.nodes", "Nodes.", click.INT),
    _Field(("-G", "--gpus"), "resources.gpus", "GPUs in all: 2 or a100:2.", metavar="[TYPE:]N"),
    _Field(
        ("--gpus-per-node",), "resources.gpus_per_node", "GPUs on each node: 4 or a100:4.", metavar="[TYPE:]N"
    ),
    _Field(("--gpu-type",), "resources.gpu_type", "The type of GPU.", metavar="TYPE"),
    _Field(("--gpu-memory",), "resources.gpu_memory", "The least memory of one GPU: 40G.", metavar="SIZE"),
    _Field(
        ("--ntasks-per-node",), "resources.tasks_per_node", "Tasks on each node (launcher srun).", click.INT
    ),
    _Field(("-c", "--cpus-per-task"), "resources.cpus_per_task", "CPUs of each task.", click.INT),
    _Field(("--cpus-per-gpu",), "resources.cpus_per_gpu", "CPUs for each GPU.", click.INT),
    _Field(("--mem",), "resources.memory", "Memory on each node: 64G; 0 is all.", metavar="SIZE"),
    _Field(("--mem-per-cpu",), "resources.memory_per_cpu", "Memory for each CPU.", metavar="SIZE"),
    _Field(("--mem-per-gpu",), "resources.memory_per_gpu", "Memory for each GPU.", metavar="SIZE"),
    _Field(
        ("-C", "--constraint"), "resources.constraint", "Features that the nodes must have.", metavar="LIST"
    ),
    _Field(("--reservation",), "resources.reservation", "A reservation to run in.", metavar="NAME"),
    _Field(
        ("-a", "--array"), "array", "A job array: 0-9, 1,3,5 or 0-30:10, %4 for 4 at once.", metavar="INDICES"
    ),
    _Field(
        ("-d", "--dependency"), "dependency", "What must have happened before: afterok:123.", metavar="LIST"
    ),
    _Field(("-o", "--output"), "output", "The log file, a pattern of Slurm's.", metavar="PATTERN"),
    _Field(("-e", "--error"), "error", "The log of standard error, when apart.", metavar="PATTERN"),
    _Field(("-D", "--chdir"), "work_dir", "The work folder.", metavar="FOLDER"),
    _Field(("--mail-user",), "mail.user", "To whom Slurm writes.", metavar="ADDRESS"),
    _Field(("--comment",), "comment", "A comment that Slurm keeps.", metavar="TEXT"),
    _Field(("--environment",), "environment", "A named environment.", metavar="NAME"),
    _Field(
        ("--launch",),
        "launch.launcher",
        "Who starts the processes.",
        click.Choice(["auto", "torchrun", "srun", "plain"]),
    ),
)


class JobCommand(click.Command):
    """A command that takes ``[JOB.yaml|SCRIPT] [options] [-- COMMAND...]``: what stands after ``--`` is the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep what stands after ``--`` apart: click would mix it with the arguments before."""
        if "--" in args:
            split = args.index("--")
            ctx.meta[_COMMAND] = tuple(args[split + 1 :])
            args = args[:split]
            if not ctx.meta[_COMMAND] and not ctx.resilient_parsing:  # the shell completes the command
                raise InvalidInput(
                    "command: nothing stands after --",
                    hint="write the command there, as in -- python train.py, or leave -- out with a job file",
                )
        ctx.meta[ARGUMENTS] = tuple(args)
        has_script = any(_PYTHON.search(word) for word in args)  # asked now: parsing consumes them
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if has_script and _COMMAND not in ctx.meta:
                raise InvalidInput(
                    f"{ctx.info_name}: {error.format_message()}",
                    hint="a command goes after two dashes: -- python train.py ...",
                ) from None
            raise

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show the command's place in the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def _parameter(field: _Field) -> str:
    return "job__" + field.key.replace(".", "__")


def job_options(function: F) -> F:
    """Add the job file argument and every option that describes a job; they arrive as one dict ``given``."""
    # A path, so that shells complete the names of files.
    file = click.argument(
        "job__file", metavar="[JOB.yaml|SCRIPT]", required=False, type=click.Path(readable=False)
    )
    return file(change_options(function))


def change_options(function: F) -> F:
    """Add every option that describes a job, for a command whose job file is known; they arrive as ``given``."""

    def gathered(**values: Any) -> Any:
        given: dict[str, Any] = {"command": click.get_current_context().meta.get(_COMMAND)}
        for name in [name for name in values if name.startswith("job__")]:
            given[name] = values.pop(name)
        return function(given=given, **values)

    gathered.__name__, gathered.__doc__ = function.__name__, function.__doc__
    decorated: Any = gathered
    decorated.__click_params__ = list(getattr(function, "__click_params__", []))
    for decorate in reversed(
        (
            click.option(
                "--cluster",
                "job__cluster",
                metavar="NAME",
                help="The cluster profile: its name, or a file.",
                shell_complete=clusters,
            ),
            click.option(
                "--gres",
                "job__gres",
                metavar="LIST",
                help="Generic resources per node: gpu:a100:1,lscratch:100.",
            ),
            click.option(
                "--mail-type",
                "job__mail_type",
                metavar="LIST",
                help="On which events Slurm writes: END,FAIL.",
            ),
            click.option("--exclusive", "job__exclusive", is_flag=True, default=None, help="Whole nodes."),
            click.option(
                "--requeue/--no-requeue",
                "job__requeue",
                default=None,
                help="Whether Slurm may start it again.",
            ),
            click.option(
                "--set",
                "job__set",
                multiple=True,
                metavar="KEY=VALUE",
                help="Any part of the job file: train.epochs=3.",
            ),
            click.option(
                "--sbatch",
                "job__sbatch",
                multiple=True,
                metavar="NAME[=VALUE]",
                help="Any other sbatch option.",
            ),
            click.option(
                "--force",
                "job__force",
                is_flag=True,
                help="Go on against a refusal: a request that does not fit, a command that is not there.",
            ),
            click.option(
                "--template",
                "job__template",
                metavar="PATH",
                type=click.Path(readable=False),
                help="Your own template: a file, or a folder.",
            ),
        )
    ):
        decorated = decorate(decorated)
    for field in reversed(FIELDS):
        option = click.option(
            *field.flags,
            _parameter(field),
            type=field.type,
            metavar=field.metavar,
            help=field.help,
            shell_complete=BY_FIELD.get(field.key),
        )
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]
