"""The failures that are known: one table, a row each; where several rows fit, the first one counts."""

from __future__ import annotations

from ..row import Row
from . import gpus, languages, libraries, machine, programs, ranks, slurm

__all__ = [
    "GENERIC", "NEEDS_SETUP", "NEVER_OF_PYTHON", "NODE_MATTERS", "OF_GPU", "ROWS", "SETUP", "XIDS_OF_HARDWARE", "row_of",
]  # fmt: skip

ROWS: tuple[Row, ...] = tuple(
    row for module in (slurm, ranks, gpus, machine, libraries, programs, languages) for row in module.ROWS
)

GENERIC = "python-exception"
"""The row of any other exception."""

NODE_MATTERS = frozenset((
    "aborted", "bus-error", "connection-refused", "cuda-error", "cudnn", "disk-full", "driver-too-old", "ecc", "environment",
    "gpu-lost", "illegal-access", "illegal-instruction", "image-missing", "io-error", "killed", "memory-error", "module",
    "nccl-error", "nccl-system", "nccl-timeout", "no-gpu", "no-launch", "node-failure", "segfault", "stale-file",
    "watchdog-stuck", "work-folder", "xid",
))  # fmt: skip
"""The failures of which it is worth knowing whether they were on the same node before."""

SETUP = frozenset(("container-mount", "environment", "module", "shell-file", "work-folder"))
"""The failures before the program began, of which a missing module or command is the consequence."""

NEEDS_SETUP = frozenset((
    "command-missing", "compiler", "file-missing", "import-error", "module-missing", "program-missing", "script-missing",
    "shared-library",
))  # fmt: skip
"""The failures that may be the consequence of one before the program began."""

NEVER_OF_PYTHON = frozenset((
    "cublas", "cuda-error", "cudnn", "device-assert", "disk-full", "disk-quota", "ecc", "gpu-lost", "gpu-memory",
    "illegal-access", "io-error", "loader-exited", "loader-killed", "nccl-error", "open-files", "read-only", "stale-file",
))  # fmt: skip
"""The failures that no ValueError or the like is about, whatever words it quotes."""

OF_GPU = frozenset(("cuda-error", "ecc", "gpu-lost", "illegal-access", "nccl-error", "nccl-system"))
"""The failures that a broken GPU causes in a program."""

XIDS_OF_HARDWARE = frozenset((48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140))
"""Errors of the GPU itself, by NVIDIA's list of Xid numbers; others may be old, or the program's own."""

_BY_ID = {row.id: row for row in reversed(ROWS)}


def row_of(name: str) -> Row:
    """Return the first row of an id, which names the most general case."""
    return _BY_ID[name]
