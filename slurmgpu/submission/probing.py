"""What a probe submits: the job as it is, for a short time, and without what only the real run may do."""

from __future__ import annotations

from collections.abc import Iterator

from slurmgpu.errors import PlanError
from slurmgpu.models.job import Job, Restart
from slurmgpu.models.sample import SamplerPolicy
from slurmgpu.models.units import Duration
from slurmgpu.planning.settled import name_of, restart_of

__all__ = ["SLURM_SECONDS", "as_probe", "goes_on", "is_sampled", "left_out"]

_PROBE_SUFFIX = "-probe"
_LONGEST_NAME = 200
"""Bytes that Slurm takes."""
SLURM_SECONDS = 5
"""Between two samples of Slurm's own, where slurmgpu takes none: a probe is short."""


def as_probe(job: Job, minutes: int, policy: SamplerPolicy, slurm_samples: int = 0) -> Job:
    """The job as it is probed: another name, a short time, one task of an array, and samples of what it uses.

    Nothing that the real run keeps is touched: its log files, its results, its trackers; nobody is written to, and it never
    starts twice. ``slurm_samples``: Slurm itself is asked to sample every so many seconds where slurmgpu does not; 0: it is not
    asked. PlanError for a job that cannot be probed.
    """
    if job.components:
        raise PlanError(
            "components: a probe is of one kind of node, and the components of this job differ",
            hint="probe each component as a job of its own, or submit the job and ask slurmgpu report JOB afterwards",
        )
    name = name_of(job).encode()[: _LONGEST_NAME - len(_PROBE_SUFFIX)].decode(errors="ignore") + _PROBE_SUFFIX
    time = Duration(minutes * 60)
    if job.resources.time is not None and time.exceeds(job.resources.time):
        time = job.resources.time
    changed: dict[str, object] = {
        "name": name,
        "resources": job.resources.model_copy(update={"time": time}),
        "restart": Restart(),
        "array": job.array.only(job.array.numbers[:1]) if job.array is not None else None,
        "sample": _sample(job, policy),
        "profile": None,
        "mail": None,
        "notify": None,
        "output": None,
        "error": None,
    }
    if job.train is not None:
        changed["train"] = job.train.model_copy(update={"track": [], "profile": False})
    if job.stage is not None:
        changed["stage"] = job.stage.model_copy(update={"out": ()})
    if slurm_samples and not changed["sample"] and "acctg-freq" not in job.sbatch:
        changed["sbatch"] = {**job.sbatch, "acctg-freq": f"task={slurm_samples}"}
    return job.model_copy(update=changed)


def is_sampled(job: Job, policy: SamplerPolicy) -> bool:
    """Whether slurmgpu itself samples a probe of the job."""
    return bool(_sample(job, policy))


def _sample(job: Job, policy: SamplerPolicy) -> int | None:
    """Seconds between samples, as few as the site allows; a script runs as it is, without a sampler."""
    return None if job.script is not None else False if policy.when == "never" else max(1, policy.least)


def goes_on(job: Job) -> bool:
    """Whether the job itself goes on in another start at its time limit."""
    return "timeout" in restart_of(job)[0].on


def left_out(job: Job) -> Iterator[str]:
    """What of the job its probe does without, in words."""
    if job.array is not None:
        yield f"task {job.array.numbers[0]} of the array runs, and no other"
    if job.stage is not None and job.stage.out:
        yield "no results are brought back from the nodes (stage.out)"
    if job.profile is not None or (job.train is not None and job.train.profile):
        yield "no profiler, which would be measured, too"
    if job.train is not None and job.train.track:
        yield f"nothing goes to {', '.join(job.train.track)}"
    if job.mail is not None or job.notify is not None:
        yield "nobody is written to"
    if job.output is not None or job.error is not None:
        yield "its logs go into the run directory"
