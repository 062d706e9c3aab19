"""``slurmgpu config``: the settings in force, and where each value comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from slurmgpu.cli.terminal import echo_json


@click.group()
def command() -> None:
    """Show the settings and where each value comes from."""


@command.command("show")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(as_json: bool) -> None:
    """Show every value in force with the file and line it comes from, and the layers that were looked for."""
    from slurmgpu.files.settings import layer_files, load_settings

    settings = load_settings(Path.cwd())
    rows = [
        {"key": ".".join(map(str, key)), "value": value, "origin": str(settings.layered.origin(key))}
        for key, value in _leaves(settings.layered.data, ())
    ]
    rows += [
        {"key": name, "value": os.environ[name], "origin": "the environment"}
        for name in ("SLURMGPU_CLUSTER", "SLURMGPU_SITE")
        if os.environ.get(name)
    ]
    layers = [
        {"layer": layer, "path": str(path), "read": path.is_file()} for layer, path in layer_files(settings)
    ]
    others = [{"path": str(one.path), "why": one.why, "used": True} for one in settings.of_others]
    others += [{"path": str(one.path), "why": one.why, "used": False} for one in settings.unused]
    if as_json:
        data = {"schema": "slurmgpu.config/1", "values": rows, "layers": layers, "of_others": others}
        echo_json(data)
        return
    width = max((len(f"{row['key']}: {row['value']}") for row in rows), default=0)
    for row in rows:
        text = f"{row['key']}: {row['value']}"
        click.echo(f"{text:<{width}}  {row['origin']}")
    click.echo("layers, the later one wins:", err=True)
    for layer in layers:
        click.echo(
            f"  {layer['layer']:<8} {layer['path']}{'' if layer['read'] else ' (not there)'}", err=True
        )
    for other in others:
        used = "is used" if other["used"] else "is not used (slurmgpu config trust FOLDER)"
        click.echo(f"  {other['path']} {other['why']}, and {used}", err=True)


@command.command("trust")
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
def trust(folder: str) -> None:
    """Use the settings, profiles, templates and job files in FOLDER although somebody else wrote them, or may.

    What they say runs as you. Your settings keep the list (trusted); take a folder out of it there.
    """
    from slurmgpu.files.settings import load_settings, trusted_by_user, write_user_settings

    settings = load_settings(Path.cwd())
    path = str(Path(folder).resolve())
    known = trusted_by_user(settings)
    if path not in known:
        write_user_settings(settings, {("trusted",): [*known, path]})
    click.echo(f"{path} is trusted", err=True)


def _leaves(value: object, key: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], object]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, (*key, name))
    else:
        yield key, value
