"""The GPUs that Slurm gave this node, against those that torch sees: a GPU job must not train on the CPU unnoticed."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import torch

from ..errors import TrainingError
from .ranks import Ranks

__all__ = ["check", "require_one_each", "visible"]

_HIDING = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_DEVICE = re.compile(r"\d|GPU-|MIG-")
_ASK_THE_DRIVER = (
    "look at nvidia-smi in a job on this node; if it fails, tell the site, and leave the node out (--exclude)"
)
_WHICH_TORCH = "https://pytorch.org/get-started/locally"


def visible() -> int:
    """Return how many GPUs torch can use in this process."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def check(
    ranks: Ranks,
    environment: Mapping[str, str],
    say: Callable[[str], None],
    *,
    how_on_cpu: str,
    one_each: bool = False,
) -> None:
    """Refuse to go on where torch sees fewer GPUs than Slurm gave.

    Where an empty CUDA_VISIBLE_DEVICES hides them, that is on purpose: it is said, and no more.

    Args:
        how_on_cpu: How to ask for the CPU all the same.
        one_each: Also refuse fewer GPUs than there are processes on the node.

    Raises:
        TrainingError: with what torch is built for, the driver, and what to do; rank 0 raises at once, and the
            others later, when the launcher has had the time to end them: one message is enough.
    """
    given = _given(environment)
    if not given or _pretended(environment):
        return
    # Empty, -1, or a word such as Slurm's NoDevFiles: then no GPU at all is shown.
    off = [f"{name}={environment[name]}" for name in _counting() if _shown(environment.get(name, "0")) == 0]
    if off:
        if ranks.first and not _local(environment):
            say(f"note: {off[0]} hides this node's GPUs (Slurm gave {given}): this runs on the CPU")
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen = visible()
    said = [str(each.message) for each in caught]  # torch says why it sees none, once in a process
    try:
        if seen < _expected(given, environment) and not _is_part_of_a_gpu(seen):
            raise TrainingError(_missing(given, seen, said, environment, how_on_cpu))
        if one_each and seen:
            require_one_each(ranks, seen)
    except TrainingError:
        if not ranks.first:
            time.sleep(15 if ranks.local_rank == 0 else 20)
        raise


def require_one_each(ranks: Ranks, seen: int) -> None:
    """Refuse fewer GPUs than processes on a node, unless each has its own: two would share one without a word."""
    if seen < ranks.local_world_size and not (seen == 1 and ranks.own_gpu):
        raise TrainingError(
            f"local rank {ranks.local_rank} of {ranks.local_world_size} sees {seen} GPU(s) "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}): "
            "start one process per GPU, and ask for GPUs by node, not by task"
        )


def _given(environment: Mapping[str, str]) -> int:
    """GPUs of this step on this node; 0 where Slurm names none.

    Steps without GPUs inherit SLURM_JOB_GPUS from the batch script, so it counts only outside of steps.
    """
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_SHARDS_ON_NODE"):
        text = environment.get(name, "")
        if text.isdecimal():
            return int(text) if name == "SLURM_GPUS_ON_NODE" else min(1, int(text))
    names = ["SLURM_STEP_GPUS", *([] if "SLURM_STEP_ID" in environment else ["SLURM_JOB_GPUS"])]
    return next((_length(environment[name]) for name in names if environment.get(name)), 0)


def _length(text: str) -> int:
    """Return how many devices a list names, such as ``0,2-3`` or ``MIG-...,MIG-...``."""
    count = 0
    for part in filter(None, (each.strip() for each in text.split(","))):
        span = re.fullmatch(r"(\d+)-(\d+)", part)
        count += int(span[2]) - int(span[1]) + 1 if span else 1
    return count


def _counting() -> tuple[str, ...]:
    """Return the variables by which GPUs are hidden from this torch."""
    return _HIDING if torch.version.hip else _HIDING[:1]


def _shown(value: str) -> int:
    """Return how many GPUs a value shows: CUDA reads numbers and UUIDs up to the first that is neither."""
    devices = [each.strip() for each in value.split(",")]
    return next((n for n, each in enumerate(devices) if not _DEVICE.match(each)), len(devices))


def _expected(given: int, environment: Mapping[str, str]) -> int:
    """Return what torch should see: a task may be bound to some of its node's GPUs, and a user may pick some."""
    named = [_shown(environment[name]) for name in _counting() if environment.get(name)]
    return min([given, *named])


def _is_part_of_a_gpu(seen: int) -> bool:
    """Return True if what torch sees is a part of a GPU (MIG): a process can use one of them, however many it has."""
    return seen == 1 and " MIG " in torch.cuda.get_device_name(0)


def _pretended(environment: Mapping[str, str]) -> bool:
    """Return True if this is a job in a sandbox, whose GPUs are symlinks to /dev/null beside its slurm.conf."""
    conf = environment.get("SLURM_CONF", "")
    return bool(conf) and os.path.realpath(Path(conf).parent / "gpu" / "gpu0") == os.devnull


def _local(environment: Mapping[str, str]) -> bool:
    """Return True if this is ``slurmgpu run`` or ``train`` on this machine, and not a job of Slurm's."""
    return environment.get("SLURMGPU_LOCAL_JOB", "") == environment.get("SLURM_JOB_ID", "none")


def _missing(
    given: int, seen: int, said: Sequence[str], environment: Mapping[str, str], how_on_cpu: str
) -> str:
    slurm = [
        f"{name}={environment[name]}"
        for name in ("SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", *_HIDING)
        if name in environment
    ]
    driver = _Driver.here()
    why, what_next = _why_fewer(said) if seen else _why_none(driver, said)
    giver = "Slurm gave this node"
    if _local(environment):
        giver, how_on_cpu = "this local run was given", f"the option --cpu, or {how_on_cpu}"
    return (
        f"{giver} {given} GPU(s), and torch sees {seen or 'none'}: {why}\n"
        f"  torch: {torch.__version__} in {sys.executable}, built for {_built_for()}\n"
        f"  driver: {driver}\n"
        f"  Slurm: {', '.join(slurm)}\n"
        f"  next: {what_next}; to train on the CPU all the same: {how_on_cpu}"
    )


def _built_for() -> str:
    if torch.version.cuda or torch.version.hip:
        return f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    if getattr(torch.version, "xpu", None):
        return "Intel GPUs, which the training entrypoint does not use (torch.version.cuda is None)"
    return "the CPU only (torch.version.cuda is None)"


class _Driver(NamedTuple):
    """Facts of this node about its GPUs' driver."""

    nvidia: Optional[str]
    """NVIDIA's version, from its kernel module."""
    cuda: Optional[tuple[int, int]]
    """The newest CUDA it can do, from its library, which a container must be given."""
    amd: bool

    @classmethod
    def here(cls) -> _Driver:
        try:
            text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
        except OSError:
            text = ""
        found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
        return cls(found[1] if found else None, _newest_cuda(), Path("/dev/kfd").exists())

    def __str__(self) -> str:
        words = [f"NVIDIA {self.nvidia}"] if self.nvidia else []
        if self.cuda:
            words.append("for CUDA up to {}.{}".format(*self.cuda))
        elif self.nvidia:
            words.append("its library libcuda.so.1 cannot be loaded")
        words += ["AMD"] if self.amd else []
        return ", ".join(words) or (
            "none found (no /proc/driver/nvidia/version, no libcuda.so.1, no /dev/kfd)"
        )


def _newest_cuda() -> Optional[tuple[int, int]]:
    try:
        version = ctypes.c_int()
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed or not version.value else (version.value // 1000, version.value % 1000 // 10)


def _why_none(driver: _Driver, said: Sequence[str]) -> tuple[str, str]:
    """Return what is wrong, as far as it is known, and what to do about it."""
    other = f"use an environment whose torch is built for {{}}: {_WHICH_TORCH}"
    kind = "ROCm" if driver.amd else f"CUDA {driver.cuda[0]}" if driver.cuda else "CUDA"
    nvidia = driver.nvidia is not None or driver.cuda is not None
    if not (torch.version.cuda or torch.version.hip):
        return "this torch is built without CUDA", other.format(kind)
    if torch.version.hip and nvidia:
        return "this torch is built for AMD's GPUs, and the node's are NVIDIA's", other.format(kind)
    if torch.version.cuda and driver.amd and not nvidia:
        return "this torch is built for NVIDIA's GPUs, and the node's are AMD's", other.format(kind)
    if torch.version.hip:
        return (
            _torchs_words(said),
            "look at rocm-smi, and at /dev/kfd and /dev/dri, in a job with this environment",
        )
    if driver.cuda and driver.cuda[0] < int(str(torch.version.cuda).split(".")[0]):
        return "the node's driver is too old for this torch", other.format(kind)
    if nvidia and not driver.cuda:
        return (
            "the driver's library is not to be found: a container was not given the node's driver, "
            "or LD_LIBRARY_PATH leads past it",
            "with a container of your own making, start it with its GPU option (--nv with Apptainer)",
        )
    if not nvidia:
        return "this node shows no driver", _ASK_THE_DRIVER
    return _torchs_words(said), _ASK_THE_DRIVER


def _why_fewer(said: Sequence[str]) -> tuple[str, str]:
    return (
        _torchs_words(said, "some are hidden, or out of order"),
        "look at nvidia-smi (AMD: rocm-smi) in a job on this node; if it shows fewer, too, tell the site, "
        "and leave the node out (--exclude)",
    )


def _torchs_words(said: Sequence[str], otherwise: str = "torch does not say why") -> str:
    words = [re.sub(r"\s*\(?Triggered internally.*", "", each, flags=re.DOTALL) for each in said]
    return f"torch says: {' '.join(words[-1].split())}" if words else otherwise
