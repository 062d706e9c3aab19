"""What an assistant never gets to see: secrets of this environment, of the user's folder of secrets, and what looks like one."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from slurmgpu.diagnosis.hiding import hide, secrets_here
from slurmgpu.files.regular import open_regular
from slurmgpu.scripts.secret_words import looks_random, names_secret, surely_names_secret

__all__ = ["Secrets"]

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
        """The same text with asterisks for each secret."""
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
    """The secrets that lie in files of their own, line by line."""
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
    """A value as it stands, and as addresses, JSON and programs spell it."""
    data = value.encode("utf-8", errors="surrogateescape")
    yield value
    yield quote(value, safe="", errors="surrogateescape")
    yield json.dumps(value)[1:-1]
    yield base64.b64encode(data).decode().rstrip("=")
    yield data.hex()
