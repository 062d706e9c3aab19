"""Generic resources of a node, and what the names of GPU types say of their memory."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from slurmgpu.discovery.words import sound

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


# (a word in the name, GB, other sizes that this model is sold with)
_MODELS: tuple[tuple[str, int, tuple[int, ...]], ...] = (
    ("gh200", 96, (144,)),
    ("gb200", 186, ()),
    ("b200", 180, (192,)),
    ("h200", 141, ()),
    ("h100", 80, (64, 94, 96)),
    ("h20", 96, ()),
    ("a100", 40, (64, 80)),
    ("a800", 40, (80,)),
    ("v100", 16, (32,)),
    ("p100", 12, (16,)),
    ("l40s", 48, ()),
    ("l40", 48, ()),
    ("l4", 24, ()),
    ("a40", 48, ()),
    ("a30", 24, ()),
    ("a10", 24, ()),
    ("a16", 16, ()),
    ("a2", 16, ()),
    ("t4", 16, ()),
    ("a6000", 48, ()),
    ("a5000", 24, ()),
    ("a4000", 16, ()),
    ("rtx8000", 48, ()),
    ("rtx6000", 24, (48, 96)),
    ("rtx5000", 16, (32,)),
    ("5090", 32, ()),
    ("4090", 24, ()),
    ("3090", 24, ()),
    ("2080", 8, (11,)),
    ("1080", 8, (11,)),
    ("k80", 12, ()),
    ("mi355x", 288, ()),
    ("mi325x", 256, ()),
    ("mi300x", 192, ()),
    ("mi300a", 128, ()),
    ("mi250x", 64, ()),
    ("mi250", 64, ()),
    ("mi210", 64, ()),
    ("mi100", 32, ()),
)


def well_known_memory(name: str) -> tuple[int, tuple[int, ...]] | None:
    """The GB of a well-known model by its name, the smallest that is sold, and the other sizes; None: not known."""
    word = re.sub(r"[\s_-]+", "", name.lower())
    for model, smallest, others in _MODELS:
        # `a100` is in `rtxa1000` and `a10` in `a100`: no digit may follow, no letter of a model precede.
        if re.search(rf"(?<![0-9]){model}(?!\d)", word):
            return smallest, others
    return None
