"""A light reading of a shell script's body: lines joined, words split, comments and here-documents told apart.

Nothing is expanded and nothing is judged: what cannot be split is kept as text.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = [
    "BUILTINS",
    "SETS_UP",
    "Command",
    "HereDocument",
    "Simple",
    "pieces",
    "placed_commands",
    "read_shell",
    "simple_commands",
    "substitutions",
    "unquoted",
]


BUILTINS = frozenset({
    ".", ":", "[", "alias", "bg", "bind", "break", "builtin", "caller", "cd", "compgen", "complete", "continue",
    "declare", "dirs", "disown", "enable", "eval", "exec", "exit", "export", "false", "fg", "getopts", "hash", "help",
    "history", "jobs", "kill", "let", "local", "logout", "mapfile", "popd", "printf", "pushd", "pwd", "read",
    "readarray", "readonly", "return", "set", "shift", "shopt", "source", "suspend", "test", "times", "trap", "true",
    "type", "typeset", "ulimit", "umask", "unalias", "unset", "wait",
})  # fmt: skip
"""Words that bash runs itself."""
SETS_UP = frozenset({"source", ".", "module", "ml", "eval", "spack"})
"""Commands that run what is not read, and may set anything: variables, functions, the folder."""
_OPERATORS = (
    *("<<<", "<<-", "&>>", ";;&", ";;", ";&", "&&", "||", "|&", "&>", "<<", ">>", "<&", ">&", ">|", "<>"),
    *(";", "&", "|", "<", ">", "(", ")"),
)
_DESCRIPTOR = re.compile(r"\d+(?=[<>](?!\())")
"""The number before a redirection belongs to it where no blank stands between them: ``2>``."""
_REDIRECTIONS = {"<<<", "<<-", "&>>", "&>", "<<", ">>", "<&", ">&", ">|", "<>", "<", ">"}
_ENDERS = {";", "&", "|", "|&", "&&", "||", ";;", ";&", ";;&", "(", ")"}
_KEYWORDS = {"if", "then", "elif", "else", "while", "until", "do", "!", "{", "}", "time", "done", "fi"}
_CLOSES = {"fi": "if", "done": "do", "esac": "case", "}": "{"}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=", re.DOTALL)
_BLANKS = " \t"
# Characters that mean nothing by themselves, outside quotes and within double ones: most of every script, read at once.
_PLAIN = re.compile(r"[\w./:,@%+~^?*\[\]{}!-]+")
_PLAIN_IN_QUOTES = re.compile(r"[^\\`$\"\n]+")


class HereDocument(NamedTuple):
    """A here-document: what is between the line of its command and its end word."""

    line: int
    """Of its first line, counted from 1."""
    lines: tuple[str, ...]
    expands: bool
    """True if the shell expands variables in it (its end word is not quoted)."""


class Command(NamedTuple):
    """One logical line: with its continuations, and every line that an open quote or bracket spans."""

    line: int
    """Its first line, counted from 1."""
    end: int
    """Its last line, here-documents not counted."""
    text: str
    """As written, without here-documents."""
    words: tuple[str, ...] | None
    """Words as written (quotes kept) and operators; None where the line cannot be split."""
    word_lines: tuple[int, ...] = ()
    """The line of each word."""
    documents: tuple[HereDocument, ...] = ()


class Simple(NamedTuple):
    """One simple command of a line: ``A=1 name word ...``, redirections left out."""

    line: int
    assignments: tuple[str, ...]
    """As written, such as ``A="$B"``."""
    raw: tuple[str, ...]
    """Words as written."""
    words: tuple[str, ...]
    """Words without their quotes; variables stay as they are."""
    ender: str
    """Operator after it: ``&``, ``|``, ``&&``, ``;``, or nothing at the line's end."""
    redirected: bool = False
    """True if its input or output goes elsewhere."""
    outputs: tuple[str, ...] = ()
    """The files that its output or errors go to, without their quotes."""

    @property
    def name(self) -> str:
        """The command's own name, without its folder; empty where there are only assignments."""
        return self.words[0].rsplit("/", 1)[-1] if self.words else ""


class _Unsplittable(Exception):
    """A quote or bracket is still open at the end."""


def read_shell(text: str, first_line: int = 1) -> tuple[Command, ...]:
    """Split shell text into its logical lines; comment lines and blank ones are left out."""
    return tuple(_Reader(text, first_line).commands())


class _Reader:
    def __init__(self, text: str, first_line: int) -> None:
        self.text = text
        self.at = 0
        self.line = first_line

    def commands(self) -> Iterator[Command]:
        while self.at < len(self.text):
            start, line = self.at, self.line
            words: list[str] = []
            lines: list[int] = []
            try:
                for word, where in self._words():
                    words.append(word)
                    lines.append(where)
            except (_Unsplittable, RecursionError):  # a thousand brackets within each other are no script
                rest = self.text[start:]
                yield Command(line, line + rest.rstrip("\n").count("\n"), rest.rstrip("\n"), None)
                return
            text, end = self.text[start : self.at], self.line
            self._newline()
            documents = tuple(self._documents(words))
            if words:
                # Comment lines in between belong to nobody.
                yield Command(lines[0], end, text.strip(_BLANKS), tuple(words), tuple(lines), documents)

    def _newline(self) -> None:
        if self.at < len(self.text):
            self.at += 1
            self.line += 1

    def _words(self) -> Iterator[tuple[str, int]]:
        """Yield the words up to the end of the logical line, each with its line."""
        while True:
            self._skip_blanks()
            if self.at >= len(self.text) or self.text[self.at] == "\n":
                return
            line, start = self.line, self.at
            if self.text[self.at] == "#":
                self.at = self._line_end()
                return
            if self.text.startswith("((", self.at):
                self._bracket("(", ")")
            else:
                if descriptor := _DESCRIPTOR.match(self.text, self.at):
                    self.at = descriptor.end()
                operator = self._operator()
                if operator:
                    self.at += len(operator)
                else:
                    self._word()
            word = self.text[start : self.at].replace("\\\n", "")
            if word == "[[":
                word = self._condition(start)
            yield word, line

    def _line_end(self) -> int:
        end = self.text.find("\n", self.at)
        return len(self.text) if end < 0 else end

    def _skip_blanks(self) -> None:
        while self.at < len(self.text):
            if self.text[self.at] in _BLANKS + "\r":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
                self.line += 1
            else:
                return

    def _operator(self) -> str | None:
        char = self.text[self.at]
        if char not in ";&|<>()" or (char in "<>" and self.text.startswith("(", self.at + 1)):
            return None  # a process substitution is a word
        return next(one for one in _OPERATORS if self.text.startswith(one, self.at))

    def _word(self) -> None:
        start = self.at
        while self.at < len(self.text):
            self._run(_PLAIN)
            if self.at >= len(self.text):
                return
            char = self.text[self.at]
            if char in "<>" and self.text.startswith("(", self.at + 1) and self.at == start:
                self.at += 1
                self._bracket("(", ")")
            elif char == "(" and self.at > start and self.text[self.at - 1] == "=":
                self._bracket("(", ")")  # an array
            elif char in _BLANKS + "\n\r" or self._operator():
                return
            else:
                self._piece()

    def _condition(self, start: int) -> str:
        """Everything of [[ ... ]]: what are operators elsewhere are none in it."""
        while self.at < len(self.text) and not re.match(r"\s\]\](?=[\s;&|)]|\Z)", self.text[self.at :]):
            self._piece()
        if self.at >= len(self.text):
            raise _Unsplittable
        self.at += 3
        return self.text[start : self.at]

    def _piece(self) -> None:
        """One character, or a whole quotation or substitution."""
        char = self.text[self.at]
        if char == "\\":
            self._step()
            self._step()
        elif char == "'":
            self._until("'")
        elif char == '"':
            self._step()
            self._run(_PLAIN_IN_QUOTES)
            while self._here() != '"':
                self._piece_in_quotes()
                self._run(_PLAIN_IN_QUOTES)
            self._step()
        elif char == "`":
            self._until("`", escapes=True)
        elif char == "$":
            self._dollar(quoted=False)
        else:
            self._step()

    def _piece_in_quotes(self) -> None:
        char = self._here()
        if char == "\\":
            self._step()
            self._step()
        elif char == "`":
            self._until("`", escapes=True)
        elif char == "$":
            self._dollar(quoted=True)
        else:
            self._step()

    def _dollar(self, *, quoted: bool) -> None:
        self._step()
        following = self.text[self.at : self.at + 1]
        if following == "(":
            self._bracket("(", ")")
        elif following == "{":
            self._bracket("{", "}")
        elif following == "'" and not quoted:
            self._until("'", escapes=True)

    def _bracket(self, opening: str, closing: str) -> None:
        depth = 0
        while True:
            char = self._here()
            if char == opening:
                depth += 1
            elif char == closing:
                depth -= 1
            elif char in "\\'\"`$":
                self._piece()
                continue
            elif char == "#" and opening == "(" and self.text[self.at - 1] in " \t\n":
                self.at = self._line_end()
                continue
            self._step()
            if depth == 0:
                return

    def _until(self, mark: str, *, escapes: bool = False) -> None:
        self._step()
        end = self.text.find(mark, self.at)
        if end >= 0 and not escapes:
            self.line += self.text.count("\n", self.at, end)
            self.at = end
        while self._here() != mark:
            if escapes and self._here() == "\\":
                self._step()
            self._step()
        self._step()

    def _run(self, plain: re.Pattern[str]) -> None:
        """Step over a run of characters that mean nothing by themselves."""
        match = plain.match(self.text, self.at)
        if match:
            self.at = match.end()

    def _here(self) -> str:
        if self.at >= len(self.text):
            raise _Unsplittable
        return self.text[self.at]

    def _step(self) -> None:
        if self._here() == "\n":
            self.line += 1
        self.at += 1

    def _documents(self, words: list[str]) -> Iterator[HereDocument]:
        for operator, tag in itertools.pairwise(words):
            if operator.lstrip("0123456789") not in {"<<", "<<-"}:
                continue
            line, lines = self.line, []
            while self.at < len(self.text):
                row = self.text[self.at : self._line_end()]
                self.at = self._line_end()
                self._newline()
                if (row.lstrip("\t") if operator == "<<-" else row) == unquoted(tag):
                    break
                lines.append(row)
            yield HereDocument(line, tuple(lines), expands=not re.search(r"['\"\\]", tag))


def pieces(word: str) -> Iterator[tuple[str, str]]:
    """Yield a word's parts, each with the quote it stands in: none, ``'``, ``"``, or a backslash, which quotes one character.

    Quotes within substitutions count as the word's own.
    """
    quote, start, at = "", 0, 0
    while at < len(word):
        char, following = word[at], word[at + 1 : at + 2]
        if char == "\\" and quote != "'" and following and (not quote or following in '"\\$`'):
            yield quote, word[start:at]
            yield "\\", following
            at = start = at + 2
        elif char in "'\"" and quote in ("", char):
            yield quote, word[start:at]
            quote = "" if quote else char
            at = start = at + 1
        else:
            at += 1
    yield quote, word[start:]


def unquoted(word: str) -> str:
    """Return a word without its quotes and backslashes, those within its substitutions included; nothing is expanded."""
    return "".join(text for _, text in pieces(word)) if re.search(r"[\\'\"]", word) else word


def substitutions(word: str) -> Iterator[str]:
    """Yield the texts of a word's ``$(...)``."""
    end = 0
    for match in re.finditer(r"\$\((?!\()", word):
        if match.start() >= end:
            reader = _Reader(word[match.end() - 1 :], 1)
            with contextlib.suppress(_Unsplittable):  # a bracket in single quotes need not be closed
                reader._bracket("(", ")")
            end = match.end() - 1 + reader.at
            yield word[match.end() : end - 1]


_DEEPEST = 100
"""Depth to which nesting is followed: each command keeps all that encloses it, so that the cost grows with the square."""


def simple_commands(command: Command) -> Iterator[Simple]:
    """Return the simple commands of a logical line, in order, without the shell's own keywords."""
    return (simple for simple, _ in placed_commands([command]))


def placed_commands(commands: Iterable[Command]) -> Iterator[tuple[Simple, tuple[str, ...]]]:
    """Yield the simple commands of logical lines, each with what encloses it: ``if``, ``do``, ``(``, or ``name()``."""
    around: list[str] = []
    function = ""
    for command in commands:
        part: list[tuple[str, int]] = []
        for word, line in (*zip(command.words or (), command.word_lines, strict=False), ("", 0)):
            if word == "(" and part:
                function, part = part[-1][0], []
            elif word in _ENDERS or not word:
                yield from ((one, tuple(around)) for one in _simple(part, word))
                part = []
            else:
                if word == "{" and part and part[0][0] == "function":
                    function, part = part[-1][0], []
                if all(before in _KEYWORDS for before, _ in part):
                    if word in _CLOSES.values() and len(around) < _DEEPEST:
                        around.append(f"{function}()" if word == "{" and function else word)
                    elif around and _CLOSES.get(word) == re.sub(r".*\(\)", "{", around[-1]):
                        around.pop()
                function = ""
                part.append((word, line))
            if word == "(" and len(around) < _DEEPEST:
                around.append(word)
            elif word == ")" and around[-1:] == ["("]:
                around.pop()


def _simple(part: list[tuple[str, int]], ender: str) -> Iterator[Simple]:
    while part and part[0][0] in _KEYWORDS:
        part = part[2 if [word for word, _ in part[:2]] == ["time", "-p"] else 1 :]
    kept, redirected, outputs = _without_redirections(part)
    if not kept:
        return
    line = kept[0][1]
    raw = [word for word, _ in kept]
    count = next((index for index, word in enumerate(raw) if not _ASSIGNMENT.match(word)), len(raw))
    yield Simple(
        line,
        tuple(raw[:count]),
        tuple(raw[count:]),
        tuple(map(unquoted, raw[count:])),
        ender,
        redirected,
        outputs,
    )


def _without_redirections(
    part: list[tuple[str, int]],
) -> tuple[list[tuple[str, int]], bool, tuple[str, ...]]:
    kept: list[tuple[str, int]] = []
    outputs: list[str] = []
    operator, found = "", False
    for word, line in part:
        redirection = word.lstrip("0123456789")
        if operator:
            if operator in (">", ">>", "&>", "&>>", ">|", ">&") and not re.fullmatch(r"\d+|-", word):
                outputs.append(unquoted(word))
            operator = ""
        elif redirection in _REDIRECTIONS:
            operator, found = redirection, True
        else:
            kept.append((word, line))
    return kept, found, tuple(outputs)
