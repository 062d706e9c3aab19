"""The group of all commands: finds each in its file when it is called, and prints errors in one way."""

from __future__ import annotations

import codecs
import importlib
import io
import keyword
import os
import sys
from itertools import pairwise
from pathlib import Path

import click

from slurmgpu.errors import InvalidInput, SlurmGpuError
from slurmgpu.version import __version__

SECTIONS = {
    "Start": {
        "init": "Learn the cluster; write profile, settings and a first job.",
        "doctor": "Find out whether this cluster is ready to run your jobs.",
        "jobs": "List job files to copy from; copy one.",
    },
    "Jobs": {
        "plan": "Print the plan of a job with its reasons.",
        "render": "Print the batch script of a job.",
        "submit": "Submit a job; print its id.",
        "shell": "Open a shell on a GPU node, in the job's environment.",
        "run": "Run the rendered script on this machine, without Slurm.",
        "cancel": "Cancel jobs.",
        "resume": "Submit a run's job again; it goes on from its checkpoints.",
    },
    "Watch": {
        "status": "Show queued, running and finished jobs.",
        "top": "Watch jobs, logs and free GPUs on the whole terminal.",
        "web": "Make scripts and watch runs in a browser.",
        "why": "Say why a job waits, or why it failed.",
        "logs": "Show the log of a job.",
        "report": "Show what jobs used of what they asked for; what to ask for next.",
        "probe": "Run a job for some minutes; find out what it should ask for.",
        "runs": "Find out what became of submissions that had no answer.",
    },
    "Scripts": {
        "check": "Find what is wrong with a batch script.",
        "import": "Make a job file of a batch script.",
        "template": "List, show and copy what scripts are made of.",
    },
    "Training": {
        "train": "Train a task on this machine; or only prepare it.",
        "profile": "Say what takes the time of a training's steps, and what to change.",
        "checkpoint": "List, verify, export and replay the checkpoints of a run.",
    },
    "Clusters": {
        "bench": "Measure a machine, and what a training gains.",
        "cluster": "Discover the cluster; list, show and choose profiles.",
        "sandbox": "A real Slurm on this machine, with pretend GPUs.",
    },
    "Other": {
        "mcp": "Let an assistant read of jobs and clusters, by MCP.",
        "config": "Show the settings and where each value comes from.",
        "schema": "Print the JSON Schema of job, cluster or settings files.",
    },
}
"""The commands as ``--help`` shows them, one line each."""

COMMANDS = {name: about for section in SECTIONS.values() for name, about in section.items()}

_FIRST_STEPS = (
    ("slurmgpu init", "learn this cluster, write a first job"),
    ("slurmgpu submit first.yaml --follow", "submit it, and watch its log"),
    ("slurmgpu status", "what became of your jobs"),
)


class _Commands(click.Group):
    """Commands are imported when they are called, so that --help stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        command = importlib.import_module(f"slurmgpu.cli.{module}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from slurmgpu.cli.usage import meant_command

            raise InvalidInput(f"No such command {args[0]!r}", hint=meant_command(args[0], COMMANDS))
        name, command, rest = super().resolve_command(ctx, args)
        options = command.params if command is not None and not isinstance(command, click.Group) else []
        flags = {flag: one for one in options if isinstance(one, click.Option) for flag in one.opts}
        before = rest[: rest.index("--")] if "--" in rest else rest
        for flag, value in pairwise(before):
            if flag in flags and value in flags and not (flags[flag].is_flag or flags[flag].count):
                raise InvalidInput(
                    f"{flag} takes a value, and {value} stands in its place",
                    hint=f"write {flag} VALUE {value} ...",
                )
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(width), about) for name, about in commands.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        if not args and not ctx.resilient_parsing:
            click.echo(_first_steps(ctx), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)


def _first_steps(ctx: click.Context) -> str:
    """Return the help of ``slurmgpu`` alone."""
    formatter = ctx.make_formatter()
    cli.format_usage(ctx, formatter)
    cli.format_help_text(ctx, formatter)
    with formatter.section("To start with"):
        formatter.write_dl(_FIRST_STEPS, col_max=40)
    formatter.write_paragraph()
    formatter.write_text("slurmgpu --help lists all commands.")
    return formatter.getvalue().rstrip("\n")


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="slurmgpu")
def cli() -> None:
    """From a job file to a finished, resumable multi-GPU training on any Slurm cluster."""


def run(argv: list[str] | None = None) -> None:
    """Run the command line and exit with its code; every error a user can cause is one message."""
    _ready_streams()
    if os.environ.get("HOME") == "":
        del os.environ["HOME"]  # empty: the user database knows the home folder
    try:
        code: object = cli.main(args=argv, prog_name="slurmgpu", standalone_mode=False)
        sys.stdout.flush()
    except SlurmGpuError as error:
        _print_error(error.message, error.hint)
        code = error.exit_code
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = 2
    except click.UsageError as error:
        from slurmgpu.cli.usage import usage_hint

        hint = getattr(error, "hint", None) or usage_hint(error)
        _print_error(_usage_message(error, hint), hint)
        code = 2
    except click.ClickException as error:
        _print_error(error.format_message(), None)
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt) as error:
        code = getattr(error.__cause__ or error, "exit_code", 130)  # click keeps what it caught
    except BrokenPipeError:
        # The reader left (`| head`): nothing more to say, and nothing to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        # A full disk under `> file`, mostly. What is still to be written would fail once more at exit.
        if error.filename is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        what = error.filename or "the output cannot be written"
        _print_error(f"{what}: {error.strerror or error}", None)
        code = 1
    except UnicodeEncodeError as error:  # the name of a file, where the locale has no UTF-8
        _print_error(
            f"{error.object!a} cannot be written in {error.encoding}, the encoding of this locale",
            "set LC_ALL=C.UTF-8, or another locale with UTF-8 (locale -a lists them)",
        )
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _ready_streams() -> None:
    """Something for what was closed (`>&-`), lest a file get its number; letters that an encoding lacks are spelled out."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and codecs.lookup(sys.stdout.encoding).name != "utf-8":
        sys.stdout.reconfigure(errors="backslashreplace")


def _usage_message(error: click.UsageError, hint: str) -> str:
    """click's sentence, with the command that it is about."""
    name = error.ctx.info_name if error.ctx is not None and error.ctx.parent is not None else None
    # click guesses by the letters alone; the hint knows what others call commands and options.
    knows = error.message.startswith("No such command") or "--help" not in hint
    said = error.message if knows and not isinstance(error, click.BadParameter) else error.format_message()
    return f"{name}: {said}" if name else said


def _print_error(message: str, hint: str | None) -> None:
    from slurmgpu.printable import printable_lines

    # It holds names and texts of others, too.
    below = "\n" + " " * 17
    head = click.style("slurmgpu: error: ", fg="red", bold=True)
    click.echo(head + printable_lines(message).replace("\n", below), err=True)
    if hint:
        head = click.style("           hint: ", fg="yellow")
        click.echo(head + printable_lines(hint).replace("\n", below), err=True)
