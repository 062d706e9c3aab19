"""``slurmgpu jobs``: job files to copy from."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from slurmgpu.cli.completing import examples as named_examples
from slurmgpu.cli.terminal import echo_json, note


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List job files to copy from; copy one with the scripts it starts."""
    from slurmgpu.files.data import examples

    if ctx.invoked_subcommand is not None:
        return
    found = examples()
    if as_json:
        listed = [
            {"name": one.name, "about": one.about, "files": [path.name for path in one.files]}
            for one in found
        ]
        echo_json({"schema": "slurmgpu.jobs/1", "jobs": listed}, ensure_ascii=True)
        return
    width = max(len(one.name) for one in found)
    for one in found:
        click.echo(f"{click.style(f'{one.name:<{width}}', bold=True)}  {one.about}")
    click.echo("copy one: slurmgpu jobs copy NAME", err=True)


@command.command("copy", short_help="Copy a job file and the scripts it starts.")
@click.argument("name", shell_complete=named_examples)
@click.argument("folder", required=False, type=click.Path(path_type=Path, file_okay=False, readable=False))
def copy(name: str, folder: Path | None) -> None:
    """Copy a job file and the scripts it starts into FOLDER (default: here). Nothing is overwritten."""
    from slurmgpu.files.data import copy_example, example_named

    example = example_named(name)
    new = copy_example(example, folder or Path())
    note(
        f"wrote {', '.join(map(str, new))}" if new else "nothing to write: all of its files are here already"
    )
    file = f"{name}.yaml"
    usage = example.usage or (f"slurmgpu run {file} --here", f"slurmgpu submit {file} --follow")
    click.echo("next, after reading the comments in it:", err=True)
    for line in [*([f"cd {shlex.quote(str(folder))}"] if folder else []), *usage]:
        click.echo(f"  {line}", err=True)
