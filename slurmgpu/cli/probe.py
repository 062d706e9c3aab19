"""``slurmgpu probe``: a job for some minutes, to find out what it should ask for."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from slurmgpu.cli.gathering import gathered
from slurmgpu.cli.job_options import JobCommand, job_options


class How(NamedTuple):
    """How a job is probed, and what is done with what is found."""

    minutes: int
    wait_at_most: int | None
    micro_batch: bool
    dry_run: bool
    apply: bool
    as_json: bool


@click.command(cls=JobCommand)
@job_options
@gathered(
    "how",
    How,
    click.option(
        "--minutes",
        metavar="N",
        type=int,
        default=2,
        show_default=True,
        help="How long it runs, 1 to 60; the time in the queue does not count.",
    ),
    click.option(
        "--wait-at-most",
        type=int,
        metavar="MINUTES",
        help="Cancel it when it has waited so long in the queue.",
    ),
    click.option(
        "--micro-batch",
        is_flag=True,
        help="Of a training of slurmgpu's own: also find the micro-batch that fits and is fastest, by several such jobs.",
    ),
    click.option(
        "--apply", "apply", is_flag=True, help="Write the proposed request into the job file, and show it."
    ),
    click.option("--dry-run", is_flag=True, help="Show what would be submitted; submit nothing."),
    click.option("--json", "as_json", is_flag=True, help="One JSON document."),
)
def command(**options: Any) -> None:
    """Run a job for some minutes with what it asks for, and propose the right request.

    It is a job of its own, NAME-probe, with its own run directory, which is stopped by its time limit. Meanwhile memory,
    CPUs and GPUs are sampled. From that, the memory, CPUs and GPUs to ask for are proposed as `slurmgpu report` does, and,
    for a training of slurmgpu's own, the time that the whole takes. What a part of a job cannot tell is said.

    Ctrl-C cancels it. Exit code 1 when the job fails or does not start in time, with its first cause, or why it waits;
    3 when its end is not known.
    """
    from slurmgpu.cli.actions.probe import act

    act(**options)
