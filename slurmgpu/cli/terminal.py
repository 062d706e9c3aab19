"""Output to the person: results as JSON, notes beside them, the text of logs."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import click

from slurmgpu.printable import Harmless, printable_lines

Say = Callable[[str], None]
"""Takes a remark for the person, a line or more."""


def note(text: str) -> None:
    """Say something to the person, beside the result."""
    click.echo(noted(text), err=True)


def noted(text: str) -> str:
    """Return a remark as it is printed."""
    return click.style("slurmgpu: ", fg="yellow") + printable_lines(text)


def echo_error(text: str) -> None:
    """Print a line beside the result."""
    click.echo(text, err=True)


def echo_json(document: object, *, ensure_ascii: bool = False) -> None:
    """Print a JSON document."""
    import json

    click.echo(json.dumps(document, indent=2, ensure_ascii=ensure_ascii))


def terminal_columns(stream: TextIO) -> int | None:
    """Return the width of a terminal; None where a stream is not one."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


@contextmanager
def written(*, redraws: bool = True) -> Iterator[Callable[[str], None]]:
    """Yield a printer of logs: to a file the text as it is, to a terminal or a pipe without control sequences."""
    try:
        to_file = stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):  # no file at all: a program that collects it
        to_file = True
    harmless = None if to_file else Harmless(redraws=redraws)

    def write(piece: str) -> None:
        click.echo(harmless.text(piece) if harmless is not None else piece, nl=False)

    try:
        yield write
    finally:
        if harmless is not None:
            click.echo(harmless.end(), nl=False)
