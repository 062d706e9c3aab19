"""What running jobs use, by sstat. It asks the nodes themselves, so it is called only on request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurmgpu.slurm.commands import Commands
from slurmgpu.slurm.text import seconds, size, whole

__all__ = ["StepUse", "live_use_command", "parse_live_use", "read_live_use"]

LIVE_USE_FIELDS = ("JobID", "NTasks", "AveCPU", "MaxRSS")


@dataclass(frozen=True)
class StepUse:
    """What one running step uses, over its tasks."""

    job_id: int
    step: str
    tasks: int | None
    average_cpu: float | None
    """CPU time of a task, averaged over the tasks, seconds."""
    max_rss: int | None
    """Largest resident set of any task, bytes."""


def live_use_command(ids: Sequence[int]) -> list[str]:
    """Return the sstat command for running jobs, all their steps."""
    # --allsteps, or the batch step is missing; the delimiter cannot be chosen in old releases, and no field
    # asked for here is free text.
    fields = f"--format={','.join(LIVE_USE_FIELDS)}"
    return ["sstat", "--allsteps", "--noheader", "--parsable2", "--noconvert", fields, f"--jobs={_join(ids)}"]


def _join(ids: Sequence[int]) -> str:
    return ",".join(str(i) for i in ids)


def read_live_use(slurm: Commands, ids: Sequence[int]) -> tuple[list[StepUse], list[str]]:
    """Ask for the steps of running jobs (plain ids); returns them with a note when sstat complains.

    One job that ended meanwhile makes sstat fail for itself only: the others' rows count.
    """
    if not ids:
        return [], []
    answer = slurm.ask(live_use_command(ids))
    notes = [] if answer.ok else [f"live use is incomplete: sstat said: {answer.text}"]
    return parse_live_use(answer.stdout), notes


def parse_live_use(text: str) -> list[StepUse]:
    """Read what `command` prints; lines that are not rows are passed over."""
    found = []
    for line in text.split("\n"):
        parts = line.split("|")
        job, _, step = parts[0].partition(".")
        number = whole(job)
        if len(parts) != len(LIVE_USE_FIELDS) or number is None or not step:
            continue
        found.append(StepUse(number, step, whole(parts[1]), seconds(parts[2]), size(parts[3])))
    return found
