"""Failures that are provoked for real: what a task does, and what is to be said of it.

Each is a shell script; ``python NAME`` in it runs the program of that name in `PROGRAMS`. None needs a network or a GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ruamel.yaml import YAML

__all__ = ["FAULTS", "PROGRAMS", "Fault"]


class Fault(NamedTuple):
    """One way to fail."""

    does: str
    kind: str
    says: str
    """What must stand in the sentence."""
    ranks: tuple[int | None, ...] = (None,)
    """Any of these is right."""
    root: bool = False
    """Whether it needs a file system of its own, which an ordinary user may not mount."""


# Two processes of one task, each with its rank, as a launcher starts them; the task ends as rank 0 does.
_RANKS = """
export MASTER_ADDR=127.0.0.1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)); export MASTER_PORT
RANK=0 LOCAL_RANK=0 python {program} & first=$!
RANK=1 LOCAL_RANK=1 python {program} & wait $first; code=$?; wait; exit $code
"""
_SMALL = 'unshare -m bash -c \'mount -t tmpfs -o "$0" none mnt && cd mnt && exec "$@"\' '
FAULTS = {
    "no-command": Fault("nvidia-smj --query", "command-missing", "nvidia-smj"),
    "not-executable": Fault("echo 'echo hello' >tool; ./tool", "not-executable", "./tool"),
    "windows-script": Fault(
        "printf '#!/bin/bash\\r\\necho hello\\r\\n' >dos.sh; chmod +x dos.sh; ./dos.sh",
        "not-executable",
        "dos.sh",
    ),
    "no-script": Fault("exec python training.py", "script-missing", "training.py"),
    "syntax": Fault("exec python syntax.py", "syntax", "was never closed"),
    "arguments": Fault("exec python arguments.py --learning-rate 3", "arguments", "--learning-rate"),
    "no-module": Fault("exec python no_module.py", "module-missing", "lightning_fabric_x"),
    "shadowed": Fault("exec python shadowed/train.py", "import-error", "shadowed/random.py"),
    "shadowed-later": Fault("exec python shadowed_later/train.py", "import-error", "statistics has no fmean"),
    "no-file": Fault("exec python no_file.py", "file-missing", "data/train.bin"),
    "broken-link": Fault(
        "ln -sf /nowhere/weights.pt weights.pt; exec python broken_link.py", "file-missing", "weights.pt"
    ),
    "no-permission": Fault("exec python no_permission.py", "permission", "secret.bin"),
    "disk-full": Fault("exec python disk_full.py /dev/full", "disk-full", "no room left"),
    "small-disk": Fault(
        f'mkdir -p mnt; exec {_SMALL} size=64k python "$PWD/disk_full.py" big.bin',
        "disk-full",
        "no room left",
        root=True,
    ),
    "no-inode": Fault(
        f'mkdir -p mnt; exec {_SMALL} nr_inodes=8 python "$PWD/no_inode.py"',
        "disk-full",
        "no inode",
        root=True,
    ),
    "file-size": Fault("ulimit -f 64; exec python disk_full.py big.bin", "file-size", "larger than"),
    "open-files": Fault("ulimit -n 40; exec python open_files.py", "open-files", "open"),
    "no-process": Fault("exec python no_process.py", "processes", "process or thread"),
    "no-thread": Fault("exec python no_thread.py", "processes", "process or thread"),
    "memory-error": Fault("ulimit -v 400000; exec python memory_error.py", "cpu-memory", "memory was full"),
    "segfault": Fault("python segfault.py", "segfault", "segmentation fault"),
    "bus-error": Fault("python bus_error.py", "bus-error", "bus error"),
    "aborted": Fault("python aborted.py", "aborted", "SIGABRT"),
    "killed": Fault("exec python killed.py", "killed", "SIGKILL"),
    "exit-code": Fault("exec python exit_code.py", "not-known", "exit code 7"),
    "timed-out": Fault("exec timeout 1 sleep 60", "not-known", "exit code 124"),
    "port": Fault("exec python port.py", "port-in-use", "in use"),
    "refused": Fault("exec python refused.py", "connection-refused", "nobody answered"),
    "no-host": Fault("exec python no_host.py", "unknown-address", "could not be resolved"),
    "json": Fault("exec python config.py", "not-parsed", "JSON: Expecting property name"),
    "assertion": Fault("exec python assertion.py", "assertion", "batch size"),
    "exception": Fault(
        "exec python exception.py", "python-exception", "KeyError: 'labels' (exception.py, line 2)"
    ),
    "spawn": Fault("exec python spawn.py", "pickling", "lambda"),
    "cut-pickle": Fault("exec python cut_pickle.py", "checkpoint-broken", "not whole"),
    # With PyTorch, which takes a second to import.
    "cpu-build": Fault("exec python cpu_build.py", "cpu-build", "CPUs"),
    "cut-checkpoint": Fault("exec python cut_checkpoint.py", "checkpoint-broken", "not whole"),
    "other-model": Fault("exec python other_model.py", "state-dict", "size mismatch for weight"),
    "shapes": Fault("exec python shapes.py", "shape", "mat1 and mat2"),
    "dtypes": Fault("exec python dtypes.py", "dtype", "same dtype"),
    "not-finite": Fault("exec python not_finite.py", "not-finite", "SqrtBackward0"),
    "loader-killed": Fault("exec python loader.py kill", "loader-killed", "Killed"),
    "small-shm": Fault(
        "exec unshare -m bash -c 'mount -t tmpfs -o size=64k none /dev/shm && exec python loader.py shm'",
        "shm",
        "/dev/shm",
        root=True,
    ),
    "class-index": Fault("exec python class_index.py", "class-index", "7"),
    "not-started": Fault("exec python not_started.py", "not-initialised", "RANK"),
    "store": Fault("exec python store.py", "store-timeout", "1 of 2"),
    "barrier": Fault(_RANKS.format(program="barrier.py"), "monitored-barrier", "rank 1 did not come", (1,)),
    "collective": Fault(_RANKS.format(program="collective.py"), "gloo-timeout", "waited 20000 ms"),
    "unused": Fault(_RANKS.format(program="unused.py"), "unused-parameters", "no part in the loss", (0, 1)),
}

PROGRAMS: dict[str, str] = YAML(typ="safe").load(
    (Path(__file__).parents[1] / "data" / "provoked_programs.yaml").read_text(encoding="utf-8")
)
