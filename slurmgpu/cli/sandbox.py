"""``slurmgpu sandbox``: a real Slurm on this machine, with pretend GPUs."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from slurmgpu.cli.completing import clusters
from slurmgpu.cli.gathering import gathered

_name = click.option(
    "--name",
    default="default",
    envvar="SLURMGPU_SANDBOX",
    show_default=True,
    help="Which sandbox; several can run side by side.",
)


class Nodes(NamedTuple):
    """The nodes of a sandbox; None: as they usually are."""

    nodes: int | None
    gpus_per_node: str | None
    cpus: int | None
    memory: str | None


@click.group()
def command() -> None:
    """Start, use and end a real Slurm on this machine, with pretend GPUs; needs no root.

    A sandbox is a cluster of its own, named sandbox-NAME. No shell talks to it that did not ask to: by
    `sandbox exec` or `sandbox env`.
    """


@command.command("up")
@_name
@gathered(
    "asked",
    Nodes,
    click.option("--nodes", type=click.IntRange(1, 64), help="How many nodes.  [default: 4]"),
    click.option("--gpus-per-node", metavar="[TYPE:]N", help="Pretend GPUs of a node.  [default: a100:4]"),
    click.option(
        "--cpus", type=click.IntRange(1, 4096), help="CPUs that a node has for Slurm.  [default: 64]"
    ),
    click.option("--memory", metavar="SIZE", help="Memory that a node has for Slurm.  [default: 512G]"),
)
@click.option(
    "--like",
    metavar="CLUSTER",
    help="A twin of a described cluster: judges jobs, runs none.",
    shell_complete=clusters,
)
@click.option("--accounting/--no-accounting", default=None, help="With slurmdbd.  [default: if installed]")
@click.option("--for", "lasting", metavar="TIME", help="End by itself after this time (2h, 30m, 1d).")
def sandbox_up(**given: Any) -> None:
    """Start a sandbox: Slurm's daemons as you, on loopback, until `down` or the machine's end."""
    from slurmgpu.cli.actions.sandbox import act_up

    act_up(**given)


@command.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def sandbox_status(**given: Any) -> None:
    """Show all sandboxes: whether they are alive, their nodes, since when, and where."""
    from slurmgpu.cli.actions.sandbox import act_status

    act_status(**given)


@command.command("down")
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="All sandboxes of yours.")
@click.option("--name", "name_option", envvar="SLURMGPU_SANDBOX", hidden=True)
def sandbox_down(**given: Any) -> None:
    """End a sandbox (default: `default`) and its jobs; looks afterwards whether anything is left."""
    from slurmgpu.cli.actions.sandbox import act_down

    act_down(**given)


@command.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@_name
@click.argument("words", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def sandbox_exec(**given: Any) -> None:
    """Run a command that talks to the sandbox; ends with the command's own exit code."""
    from slurmgpu.cli.actions.sandbox import act_exec

    act_exec(**given)


@command.command("env")
@_name
@click.option("--unset", is_flag=True, help="Print the lines that take it back, as it was before.")
def sandbox_env(**given: Any) -> None:
    """Print shell lines that make this shell talk to the sandbox: eval "$(slurmgpu sandbox env)"."""
    from slurmgpu.cli.actions.sandbox import act_env

    act_env(**given)


@command.command("logs")
@click.argument("daemon", required=False)
@_name
@click.option("-n", "--lines", type=click.IntRange(1), default=20, show_default=True, help="How many lines.")
def sandbox_logs(**given: Any) -> None:
    """Show the end of the daemons' logs; DAEMON is slurmctld, slurmdbd, slurmd-node1, munged, mariadbd, ..."""
    from slurmgpu.cli.actions.sandbox import act_logs

    act_logs(**given)


@command.command("fault")
@click.argument("fault")
@click.argument("target", metavar="[NODE|JOB]", required=False)
@_name
def sandbox_fault(**given: Any) -> None:
    """Cause a fault, to see what it does to you.

    \b
    controller-down   slurmctld is ended: nothing answers
    controller-hang   slurmctld is stopped: it takes connections and never answers
    database-down     slurmdbd is ended: sacct and sacctmgr fail, jobs go on
    node-down NODE    slurmd and jobs of a node are killed, Slurm marks it DOWN
    preempt JOB       a job of more priority takes the nodes of JOB
    drop-replies      the controller does what it is asked, but its replies are lost

    `slurmgpu sandbox heal` mends all of them.
    """
    from slurmgpu.cli.actions.sandbox import act_fault

    act_fault(**given)


@command.command("heal")
@_name
def sandbox_heal(**given: Any) -> None:
    """Mend all faults of a sandbox."""
    from slurmgpu.cli.actions.sandbox import act_heal

    act_heal(**given)
