"""Slurm's estimates as they were at the last look, kept in the user's cache: what is new is how they moved."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from slurmgpu.files.run_record import write_atomically
from slurmgpu.models.run import JobStatus
from slurmgpu.monitoring.why.answer import Start

__all__ = ["remembered"]

SCHEMA = "slurmgpu.estimates/1"
MOST_JOBS = 200
"""Of more, those looked at longest ago are forgotten."""
MOST_BYTES = 128 * 1024


def remembered(job: JobStatus, expected: datetime | None, now: datetime, environ: Mapping[str, str]) -> Start:
    """The estimate beside that of the last look, which it takes the place of.

    A cache that cannot be read or written is none: the estimate alone is returned.
    """
    path = _file(job, environ)
    known = _read(path)
    key = f"{job.job_id} {job.submit.isoformat() if job.submit else ''}"
    before = known.pop(key, None)
    known[key] = {"looked": _text(now), "expected": _text(expected)}
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = dict(list(known.items())[-MOST_JOBS:])
        write_atomically(path, json.dumps({"schema": SCHEMA, "jobs": kept}) + "\n")
    if before is None:
        return Start(expected)
    return Start(expected, _moment(before.get("expected")), _moment(before.get("looked")))


def _file(job: JobStatus, environ: Mapping[str, str]) -> Path:
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cluster = re.sub(r"[^A-Za-z0-9_.-]", "-", job.cluster or "unknown")[:60].strip(".") or "unknown"
    return cache / "slurmgpu" / "estimates" / f"{cluster}.json"


def _read(path: Path) -> dict[str, dict[str, object]]:
    """What the file says, the oldest look first; {} where it is not there, somebody else's, or damaged."""
    try:
        with path.open("rb") as file:
            there = os.fstat(file.fileno())
            if there.st_uid != os.getuid() or there.st_size > MOST_BYTES:
                return {}
            document = json.loads(file.read(MOST_BYTES))
        jobs = document["jobs"] if document["schema"] == SCHEMA else {}
        return {key: one for key, one in jobs.items() if isinstance(one, dict)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(timezone.utc).isoformat(timespec="seconds")


def _moment(text: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found if found is not None and found.tzinfo else None
