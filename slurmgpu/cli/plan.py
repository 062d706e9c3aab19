"""``slurmgpu plan``: print the plan of a job with its reasons."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from slurmgpu.cli.job_options import JobCommand, job_options

if TYPE_CHECKING:
    from slurmgpu.models.plan import Plan


def plan_text(plan: Plan) -> str:
    """The plan as aligned lines: option, and why."""
    from slurmgpu.planning.request import count

    rows = [(str(option), option.why) for option in plan.options]
    for number, component in enumerate(plan.components, start=2):
        rows += [("hetjob", f"component {number}"), *((str(option), option.why) for option in component)]
    rows += [(f"{reason.what}: {reason.value}", reason.why) for reason in plan.reasons]
    width = max(len(left) for left, _ in rows)
    head = f"{plan.name} on {plan.cluster}: " + (
        "what stands in the job, and nothing else"
        if plan.exact
        else f"{count(plan.nodes, 'node')} x {count(plan.gpus_per_node, 'GPU')}, "
        f"{plan.world_size} process{'es' if plan.world_size > 1 else ''}"
    )
    return "\n".join([head, *(f"  {left:<{width}}  {why}" for left, why in rows)])


@click.command(cls=JobCommand)
@job_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(given: dict[str, Any], as_json: bool) -> None:
    """Print the plan of a job with its reasons; say what does not fit, and what would."""
    from slurmgpu.cli.preparing import prepare

    plan = prepare(given).plan
    if as_json:
        click.echo(
            json.dumps(
                {"schema": "slurmgpu.plan/1", **plan.model_dump(mode="json")}, indent=2, ensure_ascii=False
            )
        )
    else:
        click.echo(plan_text(plan))
