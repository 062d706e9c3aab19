"""Sizes and times in words."""

from __future__ import annotations

__all__ = ["seconds", "size"]


def size(amount: float) -> str:
    """Bytes as GiB or MiB."""
    if amount >= 2**40:
        return f"{amount / 2**40:.1f} TiB"
    return f"{amount / 2**30:.1f} GiB" if amount >= 2**30 else f"{amount / 2**20:.0f} MiB"


def seconds(amount: float) -> str:
    """Seconds as s, ms or µs."""
    if amount >= 1:
        return f"{amount:.1f} s"
    return f"{amount * 1e3:.1f} ms" if amount >= 1e-3 else f"{amount * 1e6:.0f} µs"
