"""Pages as text, from templates: all that they need is in the package, none comes from elsewhere. No server is needed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from slurmgpu.printable import printable, printable_lines

__all__ = ["STATIC", "TYPES", "draw", "prepare"]

_HERE = Path(__file__).parent
STATIC = _HERE / "static"
"""The folder of scripts, style sheets and licences."""
TYPES = {".js": "text/javascript", ".css": "text/css", ".txt": "text/plain", ".svg": "image/svg+xml"}
"""What is sent of it, by the ends of names."""


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["printable"] = printable
    made.filters["printable_lines"] = printable_lines
    return made


def prepare() -> None:
    """Read all templates, so that no first page waits for that."""
    for name in _environment().list_templates():
        _environment().get_template(name)


def draw(name: str, **values: object) -> str:
    """A page, or a part of one, by its template."""
    return _environment().get_template(name).render(values)
