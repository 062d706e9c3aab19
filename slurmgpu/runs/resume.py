"""A run's job submitted once more in the same run directory; and what a probe and a bench submit."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from slurmgpu.errors import PlanError, RunFailed, SlurmGpuError
from slurmgpu.files.trust import text_of
from slurmgpu.models.job import Array, Job, Launch, Restart
from slurmgpu.models.job_parts import SamplerPolicy
from slurmgpu.models.plan import Plan
from slurmgpu.models.run import Run
from slurmgpu.models.units import Duration
from slurmgpu.planning.settled import name_of, restart_of
from slurmgpu.runs.directory import NOTIFY_FILE, EarlierDirectory, contents, notify_text
from slurmgpu.runs.preflight import check_before_submission
from slurmgpu.runs.submit import Submission, submit_in
from slurmgpu.slurm import Slurm

__all__ = [
    "COMMAND",
    "SLURM_SECONDS",
    "as_bench",
    "as_probe",
    "claimed",
    "goes_on",
    "is_sampled",
    "left_out",
    "resubmit",
    "train_settings",
    "with_training_code",
]


_CLAIM = "resume.lock"
_TRAIN_FILE = "train.json"


@contextmanager
def claimed(run_dir: Path) -> Iterator[None]:
    """Hold a run directory, so that two who resume it at once do not both submit.

    By a file that only one can make: that holds on network file systems too, where locks may not.

    Raises:
        SlurmGpuError: somebody else has it; RunFailed when the file cannot be made.
    """
    path = run_dir / _CLAIM
    who = f"process {os.getpid()} on {socket.gethostname()} since {datetime.now().astimezone():%Y-%m-%d %H:%M:%S}"
    try:
        # Not opened again by its name, where the folder's owner may have put a link by then; unbuffered, for a full disk.
        with path.open("xb", buffering=0) as file, suppress(OSError):
            file.write(who.encode())
    except FileExistsError:
        raise SlurmGpuError(
            f"{run_dir} is being resumed already, by {_holder(path)}",
            hint=f"wait for it; if that process is gone, remove {path}",
        ) from None
    except OSError as error:
        raise RunFailed(f"run directory {str(run_dir)!r} cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _holder(path: Path) -> str:
    # In a folder of somebody else's it may be a pipe, which would never end.
    return text_of(path)[:1000] or "a process that has not written its name, or has just ended"


def train_settings(run_dir: Path, task: str, before: Plan, after: Plan) -> dict[str, object] | None:
    """Return what a start would train with: train.json as it is now, with what differs between the plans laid over it.

    ``task`` is an array's task, or ''. None for a job that trains nothing by itself.
    """
    if before.train is None or after.train is None:
        return after.train
    file = run_dir / task / _TRAIN_FILE
    try:
        # A first start that did not come far has left it without the defaults.
        now = before.train | json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return after.train  # no start has come so far
    except (OSError, ValueError) as error:
        raise RunFailed(f"{file} cannot be read: {error}") from None
    return _laid_over(now, before.train, after.train)


def _laid_over(
    now: dict[str, Any], before: Mapping[str, object], after: Mapping[str, object]
) -> dict[str, object]:
    result = dict(now)
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict) and isinstance(now.get(key), dict):
            result[key] = _laid_over(now[key], old, value)
        elif key not in before or value != old:
            result[key] = value
    return {key: value for key, value in result.items() if key in after or key not in before}


def resubmit(
    run_dir: Path,
    run: Run,
    submission: Submission,
    slurm: Slurm,
    environ: Mapping[str, str],
    *,
    anew: tuple[Plan, Job] | None = None,
    tasks: Array | None = None,
) -> tuple[Run, str]:
    """Submit into an earlier run directory; the new record and what Slurm said besides.

    Args:
        run: The record in it.
        anew: The plan of the last submission, and the job that was planned anew; None where the script is the same.
        tasks: The only tasks of an array to start.

    Raises as ``submit_plan``; the run directory is then as it was, unless the outcome is unknown.
    """
    plan = submission.plan
    check_before_submission(plan, submission.folder, environ)
    directory = EarlierDirectory(run_dir, run.token)
    if anew is not None:
        try:
            _write_anew(directory, plan, *anew, submission.script)
        except OSError as error:
            directory.remove()
            raise RunFailed(f"run directory {str(run_dir)!r} cannot be written: {error.strerror}") from None
    options = [] if tasks is None else [f"--array={tasks}"]
    # A log of the user's own naming may be the same file again.
    if (plan.output or plan.error) and plan.option("open-mode") is None:
        options.append("--open-mode=append")
    submission = replace(submission, job_file=run.job_file)
    return submit_in(directory, submission, slurm, environ, earlier=run.as_earlier(), options=options)


def _write_anew(directory: EarlierDirectory, plan: Plan, before: Plan, job: Job, script: str) -> None:
    for name, text in contents(plan, job, script).items():
        directory.write(directory.path / name, text)
    told, settings_of = directory.path / NOTIFY_FILE, notify_text(plan)
    if settings_of or told.exists():
        directory.write(told, settings_of)
    files = [directory.path / _TRAIN_FILE, *directory.path.glob(f"[0-9]*/{_TRAIN_FILE}")]
    for file in files if plan.train is not None else ():
        if file.is_file():
            task = "" if file.parent == directory.path else file.parent.name
            settings = train_settings(directory.path, task, before, plan)
            directory.write(file, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")


_PROBE_SUFFIX = "-probe"
_LONGEST_NAME = 200
"""Bytes that Slurm takes."""
SLURM_SECONDS = 5
"""Between two samples of Slurm's own, where slurmgpu takes none: a probe is short."""


def as_probe(job: Job, minutes: int, policy: SamplerPolicy, slurm_samples: int = 0) -> Job:
    """Return the job as it is probed: another name, a short time, one task of an array, and samples of what it uses.

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
    """Return True if slurmgpu itself samples a probe of the job."""
    return bool(_sample(job, policy))


def _sample(job: Job, policy: SamplerPolicy) -> int | None:
    """Seconds between samples, as few as the site allows; a script runs as it is, without a sampler."""
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


COMMAND = ("python", "-m", "slurmgpu.training.benching")
"""It reads asked.json in its run directory, and writes rows.jsonl there."""
_USUAL = Duration(3600)
_BENCH_SUFFIX = "-bench"
"""Bytes that Slurm takes."""


def as_bench(job: Job, *, tasks: int | None, timed: bool) -> Job:
    """Return the job whose place is measured: what it asks of the cluster and its environment are kept, what it runs is not.

    Nobody is written to, nothing is brought back from the nodes, and it never starts twice. ``tasks``: those that it has on
    a node, by which its CPUs are counted. ``timed``: the time that it asks for was meant for the bench; otherwise it is an
    hour, or less where the job asks for less. PlanError for a job that has no single place.
    """
    if job.components or job.steps or job.script is not None:
        what = "components" if job.components else "steps" if job.steps else "script"
        raise PlanError(
            f"{what}: a bench measures one training, and this job is made of {what}",
            hint="name a job file with train:, or the task itself: slurmgpu bench task task.py:NAME --submit",
        )
    limit = job.resources.time
    time = limit if limit is not None and (timed or limit.exceeds(_USUAL) is False) else _USUAL
    return job.model_copy(
        update={
            "name": name_of(job).encode()[: _LONGEST_NAME - len(_BENCH_SUFFIX)].decode(errors="ignore")
            + _BENCH_SUFFIX,
            "command": COMMAND,
            "train": None,
            "launch": Launch(launcher="plain"),
            "resources": job.resources.model_copy(
                update={"time": time, **({} if tasks is None else {"tasks_per_node": tasks})}
            ),
            "restart": Restart(),
            "array": None,
            "sample": None,
            "profile": None,
            "mail": None,
            "notify": None,
            "output": None,
            "error": None,
            "stage": job.stage.model_copy(update={"out": ()}) if job.stage is not None else None,
        }
    )


def with_training_code(plan: Plan) -> Plan:
    """Return the plan of a job that brings ``slurmgpu.training`` along: it need not be installed where the job runs."""
    return plan.model_copy(update={"own_loop": "slurmgpu bench"})
