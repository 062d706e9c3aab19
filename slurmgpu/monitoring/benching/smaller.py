"""Whether a GPU with less memory than the one that was measured would do, by what the cluster's profile says of its types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from slurmgpu.models.cluster import Cluster
from slurmgpu.models.gpu_models import well_known
from slurmgpu.monitoring.json_rows import positive
from slurmgpu.monitoring.reporting.wording import short

__all__ = ["Kind", "kinds_in", "kinds_of", "would_do"]

_HEAD_ROOM = 1.3
"""Of what tensors use: the allocator holds more than these."""
_CONTEXT = 1 << 30
"""Bytes: CUDA itself and NCCL's buffers, which torch does not count."""
_SMALLER = 0.9
"""Of the memory that was measured: two GPUs of 80 GB differ a little in what they report."""
_BF16 = (8, 0)


class Kind(NamedTuple):
    """A type of GPU of the cluster."""

    name: str
    bytes: float
    doubt: str | None
    """Why its memory is a guess; None: it is stated."""
    bf16: bool | None
    """Whether it computes in bf16; None: not known."""


def kinds_of(cluster: Cluster) -> list[Kind]:
    """The types of GPU that jobs can get, by a profile: of a type without stated memory that of the model as it is sold."""
    there = {kind.gpu_type for part in cluster.partitions.values() for kind in part.kinds if kind.gpu_type}
    found = []
    for name in sorted(there or set(cluster.gpu_types)):
        known = cluster.gpu_types.get(name)
        model = well_known(known.gres or name if known else name)
        keys = ("gpu_types", f"gpu_types.{name}", f"gpu_types.{name}.memory")
        doubt = next((cluster.guessed[key] for key in keys if key in cluster.guessed), None)
        bf16 = None if model is None or model.capability is None else model.capability >= _BF16
        if known is not None and known.memory is not None:
            found.append(Kind(name, known.memory.mib * float(1 << 20), doubt, bf16))
        elif model is not None:
            found.append(Kind(name, float(model.memory << 30), f"{model.word} is sold with so much", bf16))
    return found


def kinds_in(value: object) -> Iterator[Kind]:
    """The same, read from the row that a bench wrote; what is none is passed over."""
    for one in value if isinstance(value, list) else []:
        if not isinstance(one, Mapping) or (memory := positive(one.get("bytes"))) is None:
            continue
        doubt, bf16 = one.get("doubt"), one.get("bf16")
        yield Kind(
            str(one.get("name")),
            memory,
            None if doubt is None else str(doubt),
            bf16 if isinstance(bf16, bool) else None,
        )


def would_do(kinds: Sequence[Kind], peak: float, total: float, *, bf16: bool) -> str | None:
    """A sentence that names the smallest type that holds the peak with head room; None where there is none.

    ``peak`` and ``total``: bytes of tensors at the peak of one process, and of the GPU that was measured. ``bf16``: the training
    computes in it. A type whose memory is only guessed is named where no other suffices, and then as a hint.
    """
    enough = [
        one
        for one in sorted(kinds, key=lambda one: (one.bytes, one.name))
        if _HEAD_ROOM * peak + _CONTEXT <= one.bytes < _SMALLER * total and not (bf16 and one.bf16 is False)
    ]
    said = f"memory {short(peak)} of {short(total)}"
    for one in enough:
        if one.doubt is None:
            return f"{said}: a smaller GPU would do, as {one.name} ({short(one.bytes)})"
    for one in enough:
        return f"{said}: a smaller GPU may do, as {one.name}, if it has {short(one.bytes)}, which is a guess ({one.doubt})"
    return None
