"""``slurmgpu init``: the first minute on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slurmgpu.cli.completing import clusters


@click.command()
@click.option("-y", "--yes", is_flag=True, help="Ask nothing: take every default.")
@click.option("--name", metavar="NAME", help="The profile's name.  [default: the cluster's in Slurm]")
@click.option(
    "--based-on",
    metavar="PROFILE",
    help="A documented profile to keep the rules of, or none.",
    shell_complete=clusters,
)
@click.option("-A", "--account", metavar="NAME", help="The account that your jobs charge.")
@click.option(
    "-p", "--partition", metavar="NAME", help="The partition of your jobs.  [default: each job's best]"
)
@click.option(
    "-q",
    "--qos",
    metavar="NAME",
    help="The QOS of your jobs.  [default: each job's best, where one is required]",
)
@click.option(
    "--environment",
    metavar="WHAT",
    help="How jobs get PyTorch: a module, the folder of a virtual or conda environment, an image (*.sif), or none.",
)
@click.option("--runs", metavar="FOLDER", help="Where run directories go, or none: beside each job file.")
@click.option("--job", metavar="FILE", default="first.yaml", show_default=True, help="The first job's file.")
@click.option("--no-try", is_flag=True, help="Do not try whether torch can be imported.")
@click.option("--force", is_flag=True, help="Replace profile, settings and job file that are there.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Make yourself at home on a cluster, in a minute.

    Learns the cluster from Slurm, asks which account and which PyTorch your jobs use and where they may write, and
    writes a profile, your settings and a first job. Nothing that is there is overwritten, and nothing at all is
    written before the last question.
    """
    from slurmgpu.cli.init_files import InitAnswers, draft_all, tell_next
    from slurmgpu.cli.init_questions import Questions, say
    from slurmgpu.files.settings import load_settings

    options = InitAnswers(**given)
    questions = Questions(yes=options.yes, asker="slurmgpu init")
    settings = load_settings(Path.cwd())
    try:
        drafts = draft_all(ctx, options, settings, questions)
    except (click.Abort, KeyboardInterrupt):
        say("\nnothing was written")
        raise
    say()
    drafts.write(settings)
    tell_next(drafts)
