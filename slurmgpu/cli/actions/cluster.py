"""What ``slurmgpu cluster`` does."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

import click

from slurmgpu.cli.shared_answers import own_slurm
from slurmgpu.clusters.discover import last_discovered, save, write
from slurmgpu.clusters.profiles import check_name, discover_here, likely_documented, named_profile
from slurmgpu.clusters.refreshing import overlay, refreshed
from slurmgpu.clusters.text import ProfileRow, description_lines, listed, matches
from slurmgpu.clusters.writing import profile_text
from slurmgpu.errors import InvalidInput
from slurmgpu.files.clusters import (
    base_of,
    choose_cluster,
    load_cluster,
    package_folders,
    profile_folders,
    profiles,
    user_profile,
)
from slurmgpu.files.settings import LoadedSettings, load_settings, write_user_setting
from slurmgpu.models.cluster import Cluster, Discovered
from slurmgpu.slurm import expand


def act_discover(
    ctx: click.Context, name: str | None, to: str | None, save: bool, based_on: str | None, as_json: bool
) -> None:
    if save and to:
        raise InvalidInput("--save and --to exclude each other", hint="leave one of them out")
    settings = load_settings(Path.cwd())
    base = named_profile(based_on, settings, "--based-on") if based_on else None
    check_name(name)
    target = _target(name, to, save, settings)
    found = discover_here(own_slurm(ctx), name, settings)
    target = target or _target(found.cluster.name, to, save, settings)
    text = _text(found, base)
    _tell(found, settings, base)
    if target is not None:
        _write(target, text, found.cluster.name, settings if save else None)
    if as_json:
        click.echo(_json(found))
    elif target is None:
        click.echo(text, nl=False)


def _target(name: str | None, to: str | None, save: bool, settings: LoadedSettings) -> Path | None:
    """Where the profile goes, which must not be there yet; None: nowhere, or not known before Slurm is asked."""
    path = Path(to).expanduser() if to else user_profile(settings, name) if save and name else None
    if path is not None and path.exists():
        again = save and last_discovered(path) is not None
        hint = (
            f"slurmgpu cluster refresh {name}" if again else "give another --name, or another file with --to"
        )
        raise InvalidInput(f"{path} exists already, and nothing is overwritten", hint=hint)
    return path


def _text(found: Discovered, base: Cluster | None) -> str:
    return profile_text(found, overlay(found, base) if base else None)


def _tell(found: Discovered, settings: LoadedSettings, base: Cluster | None) -> None:
    """What was done and what is to be known of it, on stderr."""
    cluster = found.cluster
    nodes = len(
        {name for part in cluster.partitions.values() for group in part.nodes for name in _hosts(group.names)}
    )
    click.echo(
        f"cluster {cluster.slurm_name or cluster.name}: {len(cluster.partitions)} partitions, {nodes} nodes, "
        f"{len(cluster.qos)} QOS, {len({one.account for one in cluster.associations})} accounts of yours; "
        f"asked Slurm {found.calls} times in {found.seconds:.1f} s",
        err=True,
    )
    for key, why in cluster.hidden.items():
        click.echo(f"hidden: {key}: {why}", err=True)
    if base is None:
        _propose(cluster, settings)


def _hosts(names: str | None) -> list[str]:
    return expand(names or "")


def _propose(cluster: Cluster, settings: LoadedSettings) -> None:
    for name, why in likely_documented(cluster, settings)[:1]:
        click.echo(
            f"this seems to be {name}: {why}; to keep its documented rules: "
            f"slurmgpu cluster discover --based-on {name}",
            err=True,
        )


def _write(path: Path, text: str, name: str, settings: LoadedSettings | None) -> None:
    """Write a new profile; with ``settings`` into the user's own."""
    if settings is not None:
        save(path, text, text)
        click.echo(f"{path} is written; plan on it: slurmgpu cluster use {name}", err=True)
        counts = profiles(settings).get(name, path)
        if counts != path:
            click.echo(f"{counts} has the same name and goes before it; --name gives another", err=True)
    else:
        write(path, text)
        click.echo(f"{path} is written", err=True)


def _json(found: Discovered) -> str:
    data = {
        "schema": "slurmgpu.clusters/1",
        "calls": found.calls,
        "seconds": round(found.seconds, 3),
        "cluster": found.cluster.model_dump(mode="json"),
    }
    return json.dumps(data, indent=2, ensure_ascii=False)


def act_refresh(ctx: click.Context, name: str | None, dry_run: bool, as_json: bool) -> None:
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
    if as_json:
        click.echo(
            json.dumps(
                {
                    "schema": "slurmgpu.refresh/1",
                    "path": str(path),
                    "calls": found.calls,
                    "changes": [_entry(one) for one in result.changes],
                    "kept": [_entry(one) for one in result.kept],
                },
                indent=2,
                ensure_ascii=False,
            )
        )
        return
    for change in result.changes:
        click.echo(str(change))
    for kept in result.kept:
        click.echo(f"kept as you wrote it: {kept}", err=True)
    done = "not written" if dry_run else "is up to date"
    click.echo(
        f"{len(result.changes) or 'no'} changes; asked Slurm {found.calls} times in {found.seconds:.1f} s; {path} {done}",
        err=True,
    )


def _entry(change: Any) -> dict[str, object]:
    return {"key": ".".join(change.place), "before": change.before, "after": change.after}


def _saved(name: str | None, settings: LoadedSettings) -> Path:
    """The file of a profile of the user's."""
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


def act_list(words: tuple[str, ...], as_json: bool) -> None:
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
    for line in listed(rows):
        click.echo(line)
    if chooser is None:
        click.echo("no profile is chosen: `slurmgpu cluster use NAME` chooses one for you", err=True)


def act_show(name: str | None, as_json: bool) -> None:
    cluster, chooser = choose_cluster(name, load_settings(Path.cwd()), os.environ, asker="NAME")
    if as_json:
        data = {"schema": "slurmgpu.cluster/1", **cluster.model_dump(mode="json")}
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    by = "" if name else f" (chosen by {chooser or 'nobody'})"
    click.echo(f"{cluster.name}: {cluster.description or 'no description'}{by}")
    for line in description_lines(cluster, datetime.date.today()):
        click.echo(line)


def act_use(name: str) -> None:
    settings = load_settings(Path.cwd())
    cluster, _ = choose_cluster(name, settings, os.environ, asker="NAME")
    chosen = str(Path(name).expanduser().resolve()) if "/" in name else cluster.name
    path = write_user_setting(settings, "cluster", chosen)
    click.echo(f"jobs are planned on {chosen} from now on ({path})", err=True)
    if cluster.farewell:
        click.echo(f"slurmgpu: warning: {cluster.farewell}", err=True)
