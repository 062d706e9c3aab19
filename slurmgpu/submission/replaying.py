"""Trains an interval of a run again, on this machine or as a job, in a folder of its own; the run itself is only read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from slurmgpu.errors import RunFailed
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Option, Plan
from slurmgpu.models.run import Run
from slurmgpu.slurm import Slurm
from slurmgpu.submission.preflight import check_before_submission
from slurmgpu.submission.run_directory import copy_entrypoint, new_run_directory
from slurmgpu.submission.submitting import Submission, submit_in

__all__ = ["Again", "as_replay", "compared", "folder_of_job", "lay_out", "submit_again", "train_again"]

# What another launcher has left in the environment would be taken for this training's.
_LAUNCHERS = ("SLURM_", "SLURMGPU_", "MASTER_", "TORCHELASTIC")
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_NEVER = 10**9
_AGAINST = "against"


# Of a run's options, what says when it starts, which node it gets, and what else happens: a replay has its own.
_LEFT_OUT = frozenset({
    "job-name", "array", "nodelist", "nodefile", "exclude", "dependency", "begin", "deadline", "requeue", "no-requeue",
    "open-mode", "signal", "mail-type", "mail-user", "hold",
})  # fmt: skip
_SUFFIX = "-replay"
_LONGEST_NAME = 200
"""Bytes that Slurm takes."""


@dataclass(frozen=True)
class Again:
    """What is trained again: an interval of a run, from a checkpoint (None: from the beginning) to a step."""

    run_dir: Path
    settings: Mapping[str, Any]
    checkpoint: Path | None
    until: int
    against: Sequence[Path]
    """The checkpoints that the one at its end is held against."""
    processes: int
    threads: int | None
    """Of each process, where the run's are known."""


def folder_of_job(run_dir: Path) -> Path | None:
    """The folder with the run's plan: its own, or of an array's task the one above; None where there is none."""
    return next((one for one in (run_dir, run_dir.parent) if (one / "plan.json").exists()), None)


def lay_out(
    scratch: Path, run_dir: Path, settings: Mapping[str, Any], checkpoint: Path | None, until: int
) -> None:
    """Make a run directory that goes on from a checkpoint and saves at step ``until``.

    The settings and the code are copies, the checkpoint a folder of links: a training never writes into a file that is
    there, and what it removes are the links.
    """
    scratch.mkdir(parents=True)
    _fill(scratch, run_dir, settings, until)
    if checkpoint is not None:
        target = scratch / "checkpoints" / checkpoint.name
        target.mkdir(parents=True)
        shutil.copyfile(checkpoint / "manifest.json", target / "manifest.json")
        for part in checkpoint.iterdir():
            if part.name != "manifest.json":
                (target / part.name).symlink_to(part.absolute())


def _fill(scratch: Path, run_dir: Path, settings: Mapping[str, Any], until: int) -> None:
    """The code of the run, and its settings but for what is saved and told."""
    code = scratch / "code" / "slurmgpu_training"
    # Of an array's task, it lies beside the tasks' folders.
    found = (one / "code" / "slurmgpu_training" for one in (run_dir, run_dir.parent))
    entrypoint = next(filter(Path.is_dir, found), None)
    if entrypoint is not None:
        shutil.rmtree(code, ignore_errors=True)
        shutil.copytree(entrypoint, code, ignore=shutil.ignore_patterns("__pycache__"))
    elif not code.is_dir():
        code.parent.mkdir(exist_ok=True)
        copy_entrypoint(code.parent)
    # What the steps compute stays as it is; one checkpoint, at the end of the interval, and nobody else is told.
    own = {
        "checkpoint_every": _NEVER, "checkpoint_steps": _NEVER, "keep_every": until, "keep": 3, "resume": True,
        "sanity": False, "profile": False, "track": [], "stop_margin": 0.0,
    }  # fmt: skip
    # Earlier versions do not know these.
    unkept = {
        name: None
        for name in ("checkpoint_shared_steps", "checkpoint_node_folder", "verify_steps")
        if name in settings
    }
    (scratch / "train.json").write_text(
        json.dumps({"schema": "slurmgpu.train/1", **settings, **own, **unkept})
    )


def as_replay(plan: Plan, nodes: str, until: int) -> Plan:
    """The plan of a job that trains again what this one's has trained, on the nodes of this list, up to a step.

    What it asks of the cluster, its environment and its launcher are the run's; nobody is written to, nothing is brought
    back from the nodes, and it never starts twice.
    """
    name = plan.name.encode()[: _LONGEST_NAME - len(_SUFFIX)].decode(errors="ignore") + _SUFFIX
    kept = (option for option in plan.options if option.name not in _LEFT_OUT)
    options = (
        Option.of("job-name", name, "the run's, as a replay"),
        *kept,
        Option.of("nodelist", nodes, "--on"),
        Option(name="no-requeue", value=None, why="a replay is started once"),
    )
    return plan.model_copy(
        update={
            "name": name,
            "options": options,
            # A step further: the training's last step is evaluated, and this one perhaps was not.
            "variables": {
                **plan.variables,
                "SLURMGPU_MAX_STEPS": str(until + 1),
                "SLURMGPU_COMPARE": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            "stage": plan.stage.model_copy(update={"out": ()}) if plan.stage is not None else None,
            "output": None,
            "error": None,
            "log_folders": (),
            "restart_limit": None,
            "restart_on": (),
            "tended": False,
            "profile": None,
            "sample": None,
            "notify": None,
        }
    )


def submit_again(
    again: Again, submission: Submission, job: Job, runs: Path, slurm: Slurm, environ: Mapping[str, str]
) -> Run:
    """Submit a replay from a new run directory in the folder ``runs``; errors as ``submit_plan``.

    The job may see nothing but its own run directory, in a container, and so the checkpoints are there as hard links, or as
    copies where the file system has none of these.
    """
    check_before_submission(submission.plan, submission.folder, environ)
    directory = new_run_directory(runs, submission.plan, job, submission.script)
    try:
        _fill(directory.path, again.run_dir, again.settings, again.until)
        if again.checkpoint is not None:
            _link(again.checkpoint, directory.path / "checkpoints" / again.checkpoint.name)
        for number, other in enumerate(again.against):
            _link(other, directory.path / _AGAINST / str(number))
        asked = {"step": again.until, "with": [f"{_AGAINST}/{each}" for each in range(len(again.against))]}
        (directory.path / "compare.json").write_text(json.dumps(asked))
    except OSError as error:
        directory.remove()
        raise RunFailed(f"{directory.path} cannot be written: {error.strerror}") from None
    except BaseException:
        directory.remove()
        raise
    return submit_in(directory, submission, slurm, environ)[0]


def compared(replayed: Path) -> list[dict[str, Any]] | None:
    """How the job's checkpoint compares with each that it was held against; None where the job has not told."""
    try:
        found = json.loads((replayed / "compared.json").read_bytes())["found"]
        return [found[name] for name in sorted(found, key=lambda name: int(name.rpartition("/")[2]))]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _link(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=_link_file)


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without such links, or somebody else's file
        shutil.copyfile(source, target)


def train_again(
    python: str,
    scratch: Path,
    work_dir: Path,
    processes: int,
    until: int,
    environ: Mapping[str, str],
) -> None:
    """Train in ``scratch`` until its checkpoint of step ``until`` counts.

    Raises:
        RunFailed: it ended before, in its own words.
    """
    kept = {
        key: value for key, value in environ.items() if not key.startswith(_LAUNCHERS) and key not in _RANKS
    }
    path = os.pathsep.join(filter(None, [str(scratch / "code"), environ.get("PYTHONPATH")]))
    given = {
        **kept,
        "PYTHONPATH": path,
        "SLURMGPU_RUN_DIR": str(scratch),
        # Its task may lie in the run directory.
        "PYTHONDONTWRITEBYTECODE": "1",
        # A step further: the training's last step is evaluated, and this one perhaps was not.
        "SLURMGPU_MAX_STEPS": str(until + 1),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
    }
    log = scratch / "log"
    done = scratch / "checkpoints" / f"step-{until}" / "manifest.json"
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
