"""``slurmgpu cluster``: discover, refresh, list, show and choose cluster profiles."""

from __future__ import annotations

import datetime
import difflib
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmgpu.cli.completing import clusters
from slurmgpu.cli.options import ago, own_slurm, shared_slurm
from slurmgpu.cli.terminal import Say, echo_error, echo_json
from slurmgpu.errors import InvalidInput
from slurmgpu.jobs.gpus_now import GpusNow, gpus_now, gpus_table
from slurmgpu.printable import printable

if TYPE_CHECKING:
    from slurmgpu.clusters.refreshing import Change
    from slurmgpu.files.settings import LoadedSettings
    from slurmgpu.models.cluster import Cluster, Discovered

_WHOSE = {"site": "the site's", "lab": "the lab's", "user": "yours", "project": "the project's"}

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
name_argument = click.argument("name", required=False, shell_complete=clusters)


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
@json_option
@click.pass_context
def cluster_discover(
    ctx: click.Context, name: str | None, to: str | None, save: bool, based_on: str | None, as_json: bool
) -> None:
    """Learn the cluster from Slurm itself and print its profile.

    Asks Slurm 5 to 8 times, and the module system once. What could not be read is listed under `hidden`, what was
    guessed under `guessed`.
    """
    from slurmgpu.clusters import discover
    from slurmgpu.clusters.profiles import check_name, discover_here, likely_documented, named_profile
    from slurmgpu.files.clusters import profiles, user_profile
    from slurmgpu.slurm import expand

    if save and to:
        raise InvalidInput("--save and --to exclude each other", hint="leave one of them out")
    settings = _settings()
    base = named_profile(based_on, settings, "--based-on") if based_on else None
    check_name(name)

    def target_of(name: str | None) -> Path | None:
        """Return the new file of the profile; None: there is none, or it is not known before Slurm is asked."""
        path = Path(to).expanduser() if to else user_profile(settings, name) if save and name else None
        if path is not None and path.exists():
            again = save and discover.last_discovered(path) is not None
            hint = (
                f"slurmgpu cluster refresh {name}"
                if again
                else "give another --name, or another file with --to"
            )
            raise InvalidInput(f"{path} exists already, and nothing is overwritten", hint=hint)
        return path

    target = target_of(name)
    found = discover_here(own_slurm(ctx), name, settings)
    cluster = found.cluster
    target = target or target_of(cluster.name)
    text = _text(found, base)
    groups = [group for partition in cluster.partitions.values() for group in partition.nodes]
    nodes = {name for group in groups for name in expand(group.names or "")}
    accounts = {one.account for one in cluster.associations}
    echo_error(
        f"cluster {cluster.slurm_name or cluster.name}: {len(cluster.partitions)} partitions, {len(nodes)} nodes, "
        f"{len(cluster.qos)} QOS, {len(accounts)} accounts of yours; {_asked(found)}"
    )
    for key, why in cluster.hidden.items():
        echo_error(f"hidden: {key}: {why}")
    for name, why in likely_documented(cluster, settings)[:1] if base is None else ():
        keep = f"slurmgpu cluster discover --based-on {name}"
        echo_error(f"this seems to be {name}: {why}; to keep its documented rules: {keep}")
    if target is not None and save:
        discover.save(target, text, text)
        echo_error(f"{target} is written; plan on it: slurmgpu cluster use {cluster.name}")
        counts = profiles(settings).get(cluster.name, target)
        if counts != target:
            echo_error(f"{counts} has the same name and goes before it; --name gives another")
    elif target is not None:
        discover.write(target, text)
        echo_error(f"{target} is written")
    if as_json:
        calls = {"calls": found.calls, "seconds": round(found.seconds, 3)}
        echo_json({"schema": "slurmgpu.clusters/1", **calls, "cluster": cluster.model_dump(mode="json")})
    elif target is None:
        click.echo(text, nl=False)


@command.command("refresh", short_help="Discover again; show what changed.")
@name_argument
@click.option("--dry-run", is_flag=True, help="Show what changed; write nothing.")
@json_option
@click.pass_context
def cluster_refresh(ctx: click.Context, name: str | None, dry_run: bool, as_json: bool) -> None:
    """Discover the cluster of a saved profile again, show what changed, and write it.

    What you have written or corrected in the profile is kept. NAME: a profile that `cluster discover --save` wrote
    (the chosen one, when none is named).
    """
    from slurmgpu.clusters.discover import last_discovered, save
    from slurmgpu.clusters.profiles import discover_here
    from slurmgpu.clusters.refreshing import refreshed
    from slurmgpu.files.clusters import base_of, load_cluster, profile_folders, user_profile

    settings = _settings()
    name = _chosen_name(name, settings)
    if name is None:
        raise InvalidInput("no profile is chosen, and none is named", hint="slurmgpu cluster refresh NAME")
    path = Path(name).expanduser() if "/" in name else user_profile(settings, name)
    if not path.is_file():
        raise InvalidInput(
            f"{path}: there is no such profile of yours",
            hint=f"slurmgpu cluster discover --save --name {path.stem}",
        )
    last = last_discovered(path)
    if last is None:
        raise InvalidInput(
            f"{path} was not written by `slurmgpu cluster discover --save`, so nothing of it can be refreshed",
            hint="slurmgpu cluster discover --save --name ANOTHER",
        )
    folders = profile_folders(settings)
    old, base = load_cluster(path, folders), base_of(path, folders)
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
        document = {"schema": "slurmgpu.refresh/1", "path": str(path), "calls": found.calls}
        echo_json({**document, "changes": entries(result.changes), "kept": entries(result.kept)})
        return
    for change in result.changes:
        click.echo(str(change))
    for one in result.kept:
        echo_error(f"kept as you wrote it: {one}")
    done = "not written" if dry_run else "is up to date"
    echo_error(f"{len(result.changes) or 'no'} changes; {_asked(found)}; {path} {done}")


@command.command("verify", short_help="Hold a profile against Slurm itself.")
@name_argument
@click.option(
    "--patch", is_flag=True, help="Print a diff of the profile's file, to send to whoever keeps it."
)
@json_option
@click.pass_context
def cluster_verify(ctx: click.Context, name: str | None, patch: bool, as_json: bool) -> None:
    """Hold a profile against Slurm itself: a line for each thing of which the two say something else, with both values
    and the command that tells Slurm's.

    NAME: any profile, shipped ones too (the chosen one, or the one that seems to describe this cluster). Asks Slurm 5 to
    8 times and changes nothing. Ends with exit code 1 where they disagree.
    """
    from slurmgpu.clusters.profiles import discover_here, likely_documented
    from slurmgpu.clusters.verifying import disagreements, patch_of, unseen
    from slurmgpu.files.clusters import load_cluster, profile_folders, profiles
    from slurmgpu.files.data import data_folder

    if patch and as_json:
        raise InvalidInput("--patch and --json exclude each other", hint="--json has the patch, too")
    settings = _settings()
    name = _chosen_name(name, settings)
    path: Path | None = None
    if name is not None and ("/" in name or name.endswith((".yaml", ".yml"))):
        path = Path(name).expanduser()
    elif name not in (None, "generic"):
        path = profiles(settings).get(name or "")
        if path is None:
            raise InvalidInput(
                f"NAME {name!r}: no such profile",
                hint="slurmgpu cluster list shows them; a file is named by its path",
            )
    folders = profile_folders(settings)
    cluster = load_cluster(path, [path.parent, *folders]) if path else None
    found = discover_here(own_slurm(ctx), None, settings)
    if path is None or cluster is None:
        likely = likely_documented(found.cluster, settings)
        if not likely:
            raise InvalidInput(
                "no profile is named or chosen, and none seems to describe this cluster",
                hint="slurmgpu cluster verify NAME; slurmgpu cluster list shows the names",
            )
        echo_error(f"no profile is named; this seems to be {likely[0][0]}: {likely[0][1]}")
        path = profiles(settings)[likely[0][0]]
        cluster = load_cluster(path, folders)
    disagreed = disagreements(cluster, found)
    # A diff has a shipped profile by its place in the project.
    shipped = path.parent == data_folder("clusters")
    file = f"examples/clusters/{path.name}" if shipped else path.name
    made = patch_of(path.read_text(encoding="utf-8"), file, disagreed) if as_json or patch else None
    if as_json and made is not None:
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
        echo_json(document)
    elif made is not None:
        for by_hand in made.by_hand:
            click.echo(f"# by hand: {by_hand}")
        click.echo(made.diff, nl=False)
    else:
        for one in disagreed:
            click.echo(str(one))
    if not as_json:
        for why in unseen(found):
            echo_error(f"not compared: {why}")
        said = (
            f"{len(disagreed)} disagreement{'s' * (len(disagreed) != 1)}" if disagreed else "no disagreement"
        )
        again = f"slurmgpu cluster verify {cluster.name} --patch"
        hint = f"; a diff of the profile: {again}" if disagreed and not patch else ""
        where = found.cluster.slurm_name or "this cluster"
        echo_error(f"{cluster.name} and Slurm on {where}: {said}; {_asked(found)}{hint}")
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
    from slurmgpu.files.clusters import load_cluster, profile_folders, user_profile
    from slurmgpu.models.cluster import GENERIC

    settings = _settings()
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
        echo_error(f"{path}: {address} has nothing newer")
        return
    with tempfile.TemporaryDirectory() as folder:  # loaded as it will be, before it is kept
        draft = Path(folder) / f"{path.stem if path else 'fetched'}.yaml"
        draft.write_text(fetched.text, encoding="utf-8")
        try:
            cluster = load_cluster(draft, profile_folders(settings))
        except InvalidInput as error:
            raise InvalidInput(error.message.replace(str(draft), address), hint=error.hint) from None
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
        echo_error(line)
    done = "is not written" if dry_run else "is written"
    echo_error(f"{path} {done}; plan on it: slurmgpu cluster use {path.stem}")


def _fetched_in_words(cluster: Cluster, old: str | None, new: str, *, shown: bool) -> Iterator[str]:
    """Yield the changes of a profile that was there, else a summary and what of it runs in jobs."""
    if old is not None:
        both = old.splitlines(), new.splitlines()
        changes = list(difflib.unified_diff(*both, "before", "now", lineterm="", n=1))
        yield from (printable(line) for line in changes) if changes and not shown else ()
        yield f"{cluster.name}: {'changed' if changes else 'nothing has changed'}"
        return
    yield printable(f"{cluster.name}: {cluster.description or 'no description'}")
    yield f"  {len(cluster.partitions)} partitions, {len(cluster.qos)} QOS, {len(cluster.environments)} environments"
    if cluster.environments or cluster.dialect.options or cluster.dialect.srun_options:
        yield "  its environments and options become lines of your jobs' scripts: read them before you submit"


@command.command("list", short_help="List the known profiles.")
@click.argument("words", metavar="[WORD]...", nargs=-1)
@json_option
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

    settings = _settings()
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
        echo_json({"schema": "slurmgpu.clusters/1", "clusters": [row.data() for row in rows]})
        return
    for line in profile_table(rows):
        click.echo(line)
    if chooser is None:
        echo_error("no profile is chosen: `slurmgpu cluster use NAME` chooses one for you")


@command.command("show", short_help="Show a profile.")
@name_argument
@json_option
def cluster_show(name: str | None, as_json: bool) -> None:
    """Show all that a profile says (the chosen one, when none is named); a question mark: it was guessed."""
    from slurmgpu.clusters.text import description_lines
    from slurmgpu.files.clusters import choose_cluster

    cluster, chooser = choose_cluster(name, _settings(), os.environ, asker="NAME")
    if as_json:
        echo_json({"schema": "slurmgpu.cluster/1", **cluster.model_dump(mode="json")})
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
    from slurmgpu.files.settings import write_user_settings

    settings = _settings()
    cluster, _ = choose_cluster(name, settings, os.environ, asker="NAME")
    chosen = str(Path(name).expanduser().resolve()) if "/" in name else cluster.name
    path = write_user_settings(settings, {("cluster",): chosen})
    echo_error(f"jobs are planned on {chosen} from now on ({path})")
    if cluster.farewell:
        echo_error(f"slurmgpu: warning: {cluster.farewell}")


@command.command("gpus", short_help="Show which GPUs are free at this moment.")
@json_option
@click.pass_context
def cluster_gpus(ctx: click.Context, as_json: bool) -> None:
    """Show the cluster's GPUs at this moment, by type and by partition: how many there are, are used and are free, the
    most that are free on one node, those on nodes that take no jobs, and what one job of yours could get this minute.

    Asks Slurm 6 times.
    """
    from slurmgpu.slurm import current_user

    slurm = shared_slurm(ctx)
    found = gpus_now(slurm.present(), current_user())
    age = slurm.oldest()
    if as_json:
        time = _moment(age).isoformat(timespec="seconds")
        head = {"schema": "slurmgpu.gpus/1", "time": time, "age_seconds": round(age, 1)}
        echo_json({**head, **asdict(found)}, ensure_ascii=True)
        return
    for line in gpus_lines(found, age, echo_error):
        click.echo(line)


def gpus_lines(found: GpusNow, age: float, say: Say) -> Iterator[str]:
    """Yield the GPUs as answers of so many seconds ago have them, for people; ``say`` hears what is unknown."""
    for what, why in found.unknown.items():
        say(f"note: {what}: unknown; {printable(why)}")
    moment = f"{_moment(age).astimezone():%Y-%m-%d %H:%M:%S}"
    yield f"cluster {printable(found.cluster or 'unknown')}, {moment}{ago(age)}"
    yield from gpus_table(found)


def _moment(age: float) -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=age)


def _settings() -> LoadedSettings:
    from slurmgpu.files.settings import load_settings

    return load_settings(Path.cwd())


def _chosen_name(name: str | None, settings: LoadedSettings) -> str | None:
    """Return the profile that is named, else the one that the environment or the settings choose."""
    return name or os.environ.get("SLURMGPU_CLUSTER") or settings.settings.cluster


def _asked(found: Discovered) -> str:
    return f"asked Slurm {found.calls} times in {found.seconds:.1f} s"


def _text(found: Discovered, base: Cluster | None) -> str:
    from slurmgpu.clusters.refreshing import overlay
    from slurmgpu.clusters.writing import profile_text

    return profile_text(found, overlay(found, base) if base else None)
