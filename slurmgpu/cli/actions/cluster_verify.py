"""What ``slurmgpu cluster verify`` does."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from slurmgpu.cli.shared_answers import own_slurm
from slurmgpu.clusters.profiles import discover_here, likely_documented
from slurmgpu.clusters.verifying import Disagreement, Patch, disagreements, patch_of, unseen
from slurmgpu.errors import InvalidInput
from slurmgpu.files.clusters import load_cluster, profile_folders, profiles
from slurmgpu.files.data import data_folder
from slurmgpu.files.settings import LoadedSettings, load_settings
from slurmgpu.models.cluster import Discovered


def act(ctx: click.Context, name: str | None, patch: bool, as_json: bool) -> None:
    if patch and as_json:
        raise InvalidInput("--patch and --json exclude each other", hint="--json has the patch, too")
    settings = load_settings(Path.cwd())
    path = _chosen(name, settings)
    folders = profile_folders(settings)
    cluster = load_cluster(path, [path.parent, *folders]) if path else None
    found = discover_here(own_slurm(ctx), None, settings)
    if path is None or cluster is None:
        path = _likely(found, settings)
        cluster = load_cluster(path, folders)
    disagreed = disagreements(cluster, found)
    text = path.read_text(encoding="utf-8")
    if as_json:
        made = patch_of(text, _file(path), disagreed)
        click.echo(
            json.dumps(_document(cluster.name, path, found, disagreed, made), indent=2, ensure_ascii=False)
        )
    elif patch:
        _print_patch(patch_of(text, _file(path), disagreed))
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


def _chosen(name: str | None, settings: LoadedSettings) -> Path | None:
    """The profile's file; None: none is named or chosen."""
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
    for name, why in likely_documented(found.cluster, settings)[:1]:
        click.echo(f"no profile is named; this seems to be {name}: {why}", err=True)
        return profiles(settings)[name]
    raise InvalidInput(
        "no profile is named or chosen, and none seems to describe this cluster",
        hint="slurmgpu cluster verify NAME; slurmgpu cluster list shows the names",
    )


def _file(path: Path) -> str:
    """The file as a diff calls it: a shipped profile by its place in the project."""
    return f"examples/clusters/{path.name}" if path.parent == data_folder("clusters") else path.name


def _print_patch(made: Patch) -> None:
    for one in made.by_hand:
        click.echo(f"# by hand: {one}")
    click.echo(made.diff, nl=False)


def _document(
    name: str, path: Path, found: Discovered, disagreed: list[Disagreement], made: Patch
) -> dict[str, object]:
    return {
        "schema": "slurmgpu.verify/1",
        "profile": name,
        "path": str(path),
        "slurm_name": found.cluster.slurm_name,
        "release": found.cluster.slurm.release,
        "calls": found.calls,
        "disagreements": [one.data() for one in disagreed],
        "not_compared": dict(found.cluster.hidden),
        "patch": made.diff,
        "by_hand": [".".join(map(str, one.place)) for one in made.by_hand],
    }
