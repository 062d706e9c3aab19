"""Generic resources of a node, and what the names of GPU types say of their memory."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from slurmgpu.models.gpu_models import well_known
from slurmgpu.slurm.describing.words import sound

__all__ = ["NodeGres", "memory_in_name", "read_gres", "well_known_memory"]

_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4, "P": 1024**5}


@dataclass(frozen=True)
class NodeGres:
    """What `Gres=` of a node declares."""

    gpus: int = 0
    types: dict[str, int] = field(default_factory=dict)
    """GPUs by type; empty where they have none."""
    shards: int | None = None
    others: dict[str, int] = field(default_factory=dict)


def read_gres(text: str) -> NodeGres:
    """Read `gpu:a100:8(S:0-1),shard:16,nvme:3500`; a count's K, M, G are powers of 1024.

    Types are counted only where all GPUs have one: a request can then name it.
    """
    counts: dict[tuple[str, str], int] = {}
    for entry in re.sub(r"\([^)]*\)", "", text).split(","):
        parts = [part for part in entry.strip().split(":") if part and part != "no_consume"]
        if not parts or parts[0].startswith("(") or not all(map(sound, parts)):
            continue
        number = re.fullmatch(r"(\d{1,15})([KMGTP]?)B?", parts[-1], re.IGNORECASE) if parts[1:] else None
        count = int(number[1]) * _UNITS[number[2].upper()] if number else 1
        name, *rest = parts[:-1] if number else parts
        key = (name, ":".join(rest))
        counts[key] = counts.get(key, 0) + count
    types = {kind: count for (name, kind), count in counts.items() if name == "gpu" and count}
    others: dict[str, int] = {}
    for (name, _), count in counts.items():
        if name not in {"gpu", "shard"}:
            others[name] = others.get(name, 0) + count
    shards = sum(count for (name, _), count in counts.items() if name == "shard")
    return NodeGres(sum(types.values()), {} if "" in types else types, shards or None, others)


def memory_in_name(name: str) -> int | None:
    """The GB that a type or feature names: 3g.40gb, nvidia_a100_80gb_pcie, v100-32; the last one counts."""
    found = re.findall(r"(\d{1,4})(?:gb|g(?![a-z0-9.]))", name.lower())
    if not found:
        found = re.findall(r"[a-z]\w*-(\d{2,3})$", name.lower())
    return int(found[-1]) if found and 4 <= int(found[-1]) <= 999 else None


def well_known_memory(name: str) -> tuple[int, tuple[int, ...]] | None:
    """The GB of a well-known model by its name, the smallest that is sold, and the other sizes; None: not known."""
    model = well_known(name)
    return (model.memory, model.other_sizes) if model else None
