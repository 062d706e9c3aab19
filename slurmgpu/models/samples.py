"""What a job really used: the samples that its nodes wrote beside it, added up; and how far a training is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["GpuSummary", "Progress", "SampleSummary"]


class _Summary(BaseModel):
    """A frozen value; None in it is "not measured", never zero."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class GpuSummary(_Summary):
    """One GPU of a job over the time that was sampled."""

    host: str
    index: int = Field(description="Its number on the host, as the driver counts what the job sees.")
    name: str | None = None
    utilisation_mean: float | None = Field(
        default=None, description="Share of the time in which a kernel ran, 0 to 1 (NVML's utilization.gpu)."
    )
    sm_activity_mean: float | None = Field(
        default=None, description="Share of its SMs that were busy, the mean over time, 0 to 1 (NVML's GPM)."
    )
    memory_peak: int | None = Field(default=None, description="Most memory in use in any sample, bytes.")
    memory_total: int | None = Field(default=None, description="Bytes.")
    power_mean: float | None = Field(default=None, description="Watts.")
    energy: float | None = Field(
        default=None,
        description="Joules, over the time that was sampled: by the GPU's own counter, or power times time.",
    )
    throttled: tuple[str, ...] = Field(
        default=(), description="Why its clock was held down in any sample: power, thermal, hardware."
    )
    xids: tuple[int, ...] = Field(
        default=(), description="NVIDIA's error numbers that the driver reported meanwhile."
    )
    ecc_errors: int | None = Field(default=None, description="Uncorrected memory errors meanwhile.")


class SampleSummary(_Summary):
    """A job's use as its sampler saw it, over all its nodes and starts."""

    seconds: float = Field(description="Time that was sampled; of several nodes, the longest.")
    hosts: int = Field(description="Nodes that wrote samples.")
    gpus: tuple[GpuSummary, ...] = ()
    cpu_cores_mean: float | None = Field(
        default=None, description="CPU time over time, of all nodes together."
    )
    rss_peak: int | None = Field(
        default=None,
        description="Most memory of the job's processes without the page cache, bytes; of the fullest node.",
    )
    read_bytes: int | None = Field(default=None, description="From storage, all nodes together.")
    written_bytes: int | None = Field(default=None, description="To storage, all nodes together.")
    nodes: int | None = Field(
        default=None,
        description="Nodes that the job has; where they are more than hosts, the rest was not sampled.",
    )
    age_seconds: float | None = Field(default=None, description="Since the newest sample.")

    @property
    def gpu_utilisation(self) -> float | None:
        """The mean over those GPUs that were measured, 0 to 1."""
        known = [gpu.utilisation_mean for gpu in self.gpus if gpu.utilisation_mean is not None]
        return sum(known) / len(known) if known else None

    @property
    def sm_activity(self) -> float | None:
        """The mean over its GPUs, 0 to 1; None unless every one of them was measured."""
        known = [gpu.sm_activity_mean for gpu in self.gpus if gpu.sm_activity_mean is not None]
        return sum(known) / len(known) if known and len(known) == len(self.gpus) else None

    @property
    def gpu_memory_peak(self) -> int | None:
        """The most that any GPU's memory held, bytes."""
        return max((gpu.memory_peak for gpu in self.gpus if gpu.memory_peak is not None), default=None)

    @property
    def energy(self) -> float | None:
        """Joules of all GPUs together; None unless every one of them was measured."""
        known = [gpu.energy for gpu in self.gpus if gpu.energy is not None]
        return sum(known) if known and len(known) == len(self.gpus) else None


class Progress(_Summary):
    """How far a training of slurmgpu's own is, by the end of its metrics."""

    step: int
    total_steps: int | None = None
    epoch: int | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    eta_seconds: float | None = Field(
        default=None,
        description="Until its last step, at the pace of the last interval; None where it has ended.",
    )
    age_seconds: float = Field(description="Since the last line was written.")
    data_wait_share: float | None = Field(
        default=None, description="The part of a step spent waiting for a batch, 0 to 1."
    )
    restart: int = Field(default=0, description="Which start wrote it; 0 is the first.")
    ended: str | None = Field(
        default=None, description="Why the start that wrote last has ended, in its own words."
    )

    @property
    def share(self) -> float | None:
        """Steps done of all, 0 to 1."""
        return min(1.0, self.step / self.total_steps) if self.total_steps else None
