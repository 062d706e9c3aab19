"""The events of a trace, one after the other: a file may be larger than the memory."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Optional

__all__ = ["Unreadable", "events"]

_PIECE = 1 << 20  # characters read at a time
_LONGEST = 1 << 24  # characters of one event; what is longer is none
_MOST_GROWTH = 200
_BEGINNING = 1 << 22  # characters that may stand before the list of events


class Unreadable(Exception):
    """It is no trace, or one that is too large."""


def events(path: Path, most: Optional[int] = None) -> Iterator[dict[str, Any]]:
    """Yield each event of a trace that torch's profiler wrote, gzipped or not, with at most a few mebibytes in memory.

    Raises:
        Unreadable: it is no such file, is cut off, or has more than ``most`` characters.
    """
    try:
        with _opened(path) as file:
            # A real trace shrinks to a twentieth; a small file must not stand for any amount.
            yield from _events(file, most or _MOST_GROWTH * (path.stat().st_size + (1 << 20)))
    except (EOFError, zlib.error):
        raise Unreadable("it is cut off, or damaged") from None
    except UnicodeDecodeError:
        raise Unreadable("it is not text") from None
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    # It may lie in somebody else's folder: a pipe in its place would never end.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise Unreadable("it is no file")
    with os.fdopen(number, "rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not zipped:
            yield io.TextIOWrapper(file, encoding="utf-8")
            return
        with gzip.GzipFile(fileobj=file) as inner:
            yield io.TextIOWrapper(inner, encoding="utf-8")


def _events(file: IO[str], most: Optional[int]) -> Iterator[dict[str, Any]]:
    text, at = _list_of(file)
    total, decode = len(text), json.JSONDecoder(strict=False).raw_decode
    while True:
        at = _next(text, at)
        if text[at : at + 1] == "]":
            return
        try:
            event, at = decode(text, at)
        except (ValueError, RecursionError):
            # Cut off by the end of the piece, as long as it goes on.
            piece = file.read(_PIECE)
            if not piece or len(text) - at > _LONGEST:
                raise Unreadable("it is cut off, or it is no trace of torch's profiler") from None
            text, at = text[at:] + piece, 0
            total += len(piece)
            if most is not None and total > most:
                raise Unreadable(f"it has more than {most >> 20} MiB") from None
            continue
        if isinstance(event, dict):
            yield event


def _next(text: str, at: int) -> int:
    found = re.compile(r"[ \t\r\n,]*").match(text, at)
    return found.end() if found else at


def _list_of(file: IO[str]) -> tuple[str, int]:
    """Return the first piece of text with the list's beginning, and where its first event is."""
    text = ""
    while len(text) < _BEGINNING:
        piece = file.read(_PIECE)
        text += piece
        if text.lstrip()[:1] == "[":
            return text, text.index("[") + 1
        found = text.find('"traceEvents"')
        start = text.find("[", found) if found >= 0 else -1
        if start >= 0:
            return text, start + 1
        if not piece:
            break
    raise Unreadable("it is no trace of torch's profiler: it has no traceEvents")
