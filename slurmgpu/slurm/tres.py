"""GPUs in Slurm's lists of resources, in every release's spelling."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache

__all__ = ["GpuCount", "gpus_of_job", "read_gpus"]


@dataclass(frozen=True)
class GpuCount:
    """A number of GPUs; `types` counts those whose type is named."""

    count: int
    types: dict[str, int] = field(default_factory=dict)

    def __mul__(self, factor: int) -> GpuCount:
        return GpuCount(self.count * factor, {name: n * factor for name, n in self.types.items()})


# gres/gpu=2  gres/gpu:a100=2 | gpu:2 (20.11)  gres:gpu:a100:2 (21.08)  gres/gpu:a100:2 (23.11) | gpu: 1
_ENTRY = re.compile(r"(?:gres[/:])?gpu(?:[:=](?P<rest>.*))?", re.ASCII | re.DOTALL)


@lru_cache(maxsize=4096)
def read_gpus(text: str) -> GpuCount | None:
    """Count the GPUs in a list of TRES or GRES; None when it names none.

    Slurm lists the total and each type (`gres/gpu=2,gres/gpu:a100=2`), or the types alone: the total counts
    if it is there, otherwise the sum of the types.
    """
    total: int | None = None
    types: dict[str, int] = {}
    # "(S:0-1)" and "(IDX:0,2)" after an entry say which sockets or devices; the comma in it ends no entry.
    for entry in re.sub(r"\([^)]*\)", "", text).split(","):
        match = _ENTRY.fullmatch(entry.strip())
        if not match:
            continue
        name, number = _type_and_number(match["rest"])
        if number is None:
            continue
        if name:
            types[name] = types.get(name, 0) + number
        else:
            total = (total or 0) + number
    if total is None and not types:
        return None
    return GpuCount(sum(types.values()) if total is None else total, types)


def _type_and_number(rest: str | None) -> tuple[str, int | None]:
    if not rest:
        return "", 1
    parts = re.split(r"[:=]", rest)
    last = parts[-1]
    if last.isascii() and last.isdigit():
        return ":".join(parts[:-1]), int(last) if len(last) < 10 else None
    return rest, 1


@lru_cache(maxsize=4096)
def gpus_of_job(
    allocated: str, per_job: str = "", per_node: str = "", nodes: int | None = None
) -> GpuCount | None:
    """Count a job's GPUs from what squeue says of it.

    `allocated` (tres-alloc; the request while the job waits) has them where the site accounts for GPUs;
    elsewhere the request is all there is. Zero when everything is known and no GPU is in it.
    """
    found = read_gpus(allocated) or read_gpus(per_job)
    if found:
        return found
    node = read_gpus(per_node)
    if node:
        return node * nodes if nodes else None
    return GpuCount(0) if "cpu=" in allocated else None
