"""A run's job submitted once more, in the same run directory."""

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

from slurmgpu.errors import RunFailed, SlurmGpuError
from slurmgpu.models.job import Array, Job
from slurmgpu.models.plan import Plan
from slurmgpu.models.run import Run
from slurmgpu.slurm import Slurm
from slurmgpu.submission.preflight import check_before_submission
from slurmgpu.submission.run_directory import NOTIFY_FILE, EarlierDirectory, contents, notify_text
from slurmgpu.submission.submitting import Submission, submit_in

__all__ = ["claimed", "resubmit", "train_settings"]

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
    try:
        return path.read_text(encoding="utf-8") or "a process that has not written its name yet"
    except OSError:
        return "a process that has just ended"


def train_settings(run_dir: Path, task: str, before: Plan, after: Plan) -> dict[str, object] | None:
    """What a start would train with: train.json as it is now, with what differs between the plans laid over it.

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
