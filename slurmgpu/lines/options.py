"""Reads options as programs do: getopt_long(3), and the parsers of torchrun and apptainer, which follow it.

A program's options are a table; the reading is the same for all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = ["NEWEST", "OLDEST", "Fault", "Flaw", "Line", "Option", "OptionInfo", "Release", "Table", "Takes"]

Release = tuple[int, int]
Takes = Literal["none", "required", "optional"]
Flaw = Literal["unknown-option", "ambiguous-option", "missing-value", "unwanted-value"]

OLDEST: Release = (20, 11)
NEWEST: Release = (26, 5)


class OptionInfo(NamedTuple):
    """One option of a program. An optional value stands in the same word, never in the next one."""

    name: str
    takes: Takes
    since: Release = OLDEST
    """The oldest release that has it."""
    until: Release = NEWEST
    """The newest that has it."""
    plugin: bool = False
    """A site's plug-in brings it; the program refuses it at another site."""
    valued: tuple[Release, Release] = (OLDEST, NEWEST)
    """The releases, first and last, in which an optional value may be given."""

    def there(self, release: Release) -> bool:
        """Whether a release has it."""
        return self.since <= release <= self.until


class Option(NamedTuple):
    """An option that was given."""

    at: int
    """The index of its word."""
    name: str
    """The long name: abbreviations, letters and aliases resolved; as written where nothing is known of it."""
    value: str | None
    """None where none is given."""
    spelling: str
    """As written: ``-N``, ``--tasks-per-n``."""
    value_at: int
    """The index of the word that the value ends."""
    known: bool = True
    """Whether it is the program's own; else a plug-in's, or nobody's."""


class Fault(NamedTuple):
    """Why the program would refuse the line; ``text`` is the word or option concerned."""

    at: int
    text: str
    why: Flaw


class Line(NamedTuple):
    """A program's options, up to its first operand."""

    options: tuple[Option, ...]
    faults: tuple[Fault, ...]
    end: int
    """The index of the first operand; the number of words where there is none."""
    closed: bool
    """Whether ``--`` ends the options: every word behind it is an operand."""

    @property
    def given(self) -> dict[str, str | None]:
        """The options' values by long name; of duplicates the last one."""
        return {one.name: one.value for one in self.options}


@dataclass(frozen=True)
class Table:
    """The options of one program."""

    options: Mapping[str, OptionInfo]
    """By long name, aliases included."""
    letters: Mapping[str, str] = field(default_factory=dict)
    """Long names by letter."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Long names that stand for another one."""
    abbreviates: bool = True
    """Whether the beginning of a long name will do."""
    underscores: bool = False
    """Whether ``_`` is as good as ``-`` in a name."""
    letters_equal: bool = False
    """Whether a letter's value may follow ``=``, which is then no part of it."""

    def canonical(self, name: str) -> str:
        """The long name that an alias stands for; any other name as it is."""
        return self.aliases.get(name, name)

    def meanings(self, word: str, release: Release | None = None) -> list[str]:
        """The options that ``word`` (without its dashes) can mean: one if it is clear, several if not, none if unknown.

        An exact name means itself. Without a release, an abbreviation that only some releases can tell apart means
        what these find.
        """
        if self.underscores:
            word = word.replace("_", "-")
        if word in self.options and (release is None or self.options[word].there(release)):
            return [word]
        if not self.abbreviates:
            return []
        found = [one for one in self.options.values() if one.name.startswith(word) and not one.plugin]
        if release is not None:
            return sorted(one.name for one in found if one.there(release))
        everywhere = [one.name for one in found if one.there(OLDEST) and one.there(NEWEST)]
        return everywhere if len(everywhere) == 1 else sorted(one.name for one in found)

    def read(self, words: Sequence[str], start: int = 0, release: Release | None = None) -> Line:
        """Read options from ``start`` on, up to the first word that is neither an option nor a value of one.

        Of an unknown option no value is looked for in the next word.
        """
        return _Reader(self, words, start, release).read()

    def read_unexpanded(self, words: Sequence[str], start: int = 0) -> tuple[Line, bool]:
        """The same for words of a script, and whether some of them are variables that may hold further options."""
        line, hidden = self.read(words, start), False
        while not line.closed and line.end + 1 < len(words) and re.match(r"\$[\w{]", words[line.end]):
            more, hidden = self.read(words, line.end + 1), True
            line = more._replace(options=line.options + more.options, faults=line.faults + more.faults)
        return line, hidden


class _Reader:
    def __init__(self, table: Table, words: Sequence[str], start: int, release: Release | None) -> None:
        self.table = table
        self.words = words
        self.at = start
        self.release = release
        self.options: list[Option] = []
        self.faults: list[Fault] = []

    def read(self) -> Line:
        closed = False
        while self.at < len(self.words) and not closed:
            word = self.words[self.at]
            if not word.startswith("-") or word == "-":
                break
            self.at += 1
            closed = word == "--"
            if closed:
                break
            if word.startswith("--"):
                self._long(word)
            else:
                self._short(word[1:])
        return Line(tuple(self.options), tuple(self.faults), self.at, closed)

    def _long(self, word: str) -> None:
        at = self.at - 1
        spelling, equals, value = word.partition("=")
        found = self.table.meanings(spelling[2:], self.release)
        if len(found) != 1:
            self.faults.append(Fault(at, word, "ambiguous-option" if found else "unknown-option"))
            self._add(at, spelling[2:], value if equals else None, spelling, known=False)
            return
        info = self.table.options[found[0]]
        given = value if equals else None
        first, last = info.valued if info.takes != "none" else (NEWEST, OLDEST)
        if equals and not first <= (self.release or first) <= last:
            self.faults.append(Fault(at, word, "unwanted-value"))
        elif info.takes == "required" and not equals:
            given = self._next(word)
        self._add(at, self.table.canonical(found[0]), given, spelling, known=not info.plugin)

    def _short(self, letters: str) -> None:
        at = self.at - 1
        for index, letter in enumerate(letters):
            name, spelling = self.table.letters.get(letter), f"-{letter}"
            if name is None:
                self.faults.append(Fault(at, spelling, "unknown-option"))
                self._add(at, letter, None, spelling, known=False)
                continue
            takes, rest = self.table.options[name].takes, letters[index + 1 :]
            if self.table.letters_equal:
                rest = rest.removeprefix("=")
            if takes == "none":
                self._add(at, name, None, spelling)
                continue
            self._add(at, name, rest or (self._next(spelling) if takes == "required" else None), spelling)
            return

    def _next(self, spelling: str) -> str | None:
        """The next word as a value, whatever it looks like."""
        if self.at >= len(self.words):
            self.faults.append(Fault(self.at - 1, spelling, "missing-value"))
            return None
        self.at += 1
        return self.words[self.at - 1]

    def _add(self, at: int, name: str, value: str | None, spelling: str, *, known: bool = True) -> None:
        self.options.append(Option(at, name, value, spelling, self.at - 1, known))
