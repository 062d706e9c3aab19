"""``slurmgpu plan``: print the plan of a job with its reasons."""

from __future__ import annotations

import json
import sys

import click

from slurmgpu.cli.job_options import JobCommand, job_options


@click.command(cls=JobCommand)
@job_options
@click.option(
    "--when", is_flag=True, help="Ask Slurm when it would start, on at most 5 partitions that it fits."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(given: dict[str, object], when: bool, as_json: bool) -> None:
    """Print the plan of a job with its reasons; say what does not fit, and what would."""
    from slurmgpu.cli.actions.plan_text import plan_text, terminal_columns
    from slurmgpu.cli.preparing import prepare

    prepared = prepare(given, renders=False)
    plan = prepared.plan
    rows, balance = None, None
    if when:
        from slurmgpu.cli.actions.when import asked, balance_text, when_text

        rows, balance = asked(prepared)
    if as_json:
        data = {"schema": "slurmgpu.plan/1", **plan.model_dump(mode="json")}
        if rows is not None:
            data |= {"when": rows, "balance": balance}
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    click.echo(plan_text(plan, terminal_columns(sys.stdout)))
    if rows is not None:
        click.echo(when_text(rows))
        click.echo(balance_text(balance or {}))
