"""The table of jobs as text, for tests of what it says."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from slurmgpu.columns import aligned
from slurmgpu.jobs.table import Column, table
from slurmgpu.models.run import JobStatus

__all__ = ["plain"]


def plain(
    jobs: Sequence[JobStatus],
    now: datetime,
    *,
    live: bool = False,
    each_task: bool = False,
    columns: Sequence[Column] = (),
) -> str:
    """Return aligned columns without colour; nothing is cut off."""
    return "\n".join(aligned(table(jobs, now, live=live, each_task=each_task, columns=columns)[0]))
