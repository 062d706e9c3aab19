"""``slurmgpu template``: what scripts are made of; to look at, and to copy and change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurmgpu.cli.completing import templates as named_templates
from slurmgpu.cli.job_options import JobCommand, job_options
from slurmgpu.cli.terminal import echo_json, note
from slurmgpu.errors import InvalidInput
from slurmgpu.version import __version__

if TYPE_CHECKING:
    from slurmgpu.files.data import Templates


@click.group()
def command() -> None:
    """List, show and copy the templates of scripts."""


def _in_force() -> Templates:
    from slurmgpu.files.data import read_templates
    from slurmgpu.files.settings import load_settings

    return read_templates(*load_settings(Path.cwd()).template_sources(os.environ))


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(as_json: bool) -> None:
    """List the templates: what each is for, and which file of yours replaces it, if one does."""
    from slurmgpu.files.data import SHIPPED
    from slurmgpu.files.templates import listed_templates

    found = listed_templates(_in_force())
    if as_json:
        rows = [{**one._asdict(), "file": str(one.file)} for one in found]
        echo_json({"schema": "slurmgpu.templates/1", "templates": rows}, ensure_ascii=True)
        return
    width = max(len(one.name) for one in found)
    for one in found:
        click.echo(f"{click.style(f'{one.name:<{width}}', bold=True)}  {one.about}")
        if one.layer == SHIPPED:
            continue
        state = f"; the shipped one has changed since slurmgpu {one.copied_from}" if one.copied_from else ""
        state = "; a copy without a change" if one.is_same else state
        click.echo(f"{'':<{width}}  {one.layer}: {one.file}{state}")
    click.echo("copy one to change it: slurmgpu template copy NAME", err=True)


@command.command("show", cls=JobCommand)
@click.argument("name", shell_complete=named_templates)
@job_options
@click.option("--rendered", is_flag=True, help="Show what it becomes in the script of a job.")
@click.option("--shipped", is_flag=True, help="Show the shipped one, though a file of yours replaces it.")
def show(name: str, given: dict[str, object], rendered: bool, shipped: bool) -> None:
    """Show the text of a template; with --rendered, what it becomes in a job's script."""
    from collections import ChainMap

    from slurmgpu.files.data import SHIPPED, read_templates
    from slurmgpu.files.templates import template_named
    from slurmgpu.runs.prepare import prepare
    from slurmgpu.script.render import render_script

    if rendered:
        prepared = prepare(given, note)
        templates = prepared.templates()
        whole, mark = template_named(name, templates), "\0\n"
        marked = {whole: mark + templates[whole] + mark}
        script = render_script(prepared.plan, ChainMap(marked, dict(templates)), place=templates.place)
        parts = script.split(mark)[1::2]
        if not parts:
            raise InvalidInput(
                f"template {whole}: the script of this job does not use it",
                hint="slurmgpu render shows the script",
            )
        click.echo(
            "".join(part.rstrip(" ") for part in parts), nl=False
        )  # the mark behind it may be indented
        return
    if any(given.values()):
        raise InvalidInput(
            f"template show {name}: a job is given", hint="--rendered shows what the template becomes in it"
        )
    templates = read_templates() if shipped else _in_force()
    whole = template_named(name, templates)
    found = templates.find(whole)
    if found and found[0].layer != SHIPPED:
        note(f"{whole} is replaced by {found[1]} ({found[0].layer})")
    click.echo(templates[whole], nl=False)


@command.command("copy")
@click.argument("name", shell_complete=named_templates)
@click.option("--user", "layer", flag_value="user", default="user", help="For all your jobs (the default).")
@click.option("--project", "layer", flag_value="project", help="For the jobs of this project.")
@click.option(
    "--to", "to", metavar="FOLDER", type=click.Path(path_type=Path, file_okay=False), help="Into this folder."
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def copy(name: str, layer: str, to: Path | None, force: bool) -> None:
    """Copy a shipped template to change it.

    It goes into the folder that the layer's settings name under templates:. Where they name none, one is made and named.
    """
    from slurmgpu.files.data import read_templates
    from slurmgpu.files.settings import load_settings, name_templates, templates_folder
    from slurmgpu.files.templates import copy_template, template_named

    settings = load_settings(Path.cwd())
    whole = template_named(name, read_templates())
    folder = to or templates_folder(settings, layer, Path.cwd(), os.environ)
    target = copy_template(whole, folder, __version__, replace=force)
    note(f"wrote {target}")
    if to is None:
        written = name_templates(settings, layer, Path.cwd())
        if written is not None:
            note(f"{written} names the folder under templates: from now on")
    found = _in_force().find(whole)
    if found is None or found[1].resolve() != target.resolve():
        instead = f"templates: {folder.absolute()} in your settings makes it count, or --template {folder} for one job"
        if to is None and found is not None:
            instead = f"{found[1]} ({found[0].layer}) lies on top of it"
        note(instead)


@command.command("variables")
def variables() -> None:
    """List what a template may use."""
    from slurmgpu.script.variables import VARIABLES

    width = max(map(len, VARIABLES))
    for name, about in VARIABLES.items():
        click.echo(f"{click.style(f'{name:<{width}}', bold=True)}  {about}")
