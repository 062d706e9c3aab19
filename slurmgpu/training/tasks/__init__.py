"""Tasks that come with slurmgpu, named ``slurmgpu:NAME``: each a module here with a class ``Task``.

``options.json`` says what ``config:`` may hold for each; the command line reads it too, without torch.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..errors import SettingsError
from ..settings import Config

__all__ = ["PREFIX", "find", "options"]

PREFIX = "slurmgpu:"


def find(reference: str) -> tuple[type, Path]:
    """Return the class of a built-in task, and its file.

    Raises:
        SettingsError: there is no such task; the message names those that there are.
    """
    name = reference[len(PREFIX) :]
    names = _table()
    if name not in names:
        raise SettingsError(
            f"task is {reference!r}: there is no such task in slurmgpu{_nearest(name, names)}; there are "
            f"{', '.join(PREFIX + each for each in names)}; a task of your own is named FILE.py:CLASS"
        )
    module = importlib.import_module(f".{name}", __name__)
    kind: type = module.Task
    return kind, Path(inspect.getfile(module))


def options(cfg: Config, name: str) -> Any:
    """Return the options of a built-in task: those of ``config:``, checked, and the rest by default.

    Raises:
        SettingsError: a key that the task does not have, or a value that it cannot take.
    """
    rows = _table()[name]["options"]
    given = cfg.config
    for key, value in given.items():
        if key not in rows:
            raise SettingsError(
                f"config.{key}: {PREFIX}{name} has no such option{_nearest(key, rows)}; "
                f"it has {', '.join(rows)}"
            )
        expected = _complaint(value, rows[key])
        if expected:
            raise SettingsError(f"config.{key} is {value!r}; for {PREFIX}{name} it must be {expected}")
    defaults = {key: row["default"] for key, row in rows.items()}
    return SimpleNamespace(**{**defaults, **given})


def _table() -> dict[str, Any]:
    text = Path(__file__).with_name("options.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def _complaint(value: object, row: dict[str, Any]) -> str:
    """Return what the value would have to be; nothing where it is."""
    if "choices" in row:
        return "" if value in row["choices"] else "one of " + ", ".join(map(str, row["choices"]))
    if value is None and row["default"] is None:
        return ""
    kind, least = row["type"], row.get("at_least")
    if kind == "text":
        return "" if isinstance(value, str) else "a text"
    whole = type(value) is int
    right = whole or (kind == "number" and type(value) is float)
    if right and (least is None or value >= least) and ("below" not in row or value < row["below"]):
        return ""
    said = "a whole number" if kind == "whole" else "a number"
    said += "" if least is None else f" of at least {least}"
    said += f" and below {row['below']}" if "below" in row else ""
    return said + (", or null" if row["default"] is None else "")


def _nearest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
