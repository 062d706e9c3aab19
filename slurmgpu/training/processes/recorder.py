"""torch's flight recorder: the last collectives of each rank, written into the run directory when one does not end."""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from pathlib import Path

import torch

from .ranks import Ranks

__all__ = ["prepare", "write_collectives"]

_KEPT = "2000"  # collectives of each rank, as torch keeps by itself from 2.8 on or a little later
_OLD_NAMES = {
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
}
"""Of the variables before torch 2.8; newer ones warn of them."""


def prepare(environment: MutableMapping[str, str]) -> None:
    """Have NCCL's collectives recorded, and written into the run directory by torch itself when one times out.

    What the user has set stays. Must come before the process group: torch looks once.
    """
    wanted = {"TORCH_FR_BUFFER_SIZE": _KEPT}
    run_dir = environment.get("SLURMGPU_RUN_DIR")
    if run_dir and os.path.isdir(run_dir):  # noqa: PTH112
        folder = Path(run_dir, "debug")
        try:
            folder.mkdir(exist_ok=True)
            wanted["TORCH_FR_DUMP_TEMP_FILE"] = str(folder / _begin(environment))
        except OSError:
            pass
    for name, value in wanted.items():
        old = _OLD_NAMES[name]
        if old not in environment:
            environment.setdefault(name if _version() >= (2, 8) else old, value)
    environment.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")


def write_collectives(run_dir: Path, ranks: Ranks) -> None:
    """The last collectives of this rank into the run directory: NCCL's, else gloo's; nothing where torch has no recorder.

    OSError when it cannot be written.
    """
    library = getattr(torch._C, "_distributed_c10d", None)
    dump = getattr(library, "_dump_nccl_trace" if torch.cuda.is_available() else "_dump_fr_trace", None)
    if dump is None or ranks.world_size == 1:
        return
    folder = run_dir / "debug"
    folder.mkdir(exist_ok=True)
    (folder / f"{_begin(os.environ)}{ranks.rank}").write_bytes(dump())


def _begin(environment: MutableMapping[str, str]) -> str:
    """Return what the names of this start's dumps begin with; slurmgpu's reader of failures looks for it."""
    job, restart = environment.get("SLURM_JOB_ID") or "0", environment.get("SLURM_RESTART_COUNT") or "0"
    return f"flight-{job}.{restart}-rank-"


def _version() -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
