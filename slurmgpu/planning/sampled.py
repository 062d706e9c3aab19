"""Whether a job is sampled as it runs, and how often: as it says, within what its site allows."""

from __future__ import annotations

from slurmgpu.errors import PlanError
from slurmgpu.models.job import Job
from slurmgpu.models.sample import DEFAULT_SECONDS, SamplerPolicy

__all__ = ["sampled"]


def sampled(job: Job, gpus: bool, policy: SamplerPolicy) -> int | None:
    """Seconds between samples; None: none are taken.

    A job that says nothing is sampled if it has GPUs and the site leaves that to the tool; an exact job, which gets nothing
    that it does not name, and one with a script of its own, which runs as it is, are not. PlanError for a job that asks for
    what its site forbids.
    """
    asked = job.sample
    if asked is False or (
        asked is None and (policy.when != "default" or not gpus or job.exact or job.script)
    ):
        return None
    if asked is None:
        return max(DEFAULT_SECONDS, policy.least)
    if policy.when == "never":
        raise PlanError(
            f"sample: {str(asked).lower()}: this site lets no job be sampled (policy.sampler: never)",
            hint="leave sample out",
        )
    seconds = DEFAULT_SECONDS if asked is True else asked
    if asked is not True and seconds < policy.least:
        raise PlanError(
            f"sample: {seconds}: this site allows a sample every {policy.least} s at most (policy.sampler_seconds)",
            hint=f"write sample: {policy.least}, or leave it out",
        )
    return max(seconds, policy.least)
