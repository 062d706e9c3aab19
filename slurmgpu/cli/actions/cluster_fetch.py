"""What ``slurmgpu cluster fetch`` does."""

from __future__ import annotations

import datetime
import difflib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from slurmgpu.clusters.fetching import Fetched, download, keep, kept
from slurmgpu.clusters.profiles import check_name
from slurmgpu.errors import InvalidInput
from slurmgpu.files.clusters import load_cluster, profile_folders, user_profile
from slurmgpu.files.settings import LoadedSettings, load_settings
from slurmgpu.models.cluster import GENERIC, Cluster
from slurmgpu.printable import printable


def act(what: str, name: str | None, dry_run: bool) -> None:
    settings = load_settings(Path.cwd())
    check_name(name)
    again = "://" not in what
    if again and name:
        raise InvalidInput(
            "--name: the profile has a name already", hint="leave out --name, or give an address"
        )
    path = _known(what, settings) if again else user_profile(settings, name) if name else None
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
    cluster = _read(fetched, address, path.stem if path else None, settings)
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
        _check_is_ours(path, old, before.is_of(old) if before and old is not None else False)
        keep(path, address, fetched, datetime.date.today())
    for line in _told(cluster, old, fetched.text, shown=dry_run):
        click.echo(line, err=True)
    done = "is not written" if dry_run else "is written"
    click.echo(f"{path} {done}; plan on it: slurmgpu cluster use {path.stem}", err=True)


def _known(name: str, settings: LoadedSettings) -> Path:
    check_name(name)
    return user_profile(settings, name)


def _check_is_ours(path: Path, old: str | None, unchanged: bool) -> None:
    if old is not None and not unchanged:
        raise InvalidInput(
            f"{path} is there, and is not as it was fetched: nothing that you wrote is overwritten",
            hint="give another --name, or keep your changes in a profile of their own that is based_on this one",
        )


def _read(fetched: Fetched, address: str, name: str | None, settings: LoadedSettings) -> Cluster:
    """The profile, as it would be loaded; InvalidInput names the address."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name or 'fetched'}.yaml"
        path.write_text(fetched.text, encoding="utf-8")
        try:
            return load_cluster(path, profile_folders(settings))
        except InvalidInput as error:
            raise InvalidInput(error.message.replace(str(path), address), hint=error.hint) from None


def _told(cluster: Cluster, old: str | None, new: str, *, shown: bool) -> Iterator[str]:
    """What was fetched: the changes of a profile that was there, else what of it runs in jobs."""
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
