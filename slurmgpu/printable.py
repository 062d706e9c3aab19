"""Text of others, made safe for a terminal."""

from __future__ import annotations

import re

__all__ = ["Harmless", "printable", "printable_lines"]


def printable(text: str) -> str:
    """Return text with control characters spelled out: a job's name must not steer the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _spelled(c) for c in text)


def _spelled(char: str) -> str:
    # A byte of a path that is not UTF-8 (os.fsdecode, surrogateescape) as what it is.
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


def printable_lines(text: str) -> str:
    """Return text of several lines with the control characters in each spelled out."""
    return "\n".join(printable(line) for line in text.replace("\r\n", "\n").rstrip("\n").split("\n"))


# A control sequence, as ECMA-48 builds it, and the longer strings that end in BEL or ST: titles, the clipboard, programs
# for keys. What is cut off at the end of a piece matches as far as it goes.
_SEQUENCE = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*(?P<final>[@-~])?"
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?P<end>\x07|\x1b\\\\|\x9c)?"
    "|\x1b[ -/]*(?P<other>[0-~])?"
)
# Colours, and what redraws a line, or some lines above it: progress bars.
_COLOUR, _REDRAWING = "m", "ABCDGKm"
_PLAIN = re.compile(r"\x1b\[(?:[0-9;:]*m|\d?\d?[ABK]|\d{0,4}[CDG])", re.ASCII)
_LONGEST = 4096
_SAFE = frozenset("\n\r\t\b")


class Harmless:
    """A log's text for a terminal, piece by piece: it keeps colours and progress bars, and steers nothing else.

    As `less -R` passes colours alone. Also passed: a return to the line's beginning, and moves up, down and along, by some
    lines, with the deletion of a line: bars are drawn by these. Titles, the clipboard, other character sets, questions that the
    terminal would answer into the shell, full screens: each is spelled out, so that it is seen. NUL bytes, with which a file
    begins that was cut while it was written, are left out.
    """

    def __init__(self, *, redraws: bool = True) -> None:
        self._passed = _REDRAWING if redraws else _COLOUR
        self._held = ""
        self._coloured = False

    def text(self, piece: str) -> str:
        """Return the next piece; a sequence that is not whole yet waits for the rest of it."""
        text, self._held = self._held + piece, ""
        if text.isascii() and text.isprintable():
            return text
        parts, position = [], 0
        for match in _SEQUENCE.finditer(text):
            parts.append(_spelled_but_safe(text[position : match.start()]))
            position = match.end()
            if match.lastgroup is None and position == len(text) and position - match.start() < _LONGEST:
                self._held = match[0]
                break
            if match["final"] and match["final"] in self._passed and _PLAIN.fullmatch(match[0]):
                self._coloured = (
                    match[0] not in ("\x1b[m", "\x1b[0m") if match["final"] == "m" else self._coloured
                )
                parts.append(match[0])
            else:
                parts.append(printable(match[0]))
        parts.append(_spelled_but_safe(text[position:]))
        return "".join(parts)

    def end(self) -> str:
        """Return what is left at the end, and the end of a colour that was never taken back."""
        rest, self._held = printable(self._held), ""
        return rest + ("\x1b[0m" if self._coloured else "")


def _spelled_but_safe(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _SAFE else "" if c == "\0" else _spelled(c) for c in text)
