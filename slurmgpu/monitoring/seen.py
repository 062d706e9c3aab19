"""What a job's run directory tells while it runs, and afterwards: the progress of a training, and samples of its use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.models.samples import Progress
from slurmgpu.monitoring.metrics import folder_of
from slurmgpu.monitoring.progress import progress_of
from slurmgpu.monitoring.samples import summary
from slurmgpu.monitoring.select import scripts_of

__all__ = ["progress_text", "with_seen"]

_MOST = 100  # jobs whose files are looked at in one status: each costs some reads, on file systems that may be slow
_SILENT = 600.0  # seconds without a line of metrics that are worth a word


def with_seen(jobs: Iterable[JobStatus], *, ended: bool) -> list[JobStatus]:
    """The jobs with what is seen in their run directories: of those that run, and where ``ended`` of the others too."""
    return list(_seen(jobs, ended))


def _seen(jobs: Iterable[JobStatus], ended: bool) -> Iterator[JobStatus]:
    left = _MOST
    for job in jobs:
        looks = job.state in (JobState.RUNNING, JobState.COMPLETING) or (ended and job.state.is_final)
        script = next(iter(scripts_of(job)), None) if looks and left and job.raw_id is not None else None
        if script is None or job.raw_id is None:
            yield job
            continue
        left -= 1
        run_dir = Path(script).parent
        progress, sampled = progress_of(folder_of(run_dir, job)), summary(run_dir, job.raw_id)
        yield job.model_copy(update={"progress": progress, "sampled": sampled})


def progress_text(progress: Progress, *, running: bool) -> str:
    """``1200/9000 13% loss 1.23 eta 2h``, and for how long nothing has been heard of a training that runs."""
    total = progress.total_steps
    parts = [f"{progress.step}/{total}" if total else f"step {progress.step}"]
    if progress.share is not None:
        parts.append(f"{int(progress.share * 100)}%")
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.3g}")
    if not running:
        return " ".join(parts)
    if progress.ended is None and progress.age_seconds > _SILENT:
        parts.append(f"silent for {_about(progress.age_seconds)}")
    elif progress.eta_seconds is not None:
        parts.append(f"eta {_about(progress.eta_seconds)}")
    return " ".join(parts)


def _about(seconds: float) -> str:
    """``40s``, ``7m``, ``2h``, ``3d``: rounded, for an estimate says no more."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size * (2 if unit == "d" else 1):
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
