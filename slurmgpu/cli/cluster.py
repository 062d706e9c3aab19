"""``slurmgpu cluster``: list, show and choose cluster profiles."""

from __future__ import annotations

import json
from typing import Any

import click


@click.group()
def command() -> None:
    """List, show and choose cluster profiles."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(as_json: bool) -> None:
    """List the known profiles; a star marks the chosen one."""
    import os
    from pathlib import Path

    from slurmgpu.files.clusters import choose_cluster, load_cluster, profiles
    from slurmgpu.files.settings import load_settings

    settings = load_settings(Path.cwd())
    chosen, chooser = choose_cluster(None, settings, os.environ)
    rows = [(name, load_cluster(path), path) for name, path in sorted(profiles(settings).items())]
    if as_json:
        listed = [
            {
                "name": name,
                "description": cluster.description,
                "path": str(path),
                "chosen": name == chosen.name,
            }
            for name, cluster, path in rows
        ]
        click.echo(
            json.dumps({"schema": "slurmgpu.clusters/1", "clusters": listed}, indent=2, ensure_ascii=False)
        )
        return
    width = max((len(name) for name, _, _ in rows), default=0)
    for name, cluster, path in rows:
        star = "*" if name == chosen.name else " "
        source = f"source read {cluster.source.date}" if cluster.source else "no source given"
        click.echo(f"{star} {name:<{width}}  {cluster.description or ''} ({source}; {path})")
    if chooser is None:
        click.echo("no profile is chosen: `slurmgpu cluster use NAME` chooses one for you", err=True)


@command.command("show", short_help="Show a profile.")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(name: str | None, as_json: bool) -> None:
    """Show a profile's partitions, environments and dialect (the chosen one, when none is named)."""
    import os
    from pathlib import Path

    from slurmgpu.files.clusters import choose_cluster
    from slurmgpu.files.settings import load_settings

    cluster, chooser = choose_cluster(name, load_settings(Path.cwd()), os.environ, asker="NAME")
    if as_json:
        data = {"schema": "slurmgpu.cluster/1", **cluster.model_dump(mode="json")}
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    by = "" if name else f" (chosen by {chooser or 'nobody'})"
    click.echo(f"{cluster.name}: {cluster.description or 'no description'}{by}")
    if cluster.source:
        click.echo(f"  source: {cluster.source.text}, read {cluster.source.date}")
    for partition_name, partition in cluster.partitions.items():
        limits = partition.limits.model_dump(mode="json", exclude_none=True)
        text = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in limits.items())
        click.echo(f"  partition {partition_name}: {text or 'no limits stated'}")
        for group in partition.nodes:
            count = "? nodes" if group.count is None else f"{group.count} nodes"
            gpus = "? GPUs" if group.gpus is None else f"{group.gpus} GPUs"
            rest = [gpus + (f" {group.gpu_type}" if group.gpu_type else "")]
            rest += [f"{group.cpus} CPUs"] if group.cpus else []
            rest += [group.memory.readable] if group.memory else []
            click.echo(f"    {count} with {', '.join(rest)}")
    for environment_name, environment in cluster.environments.items():
        click.echo(f"  environment {environment_name}: {environment.description or ''}")
    dialect = cluster.dialect.model_dump(mode="json", exclude_defaults=True)
    text = ", ".join(f"{key} {_in_words(value)}" for key, value in dialect.items())
    click.echo(f"  dialect: {text or 'the usual one'}")


def _in_words(value: Any) -> str:
    """A setting as the profile writes it."""
    if isinstance(value, list):
        return f"[{', '.join(map(_in_words, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_in_words(inner)}' for key, inner in value.items())}}}"
    return str(value).lower() if isinstance(value, bool) else str(value)


@command.command("use", short_help="Choose a profile for all your jobs.")
@click.argument("name")
def use(name: str) -> None:
    """Choose a profile for all your jobs: writes `cluster: NAME` into your settings."""
    import os
    from pathlib import Path

    from slurmgpu.files.clusters import choose_cluster
    from slurmgpu.files.settings import load_settings, write_user_setting

    settings = load_settings(Path.cwd())
    cluster, _ = choose_cluster(name, settings, os.environ, asker="NAME")
    chosen = str(Path(name).expanduser().resolve()) if "/" in name else cluster.name
    path = write_user_setting(settings, "cluster", chosen)
    click.echo(f"jobs are planned on {chosen} from now on ({path})", err=True)
