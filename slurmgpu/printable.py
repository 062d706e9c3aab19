"""Text of others, made safe for a terminal."""

from __future__ import annotations

__all__ = ["printable", "printable_lines"]


def printable(text: str) -> str:
    """Return text with control characters spelled out: a job's name must not steer the terminal."""
    return "".join(c if c.isprintable() else _spelled(c) for c in text)


def _spelled(char: str) -> str:
    # A byte of a path that is not UTF-8 (os.fsdecode, surrogateescape) as what it is.
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


def printable_lines(text: str) -> str:
    """Return text of several lines with the control characters in each spelled out."""
    return "\n".join(printable(line) for line in text.replace("\r\n", "\n").rstrip("\n").split("\n"))
