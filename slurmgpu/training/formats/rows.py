"""Files of JSON rows that jobs write: metrics, samples, benches. One may be huge, cut off anywhere, or no file at all.

They lie in a folder that may be somebody else's: nothing in them is trusted, and a pipe or device in a file's place is not
read.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Optional

__all__ = [
    "Row",
    "Rows",
    "all_rows",
    "number",
    "opened",
    "part",
    "positive",
    "rows_at_end",
    "rows_from_end",
    "rows_in",
    "whole",
]

Row = Mapping[str, object]
_LARGEST = 1 << 63
"""Whatever is measured is less: JSON has numbers such as 1e999, and whole ones of any length."""
_BLOCK = 1 << 16
_LONGEST = 1 << 20
_LARGEST_FILE = 2 << 30


class Rows:
    """A file of rows, open; `size` in bytes."""

    def __init__(self, file: int, size: int, schema: str) -> None:
        self._file, self.size, self._schema = file, size, schema

    def head(self, most: int) -> Iterator[Row]:
        """Return the rows in its first bytes; the last may be cut off, and is none then."""
        return rows_in(os.pread(self._file, most, 0), self._schema)

    def tail(self, most: int) -> Iterator[Row]:
        """Return the whole rows in its last bytes."""
        return rows_in(self.end(most), self._schema)

    def end(self, most: int) -> bytes:
        """Return its last bytes, from the beginning of a line."""
        at = max(0, self.size - most)
        text = os.pread(self._file, most, at)
        return text if at == 0 else text[text.find(b"\n") + 1 :]

    def all(self) -> Iterator[Row]:
        """Yield the whole rows, the first one first, line by line; a line without end takes no more memory than others."""
        with os.fdopen(self._file, "rb", closefd=False) as lines:
            while line := lines.readline(_LONGEST):
                yield from rows_in(line, self._schema)

    def backwards(self) -> Iterator[Row]:
        """Yield the whole rows, the last one first, and read no further back than is asked for."""
        place, rest = self.size, b""
        while place:
            size = min(_BLOCK, place)
            place -= size
            rest, *lines = (os.pread(self._file, size, place) + rest).split(b"\n")
            for line in reversed(lines if place else [rest, *lines]):
                yield from rows_in(line, self._schema)


@contextlib.contextmanager
def opened(path: Path, schema: str) -> Iterator[Rows]:
    """Open a file of rows with this schema; OSError where there is none that can be read."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is no file")
        yield Rows(file, found.st_size, schema)
    finally:
        os.close(file)


def rows_at_end(path: Path, schema: str, most: int) -> Iterator[Row]:
    """Return the whole rows in the last bytes of a file; none where there is no such file."""
    try:
        with opened(path, schema) as rows:
            text = rows.end(most)
    except OSError:
        return iter(())
    return rows_in(text, schema)


def rows_from_end(path: Path, schema: str) -> Iterator[Row]:
    """Yield the whole rows of a file, the last one first; none where there is no such file."""
    with contextlib.suppress(OSError), opened(path, schema) as rows:
        yield from rows.backwards()


def all_rows(path: Path, schema: str) -> Iterator[Row]:
    """Yield all rows of a file; none where there is no such file, or it is larger than any run makes one."""
    with contextlib.suppress(OSError), opened(path, schema) as rows:
        if rows.size <= _LARGEST_FILE:
            yield from rows.all()


def rows_in(text: bytes, schema: str) -> Iterator[Row]:
    """Yield the whole rows in a piece of a file; what is none is passed over: the last may still be being written."""
    for line in text.split(b"\n"):
        if not line.startswith(b"{"):
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and row.get("schema") == schema:
            yield row


def part(row: Row, key: str) -> Row:
    """Return an object in a row; empty where there is none."""
    found = row.get(key)
    return found if isinstance(found, dict) else {}


def number(value: object) -> Optional[float]:
    """Return a number within reason; None of anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if -_LARGEST < value < _LARGEST else None


def positive(value: object) -> Optional[float]:
    """Return a number that is not negative."""
    found = number(value)
    return None if found is None or found < 0 else found


def whole(value: object) -> Optional[int]:
    """Return a whole number that is not negative."""
    return value if type(value) is int and 0 <= value < _LARGEST else None
