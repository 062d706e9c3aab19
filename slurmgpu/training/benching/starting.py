"""Processes that a bench starts: they meet as those of ``srun`` do, end with it, and leave no folder behind.

``python -m slurmgpu_training.benching.starting PARENT MODULE`` runs a module as long as the process PARENT lives: a bench that is
killed can end nobody, and what it tries would train without end. Linux ends it (prctl(2), PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Optional

from .timing import given_by_slurm

__all__ = ["Place", "end", "end_with_parent", "own_folder", "run_folder", "start"]


_PREFIX = "slurmgpu-bench-"
_LOCK = "lock"


@contextlib.contextmanager
def own_folder(where: Optional[str] = None) -> Iterator[str]:
    """A new folder below ``where`` (None: that of temporary files), first of all without what killed benches have left there.

    OSError where none can be made.
    """
    _sweep(Path(where or tempfile.gettempdir()))
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX, dir=where) as folder,
        Path(folder, _LOCK).open("wb") as lock,
    ):
        # It goes with the process, however that ends; the number of a process means nothing in another container.
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder


def _sweep(where: Path) -> None:
    with contextlib.suppress(OSError):
        for folder in where.glob(f"{_PREFIX}*"):
            if folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.getuid():
                _remove_left(folder)


def _remove_left(folder: Path) -> None:
    with contextlib.suppress(OSError), Path(folder, _LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)


_PR_SET_PDEATHSIG = 1


def end_with_parent(number: int) -> None:
    """Get this signal when the parent ends; nothing but on Linux."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


_PATIENCE_WITH_SRUN = 60.0
_LONGEST_FOLDER = 70
"""Characters: the sockets that processes make below it have at most 108."""


class Place(NamedTuple):
    """Where the processes run; ``seconds`` and ``patience`` are for whoever watches them."""

    folder: Path
    """In which the task's file is: what the training calls its work folder."""
    processes: int
    nodes: int = 1
    threads: int = 1
    """CPU threads of each process."""
    suffix: str = ""
    """Suffix of a node's name for the cluster's fast network."""
    seconds: float = 8.0
    """Seconds of measuring, after the steps that do not count."""
    patience: float = 300.0
    """Seconds until the next step has to be done."""
    gpus: Optional[int] = None
    """GPUs that a process sees, the first so many; None: all of them."""


def run_folder(place: Place) -> contextlib.AbstractContextManager[str]:
    """A run directory for processes that are started there: of a job of several nodes in its own, which all of them see."""
    return own_folder(os.environ.get("SLURMGPU_RUN_DIR") if place.nodes > 1 else None)


def start(
    module: str, run: str, place: Place, output: int, variables: Optional[Mapping[str, str]] = None
) -> list[subprocess.Popen[bytes]]:
    """Start the module once for each process, with ``run`` as its run directory and its output in the open file."""
    known = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SLURM_")},
        "SLURMGPU_RUN_DIR": run, "OMP_NUM_THREADS": str(place.threads), **(variables or {}),
    }  # fmt: skip
    if place.nodes == 1 and len(run) < _LONGEST_FOLDER:
        known["TMPDIR"] = run  # what a killed process leaves behind goes with the try
    if place.gpus is not None:
        known["CUDA_VISIBLE_DEVICES"] = _first(place.gpus)
    if place.nodes > 1:
        each = place.processes // place.nodes
        srun = [
            "srun",
            f"--nodes={place.nodes}",
            f"--ntasks={place.processes}",
            f"--ntasks-per-node={each}",
            *_cpus(each, place.threads),
            "--kill-on-bad-exit=1",
            "--overlap",
        ]
        known = {
            **os.environ,
            **known,
            **_meeting(_address(os.environ.get("SLURMD_NODENAME", ""), place.suffix)),
        }
        return [
            subprocess.Popen(
                [*srun, sys.executable, "-m", module],
                env=known, cwd=place.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )
        ]  # fmt: skip
    known.update(_meeting("127.0.0.1"), SLURM_NTASKS=str(place.processes))
    return [
        subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.starting", str(os.getpid()), module],
            env={**known, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            cwd=place.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,  # so that its loader's workers end with it
        )
        for rank in range(place.processes)
    ]  # fmt: skip


def _first(gpus: int) -> str:
    """Return the first of those GPUs that there are for us."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = given.split(",") if given else [str(number) for number in range(gpus)]
    return ",".join(names[:gpus])


def _address(node: str, suffix: str) -> str:
    """By which the other nodes reach this one: its name, or what Slurm calls it where no name service knows that."""
    try:
        socket.getaddrinfo(node + suffix, None)
    except OSError:
        asked = ["scontrol", "show", "node", node]
        told = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60).stdout
        found = re.search(r"NodeAddr=(\S+)", told)
        return found[1] if found else node + suffix
    return node + suffix


def _cpus(processes: int, threads: int) -> list[str]:
    """Have processes share CPUs where the job has fewer on a node, as those that torchrun starts would."""
    given = given_by_slurm()
    return (
        [f"--cpus-per-task={threads}"] if given is None or processes * threads <= given else ["--overcommit"]
    )


def _meeting(address: str) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("", 0))
        return {"MASTER_ADDR": address, "MASTER_PORT": str(free.getsockname()[1])}


def end(started: list[subprocess.Popen[bytes]], place: Place) -> None:
    """End them, and wait for that."""
    for each in started:
        if each.poll() is None and place.nodes > 1:
            each.terminate()  # srun ends its processes on all nodes; killed, it would leave them
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(_PATIENCE_WITH_SRUN)
        if each.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
    for each in started:
        each.wait()


if __name__ == "__main__":
    _, parent, module = sys.argv
    end_with_parent(signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("whoever started this has ended already")
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
