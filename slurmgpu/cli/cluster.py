"""``slurmgpu cluster``: discover, refresh, list, show and choose cluster profiles."""

from __future__ import annotations

from typing import Any

import click

from slurmgpu.cli.completing import clusters


@click.group()
def command() -> None:
    """Discover the cluster; list, show and choose cluster profiles."""


@command.command("discover", short_help="Learn the cluster from Slurm; print its profile.")
@click.option("--name", metavar="NAME", help="The profile's name.  [default: the cluster's in Slurm]")
@click.option("--to", metavar="FILE", help="Write the profile to a new file.")
@click.option("--save", is_flag=True, help="Write it to your profiles, where --cluster NAME finds it.")
@click.option(
    "--based-on",
    metavar="PROFILE",
    help="Lay it over a documented profile of this cluster.",
    shell_complete=clusters,
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def cluster_discover(ctx: click.Context, /, **given: Any) -> None:
    """Learn the cluster from Slurm itself and print its profile.

    Asks Slurm 5 to 8 times, and the module system once. What could not be read is listed under `hidden`, what was
    guessed under `guessed`.
    """
    from slurmgpu.cli.actions.cluster import act_discover

    act_discover(ctx, **given)


@command.command("refresh", short_help="Discover again; show what changed.")
@click.argument("name", required=False, shell_complete=clusters)
@click.option("--dry-run", is_flag=True, help="Show what changed; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def cluster_refresh(ctx: click.Context, /, **given: Any) -> None:
    """Discover the cluster of a saved profile again, show what changed, and write it.

    What you have written or corrected in the profile is kept. NAME: a profile that `cluster discover --save` wrote
    (the chosen one, when none is named).
    """
    from slurmgpu.cli.actions.cluster import act_refresh

    act_refresh(ctx, **given)


@command.command("verify", short_help="Hold a profile against Slurm itself.")
@click.argument("name", required=False, shell_complete=clusters)
@click.option(
    "--patch", is_flag=True, help="Print a diff of the profile's file, to send to whoever keeps it."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def cluster_verify(ctx: click.Context, /, **given: Any) -> None:
    """Hold a profile against Slurm itself: a line for each thing of which the two say something else, with both values
    and the command that tells Slurm's.

    NAME: any profile, shipped ones too (the chosen one, or the one that seems to describe this cluster). Asks Slurm 5 to
    8 times and changes nothing. Ends with exit code 1 where they disagree.
    """
    from slurmgpu.cli.actions.cluster_verify import act

    act(ctx, **given)


@command.command("fetch", short_help="Fetch a profile that a centre publishes.")
@click.argument("what", metavar="ADDRESS|NAME")
@click.option("--name", metavar="NAME", help="The profile's name.  [default: its own]")
@click.option("--dry-run", is_flag=True, help="Print it; write nothing.")
def cluster_fetch(**given: Any) -> None:
    """Fetch a profile from an address of its centre (https://HOST/PATH/NAME.yaml) into your profiles, or look whether
    there is a newer one of a profile that was fetched, and show what changed.

    This is the only command that fetches a profile: plans and submissions use the file that is there.
    """
    from slurmgpu.cli.actions.cluster_fetch import act

    act(**given)


@command.command("list", short_help="List the known profiles.")
@click.argument("words", metavar="[WORD]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cluster_list(**given: Any) -> None:
    """List the known profiles: name, site, GPUs, and its source's own date; a star marks the chosen one.

    WORD: only those in which each word is found, such as a100 or csc.
    """
    from slurmgpu.cli.actions.cluster import act_list

    act_list(**given)


@command.command("show", short_help="Show a profile.")
@click.argument("name", required=False, shell_complete=clusters)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cluster_show(**given: Any) -> None:
    """Show all that a profile says (the chosen one, when none is named); a question mark: it was guessed."""
    from slurmgpu.cli.actions.cluster import act_show

    act_show(**given)


@command.command("use", short_help="Choose a profile for all your jobs.")
@click.argument("name", shell_complete=clusters)
def cluster_use(**given: Any) -> None:
    """Choose a profile for all your jobs: writes `cluster: NAME` into your settings."""
    from slurmgpu.cli.actions.cluster import act_use

    act_use(**given)


@command.command("gpus", short_help="Show which GPUs are free at this moment.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def cluster_gpus(ctx: click.Context, /, **given: Any) -> None:
    """Show the cluster's GPUs at this moment, by type and by partition: how many there are, are used and are free, the
    most that are free on one node, those on nodes that take no jobs, and what one job of yours could get this minute.

    Asks Slurm 6 times.
    """
    from slurmgpu.cli.actions.cluster_gpus import act

    act(ctx, **given)
