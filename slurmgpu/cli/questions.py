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


def _is_terminal() -> bool:
    return sys.stdin.isatty()


class Questions:
    """Asks on the terminal; without one, and without ``yes``, InvalidInput."""

    def __init__(self, *, yes: bool, asker: str) -> None:
        if not yes and not _is_terminal():
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
        """One of the entries, by its number or its first word; its index."""
        if self.yes:
            say(f"{question} {entries[default]}")
            return default
        say(question)
        for number, entry in enumerate(entries, 1):
            say(f"  {number}  {entry}")
        names = [entry.split(" ")[0].rstrip(":") for entry in entries]

        def check(answer: str) -> None:
            if answer not in numbered and names.count(answer) != 1:
                raise InvalidInput(f"{answer!r} is none of them: 1 to {len(entries)}, or a name")

        numbered = [str(number) for number in range(1, len(entries) + 1)]
        answer = self.text("number", check, str(default + 1))
        return numbered.index(answer) if answer in numbered else names.index(answer)

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
