"""Jobs that a probe, a bench and a replay submit in place of a user's: quiet, short, and started once."""

from __future__ import annotations

from collections.abc import Iterator

from slurmgpu.errors import PlanError
from slurmgpu.models.job import Job, Launch, Restart
from slurmgpu.models.job_parts import SamplerPolicy
from slurmgpu.models.plan import Option, Plan
from slurmgpu.models.units import Duration
from slurmgpu.planning.settled import name_of, restart_of

__all__ = [
    "COMMAND", "SLURM_SECONDS", "as_bench", "as_probe", "as_replay", "goes_on", "is_sampled", "left_out",
    "with_training_code",
]  # fmt: skip

COMMAND = ("python", "-m", "slurmgpu.training.benching")
"""It reads asked.json in its run directory, and writes rows.jsonl there."""
SLURM_SECONDS = 5
"""Between two samples of Slurm's own, where slurmgpu takes none: a probe is short."""
_USUAL = Duration(3600)
_LONGEST_NAME = 200
"""Bytes that Slurm takes."""
# Of a run's options, what says when it starts, which node it gets, and what else happens: a replay has its own.
_LEFT_OUT = frozenset({
    "job-name", "array", "nodelist", "nodefile", "exclude", "dependency", "begin", "deadline", "requeue", "no-requeue",
    "open-mode", "signal", "mail-type", "mail-user", "hold",
})  # fmt: skip


def _with_suffix(name: str, suffix: str) -> str:
    return name.encode()[: _LONGEST_NAME - len(suffix)].decode(errors="ignore") + suffix


def _quiet(job: Job) -> dict[str, object]:
    """Return what keeps the real run's logs and results, writes to nobody, and starts once."""
    changes: dict[str, object] = dict.fromkeys(("profile", "mail", "notify", "output", "error"))
    if job.stage is not None:
        changes["stage"] = job.stage.model_copy(update={"out": ()})
    return {**changes, "restart": Restart()}


def as_probe(job: Job, minutes: int, policy: SamplerPolicy, slurm_samples: int = 0) -> Job:
    """Return the job as it is probed: another name, a short time, one task of an array, and samples of what it uses.

    ``slurm_samples``: Slurm itself is asked to sample every so many seconds where slurmgpu does not; 0: it is not asked.
    PlanError for a job that cannot be probed.
    """
    if job.components:
        raise PlanError(
            "components: a probe is of one kind of node, and the components of this job differ",
            hint="probe each component as a job of its own, or submit the job and ask slurmgpu report JOB afterwards",
        )
    time = Duration(minutes * 60)
    if job.resources.time is not None and time.exceeds(job.resources.time):
        time = job.resources.time
    sample = _sample(job, policy)
    changes: dict[str, object] = {
        **_quiet(job),
        "name": _with_suffix(name_of(job), "-probe"),
        "resources": job.resources.model_copy(update={"time": time}),
        "array": job.array.only(job.array.numbers[:1]) if job.array is not None else None,
        "sample": sample,
    }
    if job.train is not None:
        changes["train"] = job.train.model_copy(update={"track": [], "profile": False})
    if slurm_samples and not sample and "acctg-freq" not in job.sbatch:
        changes["sbatch"] = {**job.sbatch, "acctg-freq": f"task={slurm_samples}"}
    return job.model_copy(update=changes)


def is_sampled(job: Job, policy: SamplerPolicy) -> bool:
    """Return True if slurmgpu itself samples a probe of the job."""
    return bool(_sample(job, policy))


def _sample(job: Job, policy: SamplerPolicy) -> int | None:
    """Return seconds between samples, as few as the site allows; a script runs as it is, without a sampler."""
    return None if job.script is not None else False if policy.when == "never" else max(1, policy.least)


def goes_on(job: Job) -> bool:
    """Return True if the job itself goes on in another start at its time limit."""
    return "timeout" in restart_of(job)[0].on


def left_out(job: Job) -> Iterator[str]:
    """Yield what of the job its probe does without, in words."""
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


def as_bench(job: Job, *, tasks: int | None, timed: bool) -> Job:
    """Return the job whose place is measured: what it asks of the cluster and its environment are kept, what it runs is not.

    ``tasks``: those that it has on a node, by which its CPUs are counted. ``timed``: the time that it asks for was meant for
    the bench; otherwise it is an hour, or less where the job asks for less. PlanError for a job that has no single place.
    """
    if job.components or job.steps or job.script is not None:
        what = "components" if job.components else "steps" if job.steps else "script"
        raise PlanError(
            f"{what}: a bench measures one training, and this job is made of {what}",
            hint="name a job file with train:, or the task itself: slurmgpu bench task task.py:NAME --submit",
        )
    limit = job.resources.time
    time = limit if limit is not None and (timed or not limit.exceeds(_USUAL)) else _USUAL
    resources = {"time": time} if tasks is None else {"time": time, "tasks_per_node": tasks}
    changes = {
        **_quiet(job),
        "name": _with_suffix(name_of(job), "-bench"),
        "command": COMMAND,
        "launch": Launch(launcher="plain"),
        "resources": job.resources.model_copy(update=resources),
        **dict.fromkeys(("train", "array", "sample")),
    }
    return job.model_copy(update=changes)


def with_training_code(plan: Plan) -> Plan:
    """Return the plan of a job that brings ``slurmgpu.training`` along: it need not be installed where the job runs."""
    return plan.model_copy(update={"own_loop": "slurmgpu bench"})


def as_replay(plan: Plan, nodes: str, until: int) -> Plan:
    """Return the plan of a job that trains again what this one's has trained, on the nodes of this list, up to a step.

    What it asks of the cluster, its environment and its launcher are the run's.
    """
    name = _with_suffix(plan.name, "-replay")
    options = (
        Option.of("job-name", name, "the run's, as a replay"),
        *(option for option in plan.options if option.name not in _LEFT_OUT),
        Option.of("nodelist", nodes, "--on"),
        Option(name="no-requeue", value=None, why="a replay is started once"),
    )
    # A step further: the training's last step is evaluated, and this one perhaps was not.
    own = {"SLURMGPU_MAX_STEPS": str(until + 1), "SLURMGPU_COMPARE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    changes: dict[str, object] = {
        "name": name, "options": options, "variables": {**plan.variables, **own}, "log_folders": (), "restart_on": (),
        "stage": plan.stage.model_copy(update={"out": ()}) if plan.stage is not None else None, "tended": False,
    }  # fmt: skip
    unset = ("output", "error", "restart_limit", "profile", "sample", "notify")
    return plan.model_copy(update={**changes, **dict.fromkeys(unset)})
