"""Reads a batch script exactly as sbatch does: which lines, which words, which options, and what it passes over.

Seen on 20.11, 22.05, 24.11 and 26.05 (tests/slurm/test_reading_scripts.py). Where they differ, the newest counts
unless a release is named. Not followed: 20.11 goes on reading a line after its ``hetjob``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

from slurmgpu.lines.options import NEWEST, Option, Release
from slurmgpu.lines.slurm import SBATCH, SPACE, read_head
from slurmgpu.script.shell import Command, Simple, read_shell, simple_commands

__all__ = ["SHELLS", "Directive", "Ignored", "Passed", "Refusal", "Refused", "Script", "parse_batch_script"]

# The line by which our own scripts keep their exit code: nothing that follows depends on it.
_BEGIN = 'eval "$(cat "${SLURMGPU_RUN_DIR:-/dev/null}/code/begin.sh" 2>/dev/null)'


Passed = Literal[
    "disabled", "blank", "indented", "spelling", "after-command", "here-document", "comment", "empty-word",
    "after-separator",
]  # fmt: skip
"""Why sbatch passes over something that looks like an option."""

Refused = Literal[
    "no-shebang", "empty", "crlf", "nul", "unmatched-quote", "colon", "bare-word", "unknown-option",
    "ambiguous-option", "missing-value", "unwanted-value",
]  # fmt: skip
"""Why sbatch refuses the whole script."""

SHELLS = frozenset({"bash", "dash", "ksh", "sh", "zsh"})
"""Interpreters that read a batch script as shell text."""


class Directive(NamedTuple):
    """One option that sbatch reads. Lines are counted from 1."""

    line: int
    text: str
    """The whole line as written."""
    name: str
    """The long name: abbreviations, letters and aliases resolved; as written where nothing is known of it."""
    value: str | None
    """As sbatch reads it, quotes removed; None where the option has none."""
    component: int
    """Component of a heterogeneous job, from 0."""
    spelling: str
    """As written: ``-N``, ``--tasks-per-n``."""
    known: bool = True
    """True if it is an option of sbatch itself; else a plug-in's, or nobody's."""


class Ignored(NamedTuple):
    """Something that looks like an option and that sbatch passes over in silence."""

    line: int
    text: str
    """The whole line; of a line that is read in part, the rest that is not."""
    why: Passed


class Refusal(NamedTuple):
    """A reason for which sbatch refuses the script; ``text`` is the word or option concerned."""

    line: int
    text: str
    why: Refused


@dataclass(frozen=True)
class Script:
    """A batch script as sbatch reads it. Lines are counted from 1."""

    text: str
    shebang: str | None
    """The first line, where it starts with #!."""
    lines: tuple[str, ...]
    directives: tuple[Directive, ...]
    ignored: tuple[Ignored, ...]
    refusals: tuple[Refusal, ...]
    body_start: int
    """The first line that is neither comment nor blank; one past the last where there is none."""
    components: int
    """1, or the number of components of a heterogeneous job."""
    separators: tuple[int, ...] = ()
    """The lines that separate components."""

    def effective(self, component: int = 0) -> dict[str, Directive]:
        """Return the options of a component by name; of duplicates the last one.

        Components after the first inherit job name, time limit and the like from it; that is not done here.
        """
        return {one.name: one for one in self.directives if one.component == component}

    @cached_property
    def on_line(self) -> Mapping[int, list[Directive]]:
        """The options of each line that has some."""
        found: dict[int, list[Directive]] = {}
        for one in self.directives:
            found.setdefault(one.line, []).append(one)
        return found

    @property
    def interpreter(self) -> str:
        """The program of the shebang by name (``bash``, ``python3``); empty without one."""
        words = (self.shebang or "#!")[2:].split()
        if words and words[0].rsplit("/", 1)[-1] == "env":
            words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        return words[0].rsplit("/", 1)[-1] if words else ""

    @property
    def is_shell(self) -> bool:
        """True if the body is a Bourne-like shell's."""
        return self.interpreter in SHELLS

    @cached_property
    def _commands(self) -> tuple[Command, ...]:
        body = self.text.split("\n", self.body_start - 1)[-1] if self.body_start <= len(self.lines) else ""
        return tuple(one for one in read_shell(body, self.body_start) if not one.text.startswith(_BEGIN))

    def commands(self) -> tuple[Command, ...]:
        """Return the body's logical lines; none where its interpreter is not a shell."""
        return self._commands if self.is_shell else ()

    @cached_property
    def _simple(self) -> tuple[Simple, ...]:
        return tuple(one for command in self.commands() for one in simple_commands(command))

    def simple_commands(self) -> tuple[Simple, ...]:
        """Return the body's simple commands, in order."""
        return self._simple


def parse_batch_script(text: str, release: Release = NEWEST) -> Script:
    """Read a script; never fails: what sbatch would refuse stands in ``refusals``."""
    return _Reader(text, release).read()


class _Word(NamedTuple):
    line: int
    text: str


_SEPARATORS = ("hetjob", "packjob")
_OPTION = r"(?=\s*(?:--?[A-Za-z]|hetjob\b))"
_DISABLED = rf"##+\s*SBATCH\b{_OPTION}"
# Prose names options, too: "# SBATCH --job-name, the folder and the command follow."
_BLANK = rf"#\s+SBATCH\b(?!.*--[\w-]+,\s)(?!.*[a-z]\.\s*$){_OPTION}"
_INDENTED = rf"\s+#SBATCH\b{_OPTION}"
_SPELLING = (
    r"#(?!\s+sbatch\s)\s*(?!SBATCH\b)"
    rf"(?:(?i:s\s?batch)|BATCH|SBTACH|SBACTH|SABTCH|SBATHC|SBATH|SBTCH|SBACH|SLRUM){_OPTION}"
)
# One of these stands in every line that one of the patterns above finds.
_OF_SPELLINGS = ("BATCH", "BATH", "SBT", "SBA", "SABT", "SLRUM")


class _Reader:
    def __init__(self, text: str, release: Release) -> None:
        self.text = text
        self.release = release
        self.lines = text.split("\n")
        if self.lines[-1] == "":
            self.lines.pop()
        self.directives: list[Directive] = []
        self.ignored: list[Ignored] = []
        self.refusals: list[Refusal] = []
        self.components: list[list[_Word]] = [[]]
        self.separators: list[int] = []

    def read(self) -> Script:
        self._whole()
        body_start = self._options_part()
        for component, words in enumerate(self.components):
            self._options(component, words)
        self._look_alikes(body_start)
        shebang = self.lines[0] if self.lines and self.lines[0].startswith("#!") else None
        script = Script(
            self.text,
            shebang,
            tuple(self.lines),
            tuple(self.directives),
            (),
            tuple(sorted(self.refusals, key=lambda one: one.line)),
            body_start,
            len(self.components),
            tuple(self.separators),
        )
        if not self.ignored:
            return script
        documents = {
            document.line + offset
            for command in script.commands()
            for document in command.documents
            for offset in range(len(document.lines))
        }
        # Within a command, such as in a quoted text that is to be a file, a line is none of its own.
        documents |= {
            line for command in script.commands() for line in range(command.line + 1, command.end + 1)
        }
        self.ignored = [
            Ignored(one.line, one.text, "here-document") if one.line in documents else one
            for one in sorted(self.ignored, key=lambda one: one.line)
        ]
        return replace(script, ignored=tuple(self.ignored))

    def _whole(self) -> None:
        """Collect the faults for which sbatch refuses the file before it reads a line."""
        if not self.text.strip(SPACE):
            self.refusals.append(Refusal(1, "", "empty"))
        elif not self.text.startswith("#!"):
            self.refusals.append(Refusal(1, self.lines[0], "no-shebang"))
        marks: tuple[tuple[str, Refused], ...] = (("\r\n", "crlf"), ("\0", "nul"))
        for mark, why in marks:
            if mark in self.text:
                line = self.text[: self.text.index(mark)].count("\n") + 1
                self.refusals.append(Refusal(line, "", why))

    def _options_part(self) -> int:
        """Collect words up to the first command; the line of that command."""
        lines, body_start = read_head(self.lines)
        for number, line, mark in lines:
            self._directive(number, line, len(mark))
        return body_start

    def _directive(self, number: int, line: str, at: int) -> None:
        first = True
        while True:
            while at < len(line) and line[at] in SPACE:
                at += 1
            if at >= len(line):
                return
            if line[at] == ":":
                self.refusals.append(Refusal(number, line[at:], "colon"))
                return
            separator = next((word for word in _SEPARATORS if line.startswith(word, at)), None)
            if separator and line[at + len(separator) :][:1] in SPACE:
                if first:
                    self.components.append([])
                    self.separators.append(number)
                self._rest(number, line[at + len(separator) :], "after-separator")
                return
            word, end, closed = self._word(line, at)
            if not closed:
                self.refusals.append(Refusal(number, line[at:], "unmatched-quote"))
            if word:
                self.components[-1].append(_Word(number, word))
            if not word or line[end : end + 1] == "#":
                # A word that is empty ends the line as well as a comment does.
                self._rest(number, line[end:], "comment" if line[end : end + 1] == "#" else "empty-word")
                return
            at, first = end, False

    def _word(self, line: str, at: int) -> tuple[str, int, bool]:
        """Return the word that starts here, where it ends, and whether its quotes are closed."""
        found: list[str] = []
        quote = ""
        escaped = False
        while at < len(line):
            char = line[at]
            if not quote and char in SPACE and not (escaped and char == " " and self.release >= (24, 11)):
                break
            if escaped:
                found.append(char)
                escaped = False
            elif char == "\\":
                escaped = True
            elif char in "\"'" and quote in ("", char):
                quote = "" if quote else char
            elif char == "#" and not quote:
                break
            else:
                found.append(char)
            at += 1
        return "".join(found), at, not quote

    def _rest(self, number: int, rest: str, why: Passed) -> None:
        if rest.strip(SPACE):
            self.ignored.append(Ignored(number, rest, why))

    def _look_alikes(self, body_start: int) -> None:
        kinds: tuple[tuple[str, Passed], ...] = (
            (_DISABLED, "disabled"),
            (_BLANK, "blank"),
            (_INDENTED, "indented"),
            (_SPELLING, "spelling"),
        )
        for number, line in enumerate(self.lines, 1):
            if number >= body_start and line.startswith("#SBATCH"):
                self.ignored.append(Ignored(number, line, "after-command"))
                continue
            if line.startswith("#SBATCH ") or not line.lstrip().startswith("#"):
                continue
            if "-" not in line and "hetjob" not in line:
                continue  # no option stands in it
            if not any(part in line.upper() for part in _OF_SPELLINGS):
                continue
            for pattern, why in kinds:
                if re.match(pattern, line):
                    self.ignored.append(Ignored(number, line, why))
                    break

    def _options(self, component: int, words: list[_Word]) -> None:
        """Collect the options that sbatch reads from the words of one component."""
        texts, at = [word.text for word in words], 0
        while True:
            read = SBATCH.read(texts, at, None if self.release == NEWEST else self.release)
            self.refusals += (Refusal(words[at].line, text, why) for at, text, why in read.faults)
            found, at = list(read.options), read.end
            bare = range(at, len(words)) if read.closed else range(at, min(at + 1, len(words)))
            if bare and not read.closed and found and self._may_take(found[-1], words, at):
                found[-1] = found[-1]._replace(value=texts[at])
                bare = range(0)
            self.refusals += (Refusal(words[one].line, texts[one], "bare-word") for one in bare)
            for one in found:
                line = words[one.at].line
                text = self.lines[line - 1]
                self.directives.append(
                    Directive(line, text, one.name, one.value, component, one.spelling, one.known)
                )
            at = len(words) if read.closed else at + 1
            if at >= len(words):
                return

    @staticmethod
    def _may_take(option: Option, words: list[_Word], at: int) -> bool:
        """Return True if an option, a site's plug-in's perhaps, may have the word behind it as its value."""
        unknown = option.name not in SBATCH.options and option.spelling.startswith("--")
        adjacent = option.at == at - 1 and words[option.at].line == words[at].line
        return unknown and option.value is None and adjacent
