"""What a folder of profiles holds, and single traces: from files to what ``measure`` found."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from .events import Unreadable, events
from .measuring import SCHEMA, Timed, measure
from .timeline import timeline

__all__ = ["measured_in", "measured_trace"]

_PARTS = re.compile(r"rank-(\d{1,7})\.parts\.json")
_TRACE = re.compile(r"rank-(\d{1,7})\.trace\.json\.gz")
_LARGEST = 1 << 22


def measured_trace(path: Path, timed: Optional[Timed] = None, most: Optional[int] = None) -> dict[str, Any]:
    """Return what a trace tells.

    Raises:
        Unreadable: it is no trace, is cut off, has no operators, or has more than ``most`` characters.
    """
    found = timeline(events(path, most))
    if not found.window[1] - found.window[0] > 0:
        raise Unreadable("it holds no operators")
    return measure(found, timed)


def measured_in(folder: Path) -> tuple[dict[int, Mapping[str, Any]], list[str]]:
    """Return what each rank left in its folder, by what it worked out itself or else by its trace; and what could not be read."""
    found: dict[int, Mapping[str, Any]] = {}
    notes: list[str] = []
    for path in sorted(folder.glob("rank-*.parts.json")):
        name = _PARTS.fullmatch(path.name)
        document = _document(path) if name else None
        if name and document is not None:
            found[int(name[1])] = document
    for path in sorted(folder.glob("rank-*.trace.json.gz")):
        name = _TRACE.fullmatch(path.name)
        if name is None or int(name[1]) in found:
            continue
        try:
            found[int(name[1])] = measured_trace(path)
        except Unreadable as error:
            notes.append(f"{path}: {error}")
    return found, notes


def _document(path: Path) -> Optional[Mapping[str, Any]]:
    try:
        if path.stat().st_size > _LARGEST or not path.is_file():
            return None
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and document.get("schema") == SCHEMA else None
