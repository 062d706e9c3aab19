"""What the tasks of a step are bound to, and how they are spread: values of srun's options, as srun(1) lists them."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Annotated, NamedTuple

from slurmgpu.models.base import TEXT, Checked, Hinted

__all__ = ["CpuBind", "Distribution", "GpuBind", "Hint", "MemBind", "entries", "gpus_of_a_task"]

_NUMBER, _MASK = r"(?:0x[0-9a-fA-F]+|\d+)", r"(?:0x)?[0-9a-fA-F]+"
_TIMES = r"(?:\*[1-9]\d*)?"


class _Words(NamedTuple):
    """What an option takes: words that say how it reports, then one that says what it does."""

    option: str
    before: tuple[str, ...]
    alone: tuple[str, ...]
    listed: dict[str, str]
    """Before a colon; and what each entry of the list behind it looks like."""
    counted: tuple[str, ...]
    """Before a colon; a number follows."""
    say: str

    def check(self, value: str) -> str:
        """The value; Hinted for one that the manual does not have."""
        *before, last = _parts(value)
        wrong = next((word for word in before if word not in self.before), None)
        if wrong is None and not self._is_known(last):
            wrong = last
        if wrong is None:
            return value
        name = wrong.partition(":")[0]
        close = get_close_matches(name, (*self.alone, *self.listed, *self.counted, *self.before), 1, 0.6)
        raise Hinted(
            f"{wrong!r} is not a value of --{self.option}",
            hint=(f"did you mean {close[0]}? " if close and close[0] != name else "") + f"write {self.say}",
        )

    def _is_known(self, word: str) -> bool:
        name, colon, behind = word.partition(":")
        if not colon:
            return word in self.alone or word in self.before
        entry = self.listed.get(name)
        if entry is not None:
            return re.fullmatch(f"{entry}{_TIMES}(?:,{entry}{_TIMES})*", behind) is not None
        return name in self.counted and re.fullmatch(r"[1-9]\d*", behind) is not None


def _parts(value: str) -> list[str]:
    """``verbose,map_cpu:0,1``: the words before the one that says what to do, and that one with its list."""
    place = value.rfind(",", 0, value.find(":") if ":" in value else len(value))
    return [*(value[:place].split(",") if place >= 0 else []), value[place + 1 :]]


_CPU = _Words(
    "cpu-bind",
    ("quiet", "q", "verbose", "v"),
    ("none", "no", "sockets", "cores", "threads", "ldoms", "rank", "rank_ldom"),
    {"map_cpu": _NUMBER, "mask_cpu": _MASK, "map_ldom": _NUMBER, "mask_ldom": _MASK},
    (),
    "none, sockets, cores, threads, ldoms or rank_ldom, or a list with an entry for each task of a node: "
    "map_cpu:0,8,16,24 or mask_cpu:0xff,0xff00",
)
_GPU = _Words(
    "gpu-bind",
    ("verbose",),
    ("closest", "none"),
    {"map_gpu": _NUMBER, "mask_gpu": _MASK},
    ("single", "per_task"),
    "none, closest, single:1 (tasks of a GPU), per_task:1 (GPUs of a task), or a list with an entry for each task of a "
    "node: map_gpu:0,1,2,3",
)
_MEM = _Words(
    "mem-bind",
    ("quiet", "q", "verbose", "v", "prefer", "p"),
    ("none", "no", "local", "rank"),
    {"map_mem": _NUMBER, "mask_mem": _MASK},
    (),
    "none or local, or a list with an entry for each task of a node: map_mem:0,1,2,3",
)
_HINT = _Words(
    "hint",
    (),
    ("compute_bound", "memory_bound", "multithread", "nomultithread"),
    {},
    (),
    "compute_bound, memory_bound, multithread or nomultithread",
)


def _distribution(value: str) -> str:
    first, then = r"(?:\*|block|cyclic|arbitrary)", r"(?:\*|block|cyclic|fcyclic)"
    if re.fullmatch(rf"plane=[1-9]\d*|{first}(?::{then}){{0,2}}(?:,(?:[Nn]o)?[Pp]ack)?|(?:No)?Pack", value):
        return value
    raise Hinted(
        f"{value!r} is not a value of --distribution",
        hint="write how tasks go to nodes, and after a colon how they go to the sockets there, each block or cyclic: "
        "block, cyclic, block:cyclic; or plane=4",
    )


CpuBind = Annotated[str, Checked(*TEXT, _CPU.check)]
GpuBind = Annotated[str, Checked(*TEXT, _GPU.check)]
MemBind = Annotated[str, Checked(*TEXT, _MEM.check)]
Hint = Annotated[str, Checked(*TEXT, _HINT.check)]
Distribution = Annotated[str, Checked(*TEXT, _distribution)]


def _list(value: str) -> list[tuple[str, int]]:
    """The entries of a list, each with how often it is repeated."""
    found = re.search(r"(?:map|mask)_\w+:(.*)", value)
    parts = [entry.partition("*") for entry in found[1].split(",")] if found else []
    return [(entry, int(times or 1)) for entry, _, times in parts]


def entries(value: str) -> int | None:
    """For how many tasks of a node a list has entries; None where the value is no list."""
    listed = _list(value)
    return sum(times for _, times in listed) if listed else None


def gpus_of_a_task(value: str) -> int | None:
    """How many GPUs a binding leaves each task, the most of any; None where it does not say."""
    kind, _, behind = _parts(value)[-1].partition(":")
    if kind == "per_task":
        return int(behind)
    if kind in ("single", "map_gpu"):
        return 1
    return max(bin(int(entry, 16)).count("1") for entry, _ in _list(value)) if kind == "mask_gpu" else None
