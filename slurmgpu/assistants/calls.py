"""The record of calls: what an assistant asked for and what came of it, one JSON object a line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any

from slurmgpu.assistants.folder import alone, append, own_folder
from slurmgpu.errors import RunFailed

__all__ = ["Calls"]

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
