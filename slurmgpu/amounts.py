"""Amounts in words: what stands in the cells and sentences of reports."""

from __future__ import annotations

__all__ = ["amount", "clock", "count", "duration", "energy", "percent", "short"]


def duration(seconds: int | None) -> str | None:
    """Return seconds as `1-02:03:04` or `02:03:04`, as Slurm writes them."""
    if seconds is None:
        return None
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def clock(seconds: float | None) -> str:
    """A duration as Slurm writes it: `1-02:03:04`."""
    return duration(None if seconds is None else round(seconds)) or "unknown"


def percent(share: float | None) -> str:
    """A share of 1 in percent; below one in a hundred with a digit more."""
    if share is None:
        return "unknown"
    return f"{share * 100:.1f} %" if 0 < share < 0.01 else f"{share * 100:.0f} %"


def short(amount: float) -> str:
    """Bytes in Slurm's own units, powers of 1024, in three digits: `9.1G`."""
    for unit in "KMGT":
        amount /= 1024
        if amount < 999.5 or unit == "T":
            digits = 0 if amount >= 99.5 else 1 if amount >= 9.95 else 2
            text = f"{amount:.{digits}f}"
            return f"{text.rstrip('0').rstrip('.') if '.' in text else text}{unit}"
    raise AssertionError


def energy(joules: float) -> str:
    """In kWh, as bills have it."""
    kwh = joules / 3.6e6
    return f"{kwh:.1f} kWh" if kwh >= 100 else f"{kwh:.3g} kWh"


def amount(number: float) -> str:
    """A number of hours or CPUs, in as many digits as tell something."""
    if 0 < number < 0.005:
        return "<0.01"
    digits = 0 if number >= 100 else 1 if number >= 10 else 2
    text = f"{number:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


def count(number: int, thing: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
