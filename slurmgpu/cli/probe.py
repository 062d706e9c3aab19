"""``slurmgpu probe``: a job for some minutes, to find out what it should ask for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from slurmgpu.cli.job_options import JobCommand, job_options
from slurmgpu.cli.terminal import echo_json, note
from slurmgpu.errors import InvalidInput
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.cli.probing import ProbeResult
    from slurmgpu.runs.prepared import Prepared


@click.command(cls=JobCommand)
@job_options
@click.option(
    "--minutes",
    metavar="N",
    type=int,
    default=2,
    show_default=True,
    help="How long it runs, 1 to 60; the time in the queue does not count.",
)
@click.option(
    "--wait-at-most", type=int, metavar="MINUTES", help="Cancel it when it has waited so long in the queue."
)
@click.option(
    "--micro-batch",
    is_flag=True,
    help="Of a training of slurmgpu's own: also find the micro-batch that fits and is fastest, by several such jobs.",
)
@click.option(
    "--apply", "apply", is_flag=True, help="Write the proposed request into the job file, and show it."
)
@click.option("--dry-run", is_flag=True, help="Show what would be submitted; submit nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(
    given: dict[str, Any],
    minutes: int,
    wait_at_most: int | None,
    micro_batch: bool,
    dry_run: bool,
    apply: bool,
    as_json: bool,
) -> None:
    """Run a job for some minutes with what it asks for, and propose the right request.

    It is a job of its own, NAME-probe, with its own run directory, which is stopped by its time limit. Meanwhile memory,
    CPUs and GPUs are sampled. From that, the memory, CPUs and GPUs to ask for are proposed as `slurmgpu report` does, and,
    for a training of slurmgpu's own, the time that the whole takes. What a part of a job cannot tell is said.

    Ctrl-C cancels it. Exit code 1 when the job fails or does not start in time, with its first cause, or why it waits;
    3 when its end is not known.
    """
    from slurmgpu.cli.job_file_changes import check_own, write_request
    from slurmgpu.cli.plan_text import show_submission
    from slurmgpu.cli.probing import find_micro_batch, plan_probe, run_probe, tell_beforehand
    from slurmgpu.jobs.causes import cause_lines
    from slurmgpu.jobs.report.text import job_lines
    from slurmgpu.slurm import Slurm

    if not 1 <= minutes <= LONGEST:
        raise InvalidInput(
            f"--minutes {minutes}: a probe runs for 1 to {LONGEST} minutes",
            hint="give --minutes 2, or submit the job and ask slurmgpu report JOB afterwards",
        )
    if wait_at_most is not None and wait_at_most < 1:
        raise InvalidInput(
            f"--wait-at-most {wait_at_most}: it is a number of minutes in the queue, from 1 on",
            hint="give --wait-at-most 30, or leave it out to wait as long as it takes",
        )
    for option, is_given in (("--json", as_json), ("--apply", apply)):
        if dry_run and is_given:
            raise InvalidInput(
                f"--dry-run and {option} are both given: nothing is found out by a dry run",
                hint="keep one of the two",
            )
    probe = plan_probe(given, minutes)
    file = probe.prepared.loaded.path if apply else None
    if apply and file is None:
        raise InvalidInput(
            "--apply: the job is made of options or a batch script, and there is no job file to write into",
            hint="name a job file: slurmgpu probe job.yaml --apply; or leave --apply out, and see what is proposed",
        )
    if file is not None:
        check_own(file)
        if not os.access(file, os.W_OK):
            raise InvalidInput(
                f"--apply: {file} cannot be written", hint="copy it, and probe the copy; or leave --apply out"
            )
    parts = _parts(probe.prepared) if micro_batch else 0
    tell_beforehand(probe, minutes)
    if dry_run:
        show_submission(probe.prepared, Slurm(), asker="probe --dry-run")
        return
    found = (
        find_micro_batch(given, minutes, wait_at_most, probe, parts)
        if micro_batch
        else run_probe(probe, wait_at_most)
    )
    planned = found.probe.prepared
    if as_json:
        echo_json(_document(found), ensure_ascii=True)
    else:
        click.echo("\n".join(job_lines(found.report, planned.cluster.carbon, bars=False)))
        for line in cause_lines(found.cause) if found.cause is not None else ():
            click.echo(line)
    proposals, path = found.report.advice.proposals, planned.loaded.path
    if not found.well:
        if file is not None:
            note(f"{file} is not changed: the probe did not end well")
        click.get_current_context().exit(1)
    elif file is None:
        if proposals and path is not None:
            note(f"{path} is as it was; with --apply, probe writes what it proposes into it")
    elif not proposals:
        note(f"{file}: nothing is proposed, and nothing is changed")
    else:
        write_request(found.report, file, found.probe.asked, planned.plan, beside=as_json)


LONGEST = 60
"""Minutes: a longer one is the run itself."""


def _parts(prepared: Prepared) -> int:
    """Samples that each process takes in an optimizer step; InvalidInput where slurmgpu does not divide them."""
    from slurmgpu.launchers import world_size

    train = prepared.loaded.job.train
    if train is None:
        raise InvalidInput(
            "--micro-batch: the job runs a command, and only slurmgpu's own trainings (train:) say how they divide a batch",
            hint="leave it out; the log of a job that was out of memory says what to change: slurmgpu why JOB",
        )
    if train.micro_batch is not None:
        raise InvalidInput(
            f"--micro-batch: it tries other values of accumulate, and the job says micro_batch: {train.micro_batch} in its place",
            hint="leave out one of them; with micro_batch: auto the training itself finds what fits",
        )
    world = world_size(prepared.plan)
    return train.samples_at_a_time(world) * train.accumulate


def _document(found: ProbeResult) -> dict[str, object]:
    from slurmgpu.jobs.report.text import job_document
    from slurmgpu.runs.derived_jobs import left_out

    part, run = found.report.part, found.run
    return {
        "schema": "slurmgpu.probe/1",
        "cluster": run.cluster,
        "run_dir": run.run_dir,
        "ended_well": found.well,
        "stopped": part is not None,
        "whole_seconds": None if part is None else part.seconds,
        "whole_how": None if part is None else part.how,
        "memory_grows": None if part is None else part.grows,
        "unseen": [] if part is None else list(part.unseen),
        "left_out": [printable(one) for one in left_out(found.probe.asked)],
        "cause": None if found.cause is None else found.cause._asdict(),
        "job": job_document(found.report, found.probe.prepared.cluster.carbon),
    }
