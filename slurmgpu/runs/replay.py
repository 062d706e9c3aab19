"""Train an interval of a run again, in a run directory of its own: on this machine, or as a job."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from slurmgpu.errors import RunFailed
from slurmgpu.models.job import Job
from slurmgpu.models.run import Run
from slurmgpu.runs.directory import copy_entrypoint, new_run_directory
from slurmgpu.runs.preflight import check_before_submission
from slurmgpu.runs.submit import Submission, submit_in
from slurmgpu.slurm import Slurm
from slurmgpu.training.formats.checkpoint import CHECKPOINTS, MANIFEST, step_folder
from slurmgpu.training.formats.run_files import COMPARE_FILE, COMPARED_FILE
from slurmgpu.training.formats.settings import TRAIN_SCHEMA

__all__ = ["compared", "folder_of_job", "lay_out", "link_parts", "submit_again", "train_again"]

# What another launcher has left in the environment would be taken for this training's.
_LAUNCHERS = ("SLURM_", "SLURMGPU_", "MASTER_", "TORCHELASTIC")
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_NEVER = 10**9
_AGAINST = "against"


def folder_of_job(run_dir: Path) -> Path | None:
    """Return the folder with the run's plan: its own, or of an array's task the one above; None where there is none."""
    return next((one for one in (run_dir, run_dir.parent) if (one / "plan.json").exists()), None)


def lay_out(
    folder: Path,
    run_dir: Path,
    settings: Mapping[str, Any],
    checkpoints: Mapping[str, Path],
    until: int,
    put: Callable[[str, str], object],
) -> None:
    """Fill a run directory that goes on from a run's checkpoint and saves at step ``until``.

    The settings and the code are copies; ``checkpoints``, by where they are to lie, are folders of the links that ``put``
    makes: a training never writes into a file that is there, and what it removes are the links.
    """
    code = folder / "code" / "slurmgpu_training"
    # Of an array's task, it lies beside the tasks' folders.
    found = (one / "code" / "slurmgpu_training" for one in (run_dir, run_dir.parent))
    entrypoint = next(filter(Path.is_dir, found), None)
    if entrypoint is not None:
        shutil.rmtree(code, ignore_errors=True)
        shutil.copytree(entrypoint, code, ignore=shutil.ignore_patterns("__pycache__"))
    elif not code.is_dir():
        copy_entrypoint(code.parent)
    # What the steps compute stays as it is; one checkpoint, at the end of the interval, and nobody else is told.
    own = {
        "checkpoint_every": _NEVER, "checkpoint_steps": _NEVER, "keep_every": until, "keep": 3, "resume": True,
        "sanity": False, "profile": False, "track": [], "stop_margin": 0.0,
    }  # fmt: skip
    # Earlier versions do not know these.
    newer = ("checkpoint_shared_steps", "checkpoint_node_folder", "verify_steps")
    unset = {name: None for name in newer if name in settings}
    document = {"schema": TRAIN_SCHEMA, **settings, **own, **unset}
    (folder / "train.json").write_text(json.dumps(document))
    for place, source in checkpoints.items():
        shutil.copytree(source, folder / place, copy_function=put)


def link_or_copy(source: str, target: str) -> None:
    """Make a hard link, or a copy: on another file system, one without such links, or of somebody else's file."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def link_parts(source: str, target: str) -> None:
    """Make a symbolic link to a part of a checkpoint; what lists parts is copied."""
    if source.endswith(".json"):
        shutil.copyfile(source, target)
    else:
        Path(target).symlink_to(Path(source).absolute())


def submit_again(
    submission: Submission,
    job: Job,
    runs: Path,
    slurm: Slurm,
    *,
    run_dir: Path,
    settings: Mapping[str, Any],
    checkpoint: Path | None,
    until: int,
    against: Sequence[Path],
) -> Run:
    """Submit a replay from a new run directory in the folder ``runs``; errors as ``submit_plan``.

    The job may see nothing but its own run directory, in a container, and so the checkpoints that it begins with and is
    held against are there as hard links, or as copies where the file system has none of these.
    """
    check_before_submission(submission.plan, submission.folder, os.environ)
    directory = new_run_directory(runs, submission.plan, job, submission.script)
    others = {f"{_AGAINST}/{number}": other for number, other in enumerate(against)}
    begin = {} if checkpoint is None else {f"{CHECKPOINTS}/{checkpoint.name}": checkpoint}
    try:
        lay_out(directory.path, run_dir, settings, {**begin, **others}, until, link_or_copy)
        (directory.path / COMPARE_FILE).write_text(json.dumps({"step": until, "with": list(others)}))
    except BaseException as error:
        directory.remove()
        if isinstance(error, OSError):
            raise RunFailed(f"{directory.path} cannot be written: {error.strerror}") from None
        raise
    return submit_in(directory, submission, slurm, os.environ)[0]


def compared(replayed: Path) -> list[dict[str, Any]] | None:
    """Return how the job's checkpoint compares with each that it was held against; None where the job has not said."""
    try:
        found = json.loads((replayed / COMPARED_FILE).read_bytes())["found"]
        return [found[name] for name in sorted(found, key=lambda name: int(name.rpartition("/")[2]))]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def train_again(
    python: str, scratch: Path, work_dir: Path, processes: int, until: int, environ: Mapping[str, str]
) -> None:
    """Train in ``scratch`` until its checkpoint of step ``until`` counts; RunFailed, in its own words, if it ends before."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kept = {
        key: value for key, value in environ.items() if not key.startswith(_LAUNCHERS) and key not in _RANKS
    }
    given = {
        **kept,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(scratch / "code"), environ.get("PYTHONPATH")])),
        "SLURMGPU_RUN_DIR": str(scratch),
        # Its task may lie in the run directory.
        "PYTHONDONTWRITEBYTECODE": "1",
        # A step further: the training's last step is evaluated, and this one perhaps was not.
        "SLURMGPU_MAX_STEPS": str(until + 1),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
    }
    log = scratch / "log"
    done = step_folder(scratch / CHECKPOINTS, until) / MANIFEST
    started: list[subprocess.Popen[bytes]] = []
    try:
        with log.open("wb") as file:
            for rank in range(processes):
                environment = {**given, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                started.append(_start(python, work_dir, environment, file))
        while not done.exists() and any(one.poll() is None for one in started):
            if any(one.poll() for one in started):
                time.sleep(2)  # the others say why, too
                break
            time.sleep(0.05)
    except OSError as error:
        raise RunFailed(f"{python} cannot be started: {error.strerror}") from None
    finally:
        for one in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
    if not done.exists():
        words = log.read_text(errors="replace").strip().splitlines()[-5:]
        raise RunFailed("the replay ended before its last step: " + " / ".join(words))


def _start(
    python: str, work_dir: Path, environment: Mapping[str, str], log: IO[bytes]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [python, "-m", "slurmgpu_training"],
        cwd=work_dir,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
