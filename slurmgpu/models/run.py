"""A submission and what is known of its jobs: states, statuses, what they used, how far they are."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from functools import lru_cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "EXIT_CODE_FILE",
    "RUN_FILE",
    "SUBMITIT_FOLDER",
    "GpuSummary",
    "JobState",
    "JobStatus",
    "JobUse",
    "LiveUse",
    "Progress",
    "Run",
    "SampleSummary",
    "Submitted",
]


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
    """Progress of a training of slurmgpu's own, by the end of its metrics."""

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


RUN_FILE = "run.json"
"""The name of a Run's file in its run directory."""

EXIT_CODE_FILE = "exit_code."
"""With the job's plain number behind it: what a script writes into its run directory at its end."""

SUBMITIT_FOLDER = "submitit"
"""submitit's folder in a run directory: pickles, results, and a log of each task."""


class JobState(str, Enum):
    """A job's state in one vocabulary, whatever release and command it was read from.

    Slurm's passing flags are folded into what they mean for the user (RESIZING is RUNNING, STAGE_OUT is
    COMPLETING); the original text stays in `JobStatus.state_text`.
    """

    PENDING = "PENDING"
    CONFIGURING = "CONFIGURING"
    RUNNING = "RUNNING"
    COMPLETING = "COMPLETING"
    SUSPENDED = "SUSPENDED"
    REQUEUED = "REQUEUED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    CANCELLED = "CANCELLED"
    PREEMPTED = "PREEMPTED"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    REVOKED = "REVOKED"
    UNKNOWN = "UNKNOWN"

    @classmethod
    def parse(cls, text: str) -> JobState:
        """Read a state as Slurm prints it: long, compact, or with words after it (`CANCELLED by 0`).

        Blank and unheard-of texts are UNKNOWN: what is missing is never success.
        """
        return _parsed(text)

    @property
    def is_final(self) -> bool:
        """True if nothing of the job runs any more; never true for COMPLETING, whose processes may live."""
        return self in _FINAL

    @property
    def is_waiting(self) -> bool:
        """True if the job holds no nodes yet (or no longer) and is to run later."""
        return self in (JobState.PENDING, JobState.REQUEUED)


_FINAL = frozenset(JobState(name) for name in (
    "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE",
    "REVOKED",
))  # fmt: skip

# Compact codes and passing flags, from the "JOB STATE CODES" of squeue's and sacct's manual pages.
_ALIASES = {
    JobState.PENDING: "PD RESV_DEL_HOLD RD REQUEUE_FED RF",
    JobState.CONFIGURING: "CF POWER_UP_NODE",
    JobState.RUNNING: "R RESIZING RS SIGNALING SI EXPEDITING",
    JobState.COMPLETING: "CG STAGE_OUT SO UPDATE_DB",
    JobState.SUSPENDED: "S STOPPED ST",
    JobState.REQUEUED: "RQ REQUEUE_HOLD RH SPECIAL_EXIT SE",
    JobState.COMPLETED: "CD",
    JobState.FAILED: "F LAUNCH_FAILED LF RECONFIG_FAIL",
    JobState.TIMEOUT: "TO",
    JobState.CANCELLED: "CA",
    JobState.PREEMPTED: "PR",
    JobState.NODE_FAIL: "NF",
    JobState.OUT_OF_MEMORY: "OOM",
    JobState.BOOT_FAIL: "BF",
    JobState.DEADLINE: "DL",
    JobState.REVOKED: "RV",
}
_STATES = {state.value: state for state in JobState} | {
    alias: state for state, aliases in _ALIASES.items() for alias in aliases.split()
}


@lru_cache(maxsize=1024)
def _parsed(text: str) -> JobState:
    words = text.split()
    return _STATES.get(words[0].rstrip("+").upper(), JobState.UNKNOWN) if words else JobState.UNKNOWN


class _Record(BaseModel):
    # Built when first used: a table of 10,000 jobs needs neither checks nor JSON.
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)


class LiveUse(_Record):
    """Current use of a running job, as `sstat` samples it on the nodes."""

    max_rss: int | None = Field(default=None, description="Largest resident set of any task so far, bytes.")
    cpu_seconds: float | None = Field(default=None, description="CPU time of all tasks so far, seconds.")
    average_cpus: float | None = Field(default=None, description="CPU time over elapsed time: CPUs in use.")


class JobUse(_Record):
    """Use of an ended job, as `sacct` keeps it; None where Slurm did not measure."""

    max_rss: int | None = Field(default=None, description="Largest resident set of any task, bytes.")
    cpu_seconds: float | None = Field(default=None, description="CPU time of all tasks, seconds.")
    average_cpus: float | None = Field(default=None, description="CPU time over elapsed time: CPUs in use.")
    gpu_memory: int | None = Field(default=None, description="Largest GPU memory of any task, bytes.")


class JobStatus(_Record):
    """One job, array task or component of a heterogeneous job, as Slurm reports it.

    Durations are seconds, sizes bytes, times aware datetimes in UTC. None means that Slurm did not say.
    """

    job_id: str = Field(description="The id as Slurm shows it: `112`, `112_3`, `112_[0-4%2]`, `113+0`.")
    raw_id: int | None = Field(default=None, description="The plain number behind it.")
    array_job_id: int | None = None
    array_tasks: str | None = Field(default=None, description="`3`, or `[0-4%2]` of tasks that still wait.")
    cluster: str | None = None
    name: str = ""
    user: str | None = None
    state: JobState
    state_text: str = Field(default="", description="The state in Slurm's own words.")
    reason: str | None = Field(default=None, description="Slurm's reason, as it is.")
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    gpus: int | None = None
    gpu_types: dict[str, int] = Field(default_factory=dict)
    nodes: int | None = None
    cpus: int | None = None
    node_list: str | None = None
    elapsed: int | None = None
    limit: int | Literal["UNLIMITED"] | None = None
    time_left: int | None = None
    submit: datetime | None = None
    expected_start: datetime | None = Field(default=None, description="While it waits: Slurm's estimate.")
    start: datetime | None = None
    end: datetime | None = None
    restarts: int | None = None
    exit_code: int | None = None
    exit_code_cut: bool = Field(
        default=False,
        description="Whether 128 may be missing from exit_code: older releases of sacct leave them out.",
    )
    signal: int | None = None
    derived_exit_code: int | None = Field(
        default=None, description="The highest exit code of its steps; 128 + N for signal N."
    )
    dependency: str | None = Field(
        default=None, description="What it still waits for: `afterok:12(unfulfilled)`."
    )
    stdout: str | None = None
    stderr: str | None = None
    work_dir: str | None = None
    script: str | None = Field(default=None, description="The script's path, where Slurm still knows it.")
    submit_line: str | None = None
    live: LiveUse | None = None
    used: JobUse | None = Field(default=None, description="Asked for jobs that are named, and with --live.")
    cause: str | None = Field(
        default=None, description="What failed first, as its script has found it at its end."
    )
    progress: Progress | None = Field(
        default=None,
        description="How far a training of slurmgpu's own is, by its metrics; of array tasks, each.",
    )
    sampled: SampleSummary | None = Field(
        default=None,
        description="What the job's sampler saw on its nodes: of running jobs, and of ended ones that are named.",
    )
    source: Literal["squeue", "sacct", "squeue+sacct", "run.json", "none"]

    @classmethod
    def told(cls, values: dict[str, object]) -> JobStatus:
        """Return a record of what a reader of Slurm's text has made: of the model's own types, and not checked once more.

        A queue may have 100,000 rows. `values` has every field that has no default.
        """
        job = cls.__new__(cls)
        job.__setstate__(
            {
                "__dict__": {**_UNTOLD, "gpu_types": {}, **values},
                "__pydantic_fields_set__": _TOLD,
                "__pydantic_extra__": None,
                "__pydantic_private__": None,
            }
        )
        return job


_UNTOLD: dict[str, object] = {
    name: one.default
    for name, one in JobStatus.model_fields.items()
    if not one.is_required() and one.default_factory is None
}
# One for all records: what a reader leaves out, Slurm did not say.
_TOLD = set(JobStatus.model_fields)


class Submitted(_Record):
    """One submission of a run's job that another has followed."""

    job_id: int | None = None
    cluster: str | None = None
    submitted_at: datetime
    argv: list[str] = Field(description="The sbatch command, word by word.")
    script_sha256: str
    stdout: str | None = None
    stderr: str | None = None


class Run(_Record):
    """A run's newest submission, and those before it, as `run.json` in its run directory records them."""

    schema_: Literal["slurmgpu.run/1"] = Field(default="slurmgpu.run/1", alias="schema")
    name: str
    token: str = Field(description="What makes this submission unlike any other; part of the folder's name.")
    cluster: str | None = Field(
        default=None, description="Where it was sent to, as far as this machine's files tell."
    )
    job_id: int | None = None
    state: Literal["submitting", "submitted", "unknown", "not submitted"] = Field(
        description="`submitting` is written before sbatch is called, so no accident goes unrecorded; "
        "`not submitted` where Slurm had no such job later on."
    )
    submitted_at: datetime
    argv: list[str] = Field(description="The sbatch command, word by word.")
    script_sha256: str
    run_dir: str
    script: str = Field(default="script.sbatch", description="Relative to run_dir.")
    stdout: str | None = Field(default=None, description="The pattern, with Slurm's own `%j` and the like.")
    stderr: str | None = None
    steps: list[str] = Field(
        default_factory=list, description="Those that run side by side, each with a log beside the job's."
    )
    job_file: str | None = Field(
        default=None,
        description="The job file that it was made of, as an absolute path; null where there was none.",
    )
    probe: bool = Field(
        default=False, description="Whether it is a probe: a part of a job, stopped on purpose."
    )
    slurmgpu_version: str
    earlier: list[Submitted] = Field(
        default_factory=list, description="What was submitted before, oldest first."
    )

    def as_of(self, number: int) -> Run:
        """Return the record as it was when this job was the newest; unchanged where the job is none of the earlier ones."""
        index = next((i for i, one in enumerate(self.earlier) if one.job_id == number), None)
        if index is None:
            return self
        then = {name: getattr(self.earlier[index], name) for name in Submitted.model_fields}
        return self.model_copy(update={**then, "state": "submitted", "earlier": self.earlier[:index]})

    def as_earlier(self) -> list[Submitted]:
        """Return the history that a further submission begins with: every one so far that led to a job."""
        if self.job_id is None:
            return self.earlier
        return [*self.earlier, Submitted(**{name: getattr(self, name) for name in Submitted.model_fields})]

    @property
    def job_ids(self) -> list[int]:
        """Its jobs, the newest first, then those before it, oldest first."""
        numbers = (self.job_id, *(one.job_id for one in self.earlier))
        return [number for number in numbers if number is not None]

    @property
    def script_path(self) -> str:
        """The script's whole path, by which Slurm finds the job again."""
        return f"{self.run_dir.rstrip('/')}/{self.script}"

    def to_json(self) -> str:
        """Return the text of run.json."""
        return self.model_dump_json(by_alias=True, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Run:
        """Read the text of run.json (pydantic's ValidationError when it is not one)."""
        return cls.model_validate_json(text)
