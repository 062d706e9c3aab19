"""``slurmgpu cluster``: discover, refresh, list, show and choose cluster profiles."""

from __future__ import annotations

import datetime
import difflib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmgpu.cli.completing import clusters
from slurmgpu.cli.shared_answers import ago, own_slurm, shared_slurm
from slurmgpu.errors import InvalidInput
from slurmgpu.jobs.gpus_now import gpus_now, gpus_table
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.clusters.fetching import Fetched
    from slurmgpu.clusters.refreshing import Change
    from slurmgpu.files.settings import LoadedSettings
    from slurmgpu.models.cluster import Cluster, Discovered


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
def cluster_discover(
    ctx: click.Context, name: str | None, to: str | None, save: bool, based_on: str | None, as_json: bool
) -> None:
    """Learn the cluster from Slurm itself and print its profile.

    Asks Slurm 5 to 8 times, and the module system once. What could not be read is listed under `hidden`, what was
    guessed under `guessed`.
    """
    from slurmgpu.clusters.discover import save as save_profile
    from slurmgpu.clusters.discover import write
    from slurmgpu.clusters.profiles import check_name, discover_here, likely_documented, named_profile
    from slurmgpu.files.clusters import profiles
    from slurmgpu.files.settings import load_settings
    from slurmgpu.slurm import expand

    if save and to:
        raise InvalidInput("--save and --to exclude each other", hint="leave one of them out")
    settings = load_settings(Path.cwd())
    base = named_profile(based_on, settings, "--based-on") if based_on else None
    check_name(name)
    target = _target(name, to, save, settings)
    found = discover_here(own_slurm(ctx), name, settings)
    target = target or _target(found.cluster.name, to, save, settings)
    text = _text(found, base)
    cluster = found.cluster
    groups = [group for partition in cluster.partitions.values() for group in partition.nodes]
    nodes = {name for group in groups for name in expand(group.names or "")}
    click.echo(
        f"cluster {cluster.slurm_name or cluster.name}: {len(cluster.partitions)} partitions, {len(nodes)} nodes, "
        f"{len(cluster.qos)} QOS, {len({one.account for one in cluster.associations})} accounts of yours; "
        f"asked Slurm {found.calls} times in {found.seconds:.1f} s",
        err=True,
    )
    for key, why in cluster.hidden.items():
        click.echo(f"hidden: {key}: {why}", err=True)
    for name, why in likely_documented(cluster, settings)[:1] if base is None else ():
        click.echo(
            f"this seems to be {name}: {why}; to keep its documented rules: "
            f"slurmgpu cluster discover --based-on {name}",
            err=True,
        )
    if target is not None and save:
        save_profile(target, text, text)
        click.echo(f"{target} is written; plan on it: slurmgpu cluster use {cluster.name}", err=True)
        counts = profiles(settings).get(cluster.name, target)
        if counts != target:
            click.echo(f"{counts} has the same name and goes before it; --name gives another", err=True)
    elif target is not None:
        write(target, text)
        click.echo(f"{target} is written", err=True)
    if as_json:
        data = {
            "schema": "slurmgpu.clusters/1",
            "calls": found.calls,
            "seconds": round(found.seconds, 3),
            "cluster": cluster.model_dump(mode="json"),
        }
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
    elif target is None:
        click.echo(text, nl=False)


@command.command("refresh", short_help="Discover again; show what changed.")
@click.argument("name", required=False, shell_complete=clusters)
@click.option("--dry-run", is_flag=True, help="Show what changed; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def cluster_refresh(ctx: click.Context, name: str | None, dry_run: bool, as_json: bool) -> None:
    """Discover the cluster of a saved profile again, show what changed, and write it.

    What you have written or corrected in the profile is kept. NAME: a profile that `cluster discover --save` wrote
    (the chosen one, when none is named).
    """
    from slurmgpu.clusters.discover import last_discovered, save
    from slurmgpu.clusters.profiles import discover_here
    from slurmgpu.clusters.refreshing import refreshed
    from slurmgpu.files.clusters import base_of, load_cluster, profile_folders
    from slurmgpu.files.settings import load_settings

    settings = load_settings(Path.cwd())
    path = _saved(name, settings)
    last = last_discovered(path)
    if last is None:
        raise InvalidInput(
            f"{path} was not written by `slurmgpu cluster discover --save`, so nothing of it can be refreshed",
            hint="slurmgpu cluster discover --save --name ANOTHER",
        )
    folders = profile_folders(settings)
    old = load_cluster(path, folders)
    base = base_of(path, folders)
    found = discover_here(own_slurm(ctx), old.name, settings)
    if old.slurm_name and found.cluster.slurm_name != old.slurm_name:
        raise InvalidInput(
            f"{path} is of the cluster {old.slurm_name}, and Slurm here is {found.cluster.slurm_name}",
            hint="run this where that cluster's commands are, or name another profile",
        )
    text = _text(found, base)
    result = refreshed(last, path.read_text(encoding="utf-8"), text)
    if not dry_run:
        save(path, result.text, text)

    def entries(changes: Iterable[Change]) -> list[dict[str, object]]:
        return [{"key": ".".join(one.place), "before": one.before, "after": one.after} for one in changes]

    if as_json:
        click.echo(
            json.dumps(
                {
                    "schema": "slurmgpu.refresh/1",
                    "path": str(path),
                    "calls": found.calls,
                    "changes": entries(result.changes),
                    "kept": entries(result.kept),
                },
                indent=2,
                ensure_ascii=False,
            )
        )
        return
    for change in result.changes:
        click.echo(str(change))
    for one in result.kept:
        click.echo(f"kept as you wrote it: {one}", err=True)
    done = "not written" if dry_run else "is up to date"
    click.echo(
        f"{len(result.changes) or 'no'} changes; asked Slurm {found.calls} times in {found.seconds:.1f} s; {path} {done}",
        err=True,
    )


@command.command("verify", short_help="Hold a profile against Slurm itself.")
@click.argument("name", required=False, shell_complete=clusters)
@click.option(
    "--patch", is_flag=True, help="Print a diff of the profile's file, to send to whoever keeps it."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def cluster_verify(ctx: click.Context, name: str | None, patch: bool, as_json: bool) -> None:
    """Hold a profile against Slurm itself: a line for each thing of which the two say something else, with both values
    and the command that tells Slurm's.

    NAME: any profile, shipped ones too (the chosen one, or the one that seems to describe this cluster). Asks Slurm 5 to
    8 times and changes nothing. Ends with exit code 1 where they disagree.
    """
    from slurmgpu.clusters.profiles import discover_here
    from slurmgpu.clusters.verifying import disagreements, patch_of, unseen
    from slurmgpu.files.clusters import load_cluster, profile_folders
    from slurmgpu.files.data import data_folder
    from slurmgpu.files.settings import load_settings

    if patch and as_json:
        raise InvalidInput("--patch and --json exclude each other", hint="--json has the patch, too")
    settings = load_settings(Path.cwd())
    path = _chosen_profile(name, settings)
    folders = profile_folders(settings)
    cluster = load_cluster(path, [path.parent, *folders]) if path else None
    found = discover_here(own_slurm(ctx), None, settings)
    if path is None or cluster is None:
        path = _likely(found, settings)
        cluster = load_cluster(path, folders)
    disagreed = disagreements(cluster, found)
    text = path.read_text(encoding="utf-8")
    # A diff has a shipped profile by its place in the project.
    shipped = path.parent == data_folder("clusters")
    file = f"examples/clusters/{path.name}" if shipped else path.name
    if as_json:
        made = patch_of(text, file, disagreed)
        document = {
            "schema": "slurmgpu.verify/1",
            "profile": cluster.name,
            "path": str(path),
            "slurm_name": found.cluster.slurm_name,
            "release": found.cluster.slurm.release,
            "calls": found.calls,
            "disagreements": [one.data() for one in disagreed],
            "not_compared": dict(found.cluster.hidden),
            "patch": made.diff,
            "by_hand": [".".join(map(str, one.place)) for one in made.by_hand],
        }
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    elif patch:
        made = patch_of(text, file, disagreed)
        for by_hand in made.by_hand:
            click.echo(f"# by hand: {by_hand}")
        click.echo(made.diff, nl=False)
    else:
        for one in disagreed:
            click.echo(str(one))
    if not as_json:
        for why in unseen(found):
            click.echo(f"not compared: {why}", err=True)
        said = (
            f"{len(disagreed)} disagreement{'s' * (len(disagreed) != 1)}" if disagreed else "no disagreement"
        )
        hint = (
            f"; a diff of the profile: slurmgpu cluster verify {cluster.name} --patch"
            if disagreed and not patch
            else ""
        )
        click.echo(
            f"{cluster.name} and Slurm on {found.cluster.slurm_name or 'this cluster'}: {said}; "
            f"asked Slurm {found.calls} times in {found.seconds:.1f} s{hint}",
            err=True,
        )
    if disagreed:
        raise click.exceptions.Exit(1)


@command.command("fetch", short_help="Fetch a profile that a centre publishes.")
@click.argument("what", metavar="ADDRESS|NAME")
@click.option("--name", metavar="NAME", help="The profile's name.  [default: its own]")
@click.option("--dry-run", is_flag=True, help="Print it; write nothing.")
def cluster_fetch(what: str, name: str | None, dry_run: bool) -> None:
    """Fetch a profile from an address of its centre (https://HOST/PATH/NAME.yaml) into your profiles, or look whether
    there is a newer one of a profile that was fetched, and show what changed.

    This is the only command that fetches a profile: plans and submissions use the file that is there.
    """
    from slurmgpu.clusters.fetching import download, keep, kept
    from slurmgpu.clusters.profiles import check_name
    from slurmgpu.files.clusters import user_profile
    from slurmgpu.files.settings import load_settings
    from slurmgpu.models.cluster import GENERIC

    settings = load_settings(Path.cwd())
    check_name(name)
    again = "://" not in what
    if again and name:
        raise InvalidInput(
            "--name: the profile has a name already", hint="leave out --name, or give an address"
        )
    if again:
        check_name(what)
    wanted = what if again else name
    path = user_profile(settings, wanted) if wanted else None
    before = kept(path) if path else None
    if again and before is None:
        raise InvalidInput(
            f"{what!r} is neither an address nor a profile that was fetched",
            hint="slurmgpu cluster fetch https://HOST/PATH/NAME.yaml",
        )
    address = before.address if again and before else what
    old = path.read_text(encoding="utf-8") if path and path.is_file() else None
    fetched = download(address, before.tag if before and old is not None and before.is_of(old) else None)
    if fetched is None:
        click.echo(f"{path}: {address} has nothing newer", err=True)
        return
    cluster = _load_fetched(fetched, address, path.stem if path else None, settings)
    if path is None:
        check_name(cluster.name)
        if cluster.name == GENERIC.name:
            raise InvalidInput(
                f"{address}: name: {GENERIC.name!r} is the profile of no cluster, which comes with slurmgpu",
                hint="give it another one: --name NAME",
            )
        path = user_profile(settings, cluster.name)
        before = kept(path)
        old = path.read_text(encoding="utf-8") if path.is_file() else None
    if dry_run:
        click.echo(fetched.text, nl=False)
    else:
        if old is not None and not (before and before.is_of(old)):
            raise InvalidInput(
                f"{path} is there, and is not as it was fetched: nothing that you wrote is overwritten",
                hint="give another --name, or keep your changes in a profile of their own that is based_on this one",
            )
        keep(path, address, fetched, datetime.date.today())
    for line in _fetched_in_words(cluster, old, fetched.text, shown=dry_run):
        click.echo(line, err=True)
    done = "is not written" if dry_run else "is written"
    click.echo(f"{path} {done}; plan on it: slurmgpu cluster use {path.stem}", err=True)


@command.command("list", short_help="List the known profiles.")
@click.argument("words", metavar="[WORD]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cluster_list(words: tuple[str, ...], as_json: bool) -> None:
    """List the known profiles: name, site, GPUs, and its source's own date; a star marks the chosen one.

    WORD: only those in which each word is found, such as a100 or csc.
    """
    from slurmgpu.clusters.text import ProfileRow, matches, profile_table
    from slurmgpu.files.clusters import (
        choose_cluster,
        load_cluster,
        package_folders,
        profile_folders,
        profiles,
    )
    from slurmgpu.files.settings import load_settings

    settings = load_settings(Path.cwd())
    folders = profile_folders(settings)
    chosen, chooser = choose_cluster(None, settings, os.environ)
    whose = {folder: f"of package {name}" for name, folder in package_folders().items()}
    whose |= {folder / "clusters": _WHOSE[layer] for layer, folder in settings.folders.items()}
    everything = [
        ProfileRow(name, load_cluster(path, folders), path, whose.get(path.parent), name == chosen.name)
        for name, path in sorted(profiles(settings).items())
    ]
    rows = [row for row in everything if matches(row, words)]
    if words and not rows:
        raise InvalidInput(
            f"WORD {' '.join(words)!r}: none of the {len(everything)} profiles has it in its name, site or GPUs",
            hint="slurmgpu cluster list shows all",
        )
    if as_json:
        document = {"schema": "slurmgpu.clusters/1", "clusters": [row.data() for row in rows]}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    for line in profile_table(rows):
        click.echo(line)
    if chooser is None:
        click.echo("no profile is chosen: `slurmgpu cluster use NAME` chooses one for you", err=True)


@command.command("show", short_help="Show a profile.")
@click.argument("name", required=False, shell_complete=clusters)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cluster_show(name: str | None, as_json: bool) -> None:
    """Show all that a profile says (the chosen one, when none is named); a question mark: it was guessed."""
    from slurmgpu.clusters.text import description_lines
    from slurmgpu.files.clusters import choose_cluster
    from slurmgpu.files.settings import load_settings

    cluster, chooser = choose_cluster(name, load_settings(Path.cwd()), os.environ, asker="NAME")
    if as_json:
        data = {"schema": "slurmgpu.cluster/1", **cluster.model_dump(mode="json")}
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    by = "" if name else f" (chosen by {chooser or 'nobody'})"
    click.echo(f"{cluster.name}: {cluster.description or 'no description'}{by}")
    for line in description_lines(cluster, datetime.date.today()):
        click.echo(line)


@command.command("use", short_help="Choose a profile for all your jobs.")
@click.argument("name", shell_complete=clusters)
def cluster_use(name: str) -> None:
    """Choose a profile for all your jobs: writes `cluster: NAME` into your settings."""
    from slurmgpu.files.clusters import choose_cluster
    from slurmgpu.files.settings import load_settings, write_user_setting

    settings = load_settings(Path.cwd())
    cluster, _ = choose_cluster(name, settings, os.environ, asker="NAME")
    chosen = str(Path(name).expanduser().resolve()) if "/" in name else cluster.name
    path = write_user_setting(settings, "cluster", chosen)
    click.echo(f"jobs are planned on {chosen} from now on ({path})", err=True)
    if cluster.farewell:
        click.echo(f"slurmgpu: warning: {cluster.farewell}", err=True)


@command.command("gpus", short_help="Show which GPUs are free at this moment.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def cluster_gpus(ctx: click.Context, as_json: bool) -> None:
    """Show the cluster's GPUs at this moment, by type and by partition: how many there are, are used and are free, the
    most that are free on one node, those on nodes that take no jobs, and what one job of yours could get this minute.

    Asks Slurm 6 times.
    """
    from slurmgpu.jobs.select import current_user

    slurm = shared_slurm(ctx)
    found = gpus_now(slurm.present(), current_user())
    age = slurm.oldest()
    asked = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=age)
    if as_json:
        document = {
            "schema": "slurmgpu.gpus/1",
            "time": asked.isoformat(timespec="seconds"),
            "age_seconds": round(age, 1),
            **asdict(found),
        }
        click.echo(json.dumps(document, indent=2))
        return
    for what, why in found.unknown.items():
        click.echo(f"note: {what}: unknown; {printable(why)}", err=True)
    click.echo(
        f"cluster {printable(found.cluster or 'unknown')}, {asked.astimezone():%Y-%m-%d %H:%M:%S}{ago(age)}"
    )
    for line in gpus_table(found):
        click.echo(line)


def _target(name: str | None, to: str | None, save: bool, settings: LoadedSettings) -> Path | None:
    """Return the new file of the profile; None: there is none, or it is not known before Slurm is asked."""
    from slurmgpu.clusters.discover import last_discovered
    from slurmgpu.files.clusters import user_profile

    path = Path(to).expanduser() if to else user_profile(settings, name) if save and name else None
    if path is not None and path.exists():
        again = save and last_discovered(path) is not None
        hint = (
            f"slurmgpu cluster refresh {name}" if again else "give another --name, or another file with --to"
        )
        raise InvalidInput(f"{path} exists already, and nothing is overwritten", hint=hint)
    return path


def _text(found: Discovered, base: Cluster | None) -> str:
    from slurmgpu.clusters.refreshing import overlay
    from slurmgpu.clusters.writing import profile_text

    return profile_text(found, overlay(found, base) if base else None)


def _saved(name: str | None, settings: LoadedSettings) -> Path:
    """Return the file of a profile of the user's."""
    from slurmgpu.files.clusters import user_profile

    name = name or os.environ.get("SLURMGPU_CLUSTER") or settings.settings.cluster
    if name is None:
        raise InvalidInput("no profile is chosen, and none is named", hint="slurmgpu cluster refresh NAME")
    path = Path(name).expanduser() if "/" in name else user_profile(settings, name)
    if not path.is_file():
        raise InvalidInput(
            f"{path}: there is no such profile of yours",
            hint=f"slurmgpu cluster discover --save --name {path.stem}",
        )
    return path


_WHOSE = {"site": "the site's", "lab": "the lab's", "user": "yours", "project": "the project's"}


def _chosen_profile(name: str | None, settings: LoadedSettings) -> Path | None:
    """Return the profile's file; None: none is named or chosen."""
    from slurmgpu.files.clusters import profiles

    name = name or os.environ.get("SLURMGPU_CLUSTER") or settings.settings.cluster
    if name is None or name == "generic":
        return None
    if "/" in name or name.endswith((".yaml", ".yml")):
        return Path(name).expanduser()
    known = profiles(settings)
    if name not in known:
        raise InvalidInput(
            f"NAME {name!r}: no such profile",
            hint="slurmgpu cluster list shows them; a file is named by its path",
        )
    return known[name]


def _likely(found: Discovered, settings: LoadedSettings) -> Path:
    from slurmgpu.clusters.profiles import likely_documented
    from slurmgpu.files.clusters import profiles

    for name, why in likely_documented(found.cluster, settings)[:1]:
        click.echo(f"no profile is named; this seems to be {name}: {why}", err=True)
        return profiles(settings)[name]
    raise InvalidInput(
        "no profile is named or chosen, and none seems to describe this cluster",
        hint="slurmgpu cluster verify NAME; slurmgpu cluster list shows the names",
    )


def _load_fetched(fetched: Fetched, address: str, name: str | None, settings: LoadedSettings) -> Cluster:
    """Return the profile, as it would be loaded; InvalidInput names the address."""
    from slurmgpu.files.clusters import load_cluster, profile_folders

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name or 'fetched'}.yaml"
        path.write_text(fetched.text, encoding="utf-8")
        try:
            return load_cluster(path, profile_folders(settings))
        except InvalidInput as error:
            raise InvalidInput(error.message.replace(str(path), address), hint=error.hint) from None


def _fetched_in_words(cluster: Cluster, old: str | None, new: str, *, shown: bool) -> Iterator[str]:
    """Yield the changes of a profile that was there, else a summary and what of it runs in jobs."""
    if old is not None:
        changes = list(
            difflib.unified_diff(old.splitlines(), new.splitlines(), "before", "now", lineterm="", n=1)
        )
        yield from (printable(line) for line in changes) if changes and not shown else ()
        yield f"{cluster.name}: {'changed' if changes else 'nothing has changed'}"
        return
    yield printable(f"{cluster.name}: {cluster.description or 'no description'}")
    yield f"  {len(cluster.partitions)} partitions, {len(cluster.qos)} QOS, {len(cluster.environments)} environments"
    if cluster.environments or cluster.dialect.options or cluster.dialect.srun_options:
        yield "  its environments and options become lines of your jobs' scripts: read them before you submit"
