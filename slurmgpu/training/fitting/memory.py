"""Memory that a process may take, and has taken: torch's on a GPU, the resident set on the CPU.

On a GPU torch's allocator is given the budget as its limit. On the CPU nothing is tried that a control group would end with a
kill, which Slurm counts as a failed job: the limits of the process (``RLIMIT_DATA``) end it with an error before.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
from pathlib import Path
from typing import NamedTuple, Optional, Protocol

import torch

from ..errors import SettingsError
from ..processes.ranks import Ranks
from ..watching.advice import is_full

__all__ = ["Budget", "Memory", "budget_of", "memory_of", "ran_out"]

_NO_LIMIT = 1 << 60
# What is mapped and never touched: arenas and stacks of threads.
_SLACK, _STACK = 256 << 20, 16 << 20
# What torch, oneDNN and C++ say when the machine's memory, or a limit of the process, is used up.
_SIGNS = (
    "can't allocate memory",
    "not enough memory",
    "bad_alloc",
    "Cannot allocate memory",
    "could not create a ",
)


class Budget(NamedTuple):
    """Bytes that a process may have in use at its peak, and of how many, of which device.

    ``address_space``: its limit on the CPU, where there is one, less the head room. ``untouched``: what the training's process
    has mapped besides what it uses: it has threads that a trial has not, such as those that talk to other ranks.
    """

    device: str
    total: int
    bytes: int
    address_space: Optional[int] = None
    untouched: int = 0


def budget_of(device: torch.device, head_room: float, ranks: Ranks) -> Budget:
    """Return what this process may use now: what is free and what it has itself, less the head room."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        own = torch.cuda.memory_reserved(device)
        name = torch.cuda.get_device_name(device)
        return Budget(name, total, max(0, int(free + own - head_room * total)))
    total, free = min([_machine(), *_groups()], key=lambda each: each[1])
    share = int((free - head_room * total) / ranks.local_world_size)
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    limit = None if soft == resource.RLIM_INFINITY else int(soft * (1 - head_room))
    untouched = _untouched(_status())
    return Budget("CPU", total if limit is None else min(total, soft), max(0, share), limit, untouched)


def _machine() -> tuple[int, int]:
    """Bytes of the machine, and those that are free or can be made so."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        raise SettingsError(
            "micro_batch: auto measures memory on a GPU, or on the CPU of Linux: give micro_batch a number here"
        ) from None
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return found["MemTotal"], found["MemAvailable"]


def _groups() -> list[tuple[int, int]]:
    """Limit of each control group that this process is in, and what is free below it."""
    found: list[tuple[int, int]] = []
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, kinds, path = line.split(":", 2)
            if not kinds:
                root, limit, used = Path("/sys/fs/cgroup"), "memory.max", "memory.current"
            elif "memory" in kinds.split(","):
                root, limit, used = (
                    Path("/sys/fs/cgroup/memory"),
                    "memory.limit_in_bytes",
                    "memory.usage_in_bytes",
                )
            else:
                continue
            folder = root / path.lstrip("/")
            for each in (folder, *folder.parents):
                if (each / limit).is_file():
                    found += _group(each, limit, used)
                if each == root:
                    break
    return found


def _group(folder: Path, limit: str, used: str) -> list[tuple[int, int]]:
    text = (folder / limit).read_text(encoding="ascii").strip()
    if not text.isdecimal() or int(text) >= _NO_LIMIT:
        return []
    # Pages of files count as used, and are given up when memory is short.
    lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    stat = {name: int(value) for name, value in (line.split() for line in lines)}
    files = sum(
        stat.get(f"{prefix}inactive_file", 0) + stat.get(f"{prefix}active_file", 0)
        for prefix in ("", "total_")[:1]
    )
    return [(int(text), int(text) - int((folder / used).read_text(encoding="ascii")) + files)]


def ran_out(error: BaseException) -> bool:
    """Return True if this is an error of memory, the GPU's or the machine's."""
    if isinstance(error, MemoryError) or is_full(error):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


class Memory(Protocol):
    """A device's memory, while sizes are tried: ``bytes`` may be in use at the peak."""

    bytes: int

    def begin(self) -> None:
        """Give back what is left of earlier tries, and measure from here on."""

    def peak(self) -> int:
        """Bytes in use at most, since ``begin``."""


def memory_of(device: torch.device, budget: Budget) -> Memory:
    """Return the memory of the device, with the budget as its limit from here on."""
    return _OfGpu(device, budget) if device.type == "cuda" else _OfCpu(budget)


class _OfGpu:
    """Memory that torch's allocator has reserved; beyond the budget it says that memory is full."""

    def __init__(self, device: torch.device, budget: Budget) -> None:
        self._device, self.bytes = device, budget.bytes
        for number in range(torch.cuda.device_count()):  # DataParallel uses all of them
            torch.cuda.set_per_process_memory_fraction(min(1.0, budget.bytes / budget.total), number)

    def begin(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        torch.cuda.synchronize(self._device)  # an error of a kernel belongs to this try
        return torch.cuda.max_memory_reserved(self._device)


class _OfCpu:
    """The resident set of this process, which a limit on what it maps keeps from going far beyond the budget."""

    def __init__(self, budget: Budget) -> None:
        now = _status()
        self.bytes = budget.bytes
        threads = torch.get_num_threads()
        _limit(resource.RLIMIT_DATA, now["VmData"] - now["VmRSS"] + budget.bytes + _SLACK + threads * _STACK)
        if budget.address_space is not None:
            left = budget.address_space - max(budget.untouched, _untouched(now))
            _limit(resource.RLIMIT_AS, left + _untouched(now))
            self.bytes = min(self.bytes, left)

    def begin(self) -> None:
        gc.collect()
        with contextlib.suppress(AttributeError, OSError):  # another C library than glibc keeps what it has
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text(
                "5", encoding="ascii"
            )  # proc(5): the peak is that of now

    def peak(self) -> int:
        return _status()["VmHWM"]


def _untouched(status: dict[str, int]) -> int:
    """Bytes that are mapped and take no memory; a limit on the address space counts them."""
    return status["VmSize"] - status["VmRSS"]


def _limit(kind: int, size: int) -> None:
    soft, hard = resource.getrlimit(kind)
    sizes = [each for each in (size, soft, hard) if each != resource.RLIM_INFINITY]
    resource.setrlimit(kind, (min(sizes), hard))


def _status() -> dict[str, int]:
    """Sizes of this process, in bytes (proc(5), ``/proc/self/status``)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith("Vm")}
