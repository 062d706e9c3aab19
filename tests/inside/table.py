"""The table of what has run for real: written by tests that passed, shown in docs/reference/what-has-run.md.

SLURMGPU_WRITE_TABLE=1 has the tests write it; otherwise they leave the file as it is.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).with_name("what_has_run.json")
KINDS = ("launcher", "container", "environment", "shell")


class Row(NamedTuple):
    """A form that a test has run."""

    kind: str
    form: str
    version: str
    how: str
    stand_in: bool = False
    """Whether a program stood in for the real one, and only checked how it was called."""


def write(rows: Iterable[Row], slurm: str) -> None:
    """Put the rows in place of earlier ones of the same form; several test runners may do so at once."""
    rows = list(rows)
    wrong = {row.kind for row in rows} - set(KINDS)
    assert not wrong, f"{wrong} is no kind of row; there are {KINDS}"
    if os.environ.get("SLURMGPU_WRITE_TABLE") != "1" or not rows:
        return
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
    with RESULTS.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        known: list[dict[str, Any]] = json.loads(text)["rows"] if text else []
        table = {(row["kind"], row["form"]): row for row in known}
        for row in rows:
            more = {"slurm": slurm, "date": today, "machine": machine}
            table[row.kind, row.form] = row._asdict() | more
        ordered = [table[key] for key in sorted(table, key=lambda key: (KINDS.index(key[0]), key[1]))]
        file.truncate(0)
        file.write(json.dumps({"rows": ordered}, indent=1, ensure_ascii=False) + "\n")
