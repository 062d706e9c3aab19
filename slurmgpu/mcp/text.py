"""The text for assistants: plain, bounded, marked as data and without secrets; and the record of their calls."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from slurmgpu.diagnosis.hiding import hide, secrets_here
from slurmgpu.errors import RunFailed, SlurmGpuError
from slurmgpu.files.trust import open_regular
from slurmgpu.mcp.budget import alone, append, own_folder
from slurmgpu.printable import printable
from slurmgpu.script.known_names import looks_random, names_secret, surely_names_secret

MOST_CHARACTERS = 40_000
"""Of one answer: some ten thousand tokens."""

# Colours, and what else ECMA-48 lets a program say to a terminal: within a secret they would hide it from a search.
_SEQUENCE = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)?"
)


def plain(text: str) -> str:
    """Return the text as a terminal would have left it: no colours, of a line that was redrawn what stood there last.

    Other control characters, and letters that nobody sees, are spelled out.
    """
    return "\n".join(_plain_lines(_SEQUENCE.sub("", text).replace("\0", "")))


def _plain_lines(text: str) -> Iterator[str]:
    for line in text.rstrip("\n").split("\n"):
        last = next((part for part in reversed(line.split("\r")) if part), "") if "\r" in line else line
        yield printable(last.replace("\t", "    "))


def shortened(text: str, *, keep_end: bool = False) -> str:
    """Return no more than so many characters, whole lines where there are such; what is left out is counted."""
    if len(text) <= MOST_CHARACTERS:
        return text
    left = len(text) - MOST_CHARACTERS
    if keep_end:
        kept = text[left:]
        _, _, whole = kept.partition("\n")
        return f"[the first {left:,} characters and more are left out]\n{whole or kept}"
    kept = text[:MOST_CHARACTERS]
    whole, _, _ = kept.rpartition("\n")
    return f"{whole or kept}\n[the last {left:,} characters and more are left out]"


def marked(text: str) -> str:
    """Return the text between two marks that it cannot have known: whatever it says in between is data."""
    mark = secrets.token_hex(8)
    while mark in text:
        mark = secrets.token_hex(8)
    return f"<data {mark}>\n{text}\n</data {mark}>"


_INSTEAD = "***"
_SHORTEST_IN_FILE = 4
_LARGEST_SECRET = 64 << 10
_MOST_FILES = 200
# Drawn by chance whatever it is called: letters of both kinds and digits, and nothing that paths and hosts have.
_DRAWN = re.compile(r"(?=.*\d)(?=.*[a-z])(?=.*[A-Z])[A-Za-z0-9_+=-]{20,}")
_KEY_BLOCK = re.compile(
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)", re.DOTALL
)
_VALUE = r"(?P<value>\"[^\"\n]{1,4096}\"|'[^'\n]{1,4096}'|[^\s\"',;]{1,4096})"
_ASSIGNED = re.compile(rf"(?<![\w-])(?P<name>[A-Za-z_][\w-]{{0,80}})[\"']?\s{{0,3}}[=:]\s{{0,3}}{_VALUE}")
_OPTION = re.compile(rf"--(?P<name>[A-Za-z][\w-]{{0,80}})[\"']?,?\s+{_VALUE}")


class Secrets:
    """The secrets that are known at a moment, and a text without them."""

    def __init__(self, environ: Mapping[str, str], folder: Path, named: Iterable[str] = ()) -> None:
        """``folder`` holds a file for each secret; ``named`` are variables that jobs call secrets."""
        files = dict(_of_files(folder))
        sure = [name for name in environ if surely_names_secret(name)]
        values = set(secrets_here(environ, [*named, *sure, *files]))
        values |= {value for value in environ.values() if _DRAWN.fullmatch(value)}
        values |= {line for lines in files.values() for line in lines}
        spelled = {one for value in values for one in _spellings(value)}
        self._values = sorted(spelled, key=len, reverse=True)

    def hidden(self, text: str) -> str:
        """Return the same text with asterisks for each secret."""
        text = _KEY_BLOCK.sub(_INSTEAD, text)
        text = hide(text, self._values)
        return _OPTION.sub(_without_value, _ASSIGNED.sub(_without_value, text))


def _without_value(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"].strip("\"'")
    known = value.startswith(("$", _INSTEAD))
    if known or not (surely_names_secret(name) or (names_secret(name) and looks_random(value))):
        return match[0]
    return match[0][: match.start("value") - match.start()] + _INSTEAD


def _of_files(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the secrets that lie in files of their own, line by line."""
    try:
        paths = sorted(folder.iterdir())[:_MOST_FILES]
    except OSError:
        return
    for path in paths:
        try:
            with open_regular(path) as file:
                text = file.read(_LARGEST_SECRET).decode("utf-8", errors="replace")
        except OSError:
            continue
        lines = [line.strip() for line in text.splitlines()]
        yield path.name, [line for line in lines if len(line) >= _SHORTEST_IN_FILE]


def _spellings(value: str) -> Iterator[str]:
    """Yield a value as it stands, and as addresses, JSON and programs spell it."""
    data = value.encode("utf-8", errors="surrogateescape")
    yield value
    yield quote(value, safe="", errors="surrogateescape")
    yield json.dumps(value)[1:-1]
    yield base64.b64encode(data).decode().rstrip("=")
    yield data.hex()


_LARGEST_CALL = 16 << 20
"""Bytes; then the file before it is dropped."""
_LONGEST = 4000


class Calls:
    """The file calls.jsonl in the user's state folder; a call is noted before anything is done, and again at its end."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.path: Path = own_folder(environ) / "calls.jsonl"
        self._numbers = count(1)

    def begun(self, tool: str, arguments: str) -> int:
        """Note a call, its secrets taken out by the caller; its number. RunFailed where it cannot be written."""
        number = next(self._numbers)
        self._write(number, {"tool": tool[:100], "arguments": arguments[:_LONGEST]})
        return number

    def ended(self, number: int, outcome: str, said: str = "", **more: Any) -> None:
        """Note what came of it: ``ok``, ``failed`` or ``mistaken``, and how that was said."""
        self._write(number, {"outcome": outcome, **({"said": said[:_LONGEST]} if said else {}), **more})

    def _write(self, number: int, told: dict[str, Any]) -> None:
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "server": os.getpid(), "call": number, **told}, ensure_ascii=False)
        try:
            with alone(self.path.with_name("calls.lock")):
                if self.path.exists() and self.path.stat().st_size > _LARGEST_CALL:
                    self.path.replace(self.path.with_name("calls.1.jsonl"))
                append(self.path, line + "\n")
        except OSError as error:
            raise RunFailed(
                f"{self.path}: the call cannot be noted there: {error.strerror}; nothing is done unnoted",
                hint="make room there, or set XDG_STATE_HOME to another folder",
            ) from None


_LARGEST_OUTPUT = 1 << 20
_LONGEST_SECRET = 64 << 10
_MORE = "\nthere is more than is shown here; ask for less at a time"


class ToolOutput(NamedTuple):
    """The answer of a tool: what the command of its name prints."""

    out: str
    notes: str = ""
    """Remarks beside it."""
    code: int = 0
    only: Callable[[str], str] | None = None
    """The part that an assistant asked for, taken after secrets are hidden: a search before could guess them."""

    @classmethod
    def of(cls, pieces: Iterable[str], notes: list[str]) -> ToolOutput:
        """Return so many pieces of text as an answer may have, and the notes that were made meanwhile."""
        out, whole = _bounded(pieces)
        said, _ = _bounded(f"{note}\n" for note in ([*notes] if whole else [*notes, _MORE]))
        return cls(out, said)


def _bounded(pieces: Iterable[str]) -> tuple[str, bool]:
    """Return the first so many characters, and whether that is all; half a secret at the cut is not known for one."""
    kept, room = [], _LARGEST_OUTPUT
    for piece in pieces:
        kept.append(piece[:room])
        room -= len(piece)
        if room < 0:
            text = "".join(kept)
            return text.rpartition("\n")[0] or text[:-_LONGEST_SECRET], False
    return "".join(kept), True


def failed(error: SlurmGpuError) -> ToolOutput:
    """Return an error as the command line prints it."""
    hint = f"\nhint: {error.hint}" if error.hint else ""
    return ToolOutput(f"error: {error.message}{hint}", code=error.exit_code)
