"""Well-known models of GPU, by the words that sites call their types by."""

import re
from typing import NamedTuple

__all__ = ["GpuModel", "names_a_slice", "well_known"]


class GpuModel(NamedTuple):
    """A model of GPU as it is sold."""

    word: str
    """The word in a type's name that stands for it."""
    memory: int
    """GB; of several sizes the smallest."""
    other_sizes: tuple[int, ...] = ()
    """The other sizes that are sold, in GB."""
    capability: tuple[int, int] | None = None
    """NVIDIA's compute capability; None: it has none (AMD, Intel), or several generations share the name."""


# Compute capabilities: developer.nvidia.com/cuda-gpus. RTX 6000 and RTX 5000 are names of more than one generation.
_MODELS = (
    GpuModel("gh200", 96, (144,), (9, 0)),
    GpuModel("gb200", 186, (), (10, 0)),
    GpuModel("b200", 180, (192,), (10, 0)),
    GpuModel("h200", 141, (), (9, 0)),
    GpuModel("h100", 80, (64, 94, 96), (9, 0)),
    GpuModel("h20", 96, (), (9, 0)),
    GpuModel("a100", 40, (64, 80), (8, 0)),
    GpuModel("a800", 40, (80,), (8, 0)),
    GpuModel("v100", 16, (32,), (7, 0)),
    GpuModel("p100", 12, (16,), (6, 0)),
    GpuModel("l40s", 48, (), (8, 9)),
    GpuModel("l40", 48, (), (8, 9)),
    GpuModel("l4", 24, (), (8, 9)),
    GpuModel("a40", 48, (), (8, 6)),
    GpuModel("a30", 24, (), (8, 0)),
    GpuModel("a10", 24, (), (8, 6)),
    GpuModel("a16", 16, (), (8, 6)),
    GpuModel("a2", 16, (), (8, 6)),
    GpuModel("t4", 16, (), (7, 5)),
    GpuModel("a6000", 48, (), (8, 6)),
    GpuModel("a5000", 24, (), (8, 6)),
    GpuModel("a4000", 16, (), (8, 6)),
    GpuModel("rtx8000", 48, (), (7, 5)),
    GpuModel("rtx6000", 24, (48, 96)),
    GpuModel("rtx5000", 16, (32,)),
    GpuModel("5090", 32, (), (12, 0)),
    GpuModel("4090", 24, (), (8, 9)),
    GpuModel("3090", 24, (), (8, 6)),
    GpuModel("2080", 8, (11,), (7, 5)),
    GpuModel("1080", 8, (11,), (6, 1)),
    GpuModel("k80", 12, (), (3, 7)),
    GpuModel("mi355x", 288),
    GpuModel("mi325x", 256),
    GpuModel("mi300x", 192),
    GpuModel("mi300a", 128),
    GpuModel("mi250x", 64),
    GpuModel("mi250", 64),
    GpuModel("mi210", 64),
    GpuModel("mi100", 32),
    GpuModel("max1550", 128),
    GpuModel("max1100", 48),
)


def well_known(name: str) -> GpuModel | None:
    """Return the model that a type's name stands for (`nvidia_a100_80gb_pcie`, `v100-32`); None: not known."""
    word = re.sub(r"[\s_-]+", "", name.lower())
    for model in _MODELS:
        # `a100` is in `rtxa1000` and `a10` in `a100`: no digit may follow, no letter of a model precede.
        if re.search(rf"(?<![0-9]){model.word}(?!\d)", word):
            return model
    return None


def names_a_slice(name: str) -> bool:
    """Return True if a type's name is, or ends in, that of a MIG profile: `1g.10gb`, `a100_3g.20gb`."""
    profile = r"(?:\A|[^a-z0-9])\dg(?:\.\d+gb(?:\.me|\+me\S*)?)?\Z"
    return "g" in name.lower() and re.search(profile, name.lower()) is not None
