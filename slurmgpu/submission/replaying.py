"""Trains an interval of a run again, on this machine, in a folder of its own; the run itself is only read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from slurmgpu.errors import RunFailed
from slurmgpu.submission.run_directory import copy_entrypoint

__all__ = ["lay_out", "train_again"]

# What another launcher has left in the environment would be taken for this training's.
_LAUNCHERS = ("SLURM_", "SLURMGPU_", "MASTER_", "TORCHELASTIC")
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_NEVER = 10**9


def lay_out(
    scratch: Path, run_dir: Path, settings: Mapping[str, Any], checkpoint: Path | None, until: int
) -> None:
    """Make a run directory that goes on from a checkpoint and saves at step ``until``.

    The settings and the code are copies, the checkpoint a folder of links: a training never writes into a file that is
    there, and what it removes are the links.
    """
    scratch.mkdir(parents=True)
    (scratch / "code").mkdir()
    entrypoint = run_dir / "code" / "slurmgpu_training"
    if entrypoint.is_dir():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(entrypoint, scratch / "code" / "slurmgpu_training", ignore=ignored)
    else:
        copy_entrypoint(scratch / "code")
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
    if checkpoint is not None:
        target = scratch / "checkpoints" / checkpoint.name
        target.mkdir(parents=True)
        shutil.copyfile(checkpoint / "manifest.json", target / "manifest.json")
        for part in checkpoint.iterdir():
            if part.name != "manifest.json":
                (target / part.name).symlink_to(part.absolute())


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
