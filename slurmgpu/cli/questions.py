"""Questions to a person, each with a default; `--yes` takes the defaults, and says which."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import click

from slurmgpu.errors import InvalidInput

__all__ = ["Questions", "say"]


def say(text: str = "") -> None:
    """Tell the person something."""
    click.echo(text, err=True)


class Questions:
    """Asks on the terminal; without one, and without ``yes``, InvalidInput."""

    def __init__(self, *, yes: bool, asker: str) -> None:
        if not yes and not sys.stdin.isatty():
            raise InvalidInput(
                f"{asker} asks questions, and there is no terminal to ask on",
                hint=f"{asker} --yes takes every default; each question has an option, too: {asker} --help",
            )
        self.yes = yes

    def confirm(self, question: str, default: bool) -> bool:
        """Yes or no."""
        if self.yes:
            say(f"{question} {'yes' if default else 'no'}")
            return default
        return click.confirm(question, default=default, err=True)

    def choose(self, question: str, entries: Sequence[str], default: int = 0) -> int:
        """One of the entries, by its number; its index."""
        if self.yes:
            say(f"{question}: {entries[default]}")
            return default
        say(f"{question}:")
        for number, entry in enumerate(entries, 1):
            say(f"  {number}  {entry}")
        numbers = click.IntRange(1, len(entries))
        found: int = click.prompt("number", type=numbers, default=default + 1, err=True)
        return found - 1

    def text(self, question: str, check: Callable[[str], None], default: str | None = None) -> str:
        """A text that ``check`` does not refuse (by InvalidInput); asked again until it is one."""
        while True:
            answer: str = click.prompt(question, default=default, err=True)
            try:
                check(answer.strip())
            except InvalidInput as error:
                say(f"  {error.message}" + (f" ({error.hint})" if error.hint else ""))
                continue
            return answer.strip()
