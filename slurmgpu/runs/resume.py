"""A run's job submitted once more in the same run directory: who may, what is left to do, and where it goes on."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from slurmgpu.errors import RunFailed, SlurmGpuError
from slurmgpu.files.trust import text_of
from slurmgpu.models.job import Array, Job
from slurmgpu.models.plan import Plan
from slurmgpu.models.run import Run
from slurmgpu.runs.checkpoints import is_done, newest_of_tasks
from slurmgpu.runs.directory import NOTIFY_FILE, EarlierDirectory, contents, notify_text
from slurmgpu.runs.preflight import check_before_submission
from slurmgpu.runs.submit import Submission, submit_in
from slurmgpu.slurm import Slurm

__all__ = ["claimed", "nothing_left", "resubmit", "trained_tasks", "where_it_goes_on"]

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


def trained_tasks(run_dir: Path, tasks: Sequence[str], before: Plan, after: Plan) -> set[str]:
    """Return those of an array's tasks ('' of a job without) whose training would have nothing left to do.

    ``before`` is the plan of the last submission, ``after`` that of the next one.
    """
    newest = newest_of_tasks(run_dir)
    return {
        task for task in tasks if is_done(newest.get(task), _train_settings(run_dir, task, before, after))
    }


def _train_settings(run_dir: Path, task: str, before: Plan, after: Plan) -> dict[str, object]:
    """Return what a start would train with: train.json as it is now, with what differs between the plans laid over it."""
    assert after.train is not None
    if before.train is None:
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
        before, job = anew
        try:
            for name, text in contents(plan, job, submission.script).items():
                directory.write(run_dir / name, text)
            webhook = notify_text(plan)
            if webhook or (run_dir / NOTIFY_FILE).exists():
                directory.write(run_dir / NOTIFY_FILE, webhook)
            files = [run_dir / _TRAIN_FILE, *run_dir.glob(f"[0-9]*/{_TRAIN_FILE}")]
            for file in files if plan.train is not None else ():
                if file.is_file():
                    task = "" if file.parent == run_dir else file.parent.name
                    settings = _train_settings(run_dir, task, before, plan)
                    directory.write(file, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
        except BaseException as error:
            directory.remove()
            if isinstance(error, OSError):
                raise RunFailed(
                    f"run directory {str(run_dir)!r} cannot be written: {error.strerror}"
                ) from None
            raise
    options = [] if tasks is None else [f"--array={tasks}"]
    # A log of the user's own naming may be the same file again.
    if (plan.output or plan.error) and plan.option("open-mode") is None:
        options.append("--open-mode=append")
    submission = replace(submission, job_file=run.job_file)
    return submit_in(directory, submission, slurm, environ, earlier=run.as_earlier(), options=options)


def nothing_left(run_dir: Path, plan: Plan) -> SlurmGpuError:
    """Return the error that says so of a run whose job, or whose array's tasks, are all done."""
    whose = "all tasks of " if plan.option("array") is not None else ""
    if plan.train is None:
        return SlurmGpuError(
            f"nothing is left to do: {whose}{run_dir} has completed",
            hint=f"to run it once more, in a run of its own: slurmgpu submit {run_dir / 'job.yaml'}",
        )
    epochs, steps = plan.train["epochs"], plan.train["max_steps"]
    name, was = ("max_steps", steps) if epochs is None and steps is not None else ("epochs", epochs or 1)
    longer, early = f"--set train.{name}=N (it was {was})", plan.train.get("early_stop")
    if early:
        longer += f", or train.early_stop.patience=N (it was {early['patience']}) after an early stop"
    return SlurmGpuError(
        f"nothing is left to do: the training of {whose}{run_dir} is done",
        hint=f"to train on: slurmgpu resume {run_dir} {longer}",
    )


def where_it_goes_on(run_dir: Path, plan: Plan, tasks: Array | None) -> str:
    """Return where the next start of a run goes on, in words; ``tasks``: the only ones of an array that start."""
    newest = newest_of_tasks(run_dir)
    if tasks is not None:
        which = f"starts {'task' if tasks.tasks == 1 else 'tasks'} {tasks.indices} again"
        return f"{which}, from the newest checkpoint where there is one" if newest else which
    if newest:
        steps = sorted({one.step for one in newest.values()})
        return f"continues from step {' to '.join(map(str, sorted({steps[0], steps[-1]})))}"
    if plan.train is not None:
        return "there is no checkpoint yet: the training starts at its first step"
    return (
        "the command starts again in the same run directory; it continues only if the command itself resumes"
    )
