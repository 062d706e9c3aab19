"""Amounts in words: counts, bytes, shares, energy, lengths of time."""

from __future__ import annotations

from datetime import datetime

__all__ = [
    "about", "amount", "bytes_text", "clock", "count", "duration", "energy", "memory_text", "percent", "short", "size_text",
    "span", "time_of_day",
]  # fmt: skip


def duration(seconds: int | None) -> str | None:
    """Return seconds as `1-02:03:04` or `02:03:04`, as Slurm writes them."""
    if seconds is None:
        return None
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def clock(seconds: float | None) -> str:
    """Return a duration as Slurm writes it: `1-02:03:04`."""
    return duration(None if seconds is None else round(seconds)) or "unknown"


def percent(share: float | None) -> str:
    """Return a share of 1 in percent; below one in a hundred with a digit more."""
    if share is None:
        return "unknown"
    return f"{share * 100:.1f} %" if 0 < share < 0.01 else f"{share * 100:.0f} %"


def short(amount: float) -> str:
    """Return bytes in Slurm's own units, powers of 1024, in three digits: `9.1G`."""
    for unit in "KMGT":
        amount /= 1024
        if amount < 999.5 or unit == "T":
            digits = 0 if amount >= 99.5 else 1 if amount >= 9.95 else 2
            text = f"{amount:.{digits}f}"
            return f"{text.rstrip('0').rstrip('.') if '.' in text else text}{unit}"
    raise AssertionError


def energy(joules: float) -> str:
    """Return joules as kWh, as bills have it."""
    kwh = joules / 3.6e6
    return f"{kwh:.1f} kWh" if kwh >= 100 else f"{kwh:.3g} kWh"


def amount(number: float) -> str:
    """Return a number of hours or CPUs, in as many digits as tell something."""
    if 0 < number < 0.005:
        return "<0.01"
    digits = 0 if number >= 100 else 1 if number >= 10 else 2
    text = f"{number:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


def count(number: int, thing: str) -> str:
    """Return `1 job`, `2 jobs`."""
    return f"{number:,} {thing}{'' if number == 1 or thing.endswith('s') else 's'}"


def memory_text(mib: int) -> str:
    """Return MiB as people say them: `64 GiB`, `500 MiB`."""
    if mib < 1024:
        return f"{mib} MiB"
    return f"{mib / 1024:,.0f} GiB" if mib % 1024 == 0 or mib >= 102400 else f"{mib / 1024:,.1f} GiB"


def span(seconds: float) -> str:
    """Return a length of time in its two largest units: `2 d 3 h`, `45 min`, `30 s`."""
    left = round(abs(seconds))
    found = []
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if left >= length:
            found.append(f"{left // length} {unit}")
            left %= length
        elif found:
            break
        if len(found) == 2 or (found and unit == "min"):
            break
    return " ".join(found) or "0 s"


def time_of_day(moment: datetime, now: datetime) -> str:
    """Return the time in this machine's zone; with its date where that is not today's."""
    local, today = moment.astimezone(), now.astimezone().date()
    if local.date() == today:
        return f"{local:%H:%M}"
    return f"{local:%a %H:%M}" if 0 < (local.date() - today).days < 7 else f"{local:%Y-%m-%d %H:%M}"


def bytes_text(amount: int) -> str:
    """Return bytes as people read them: `95.6 KiB`."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if amount >= factor:
            return f"{amount / factor:.1f} {unit}"
    return f"{amount} B"


def about(seconds: float) -> str:
    """Return ``40s``, ``7m``, ``2h``, ``3d``: rounded, for an estimate says no more."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size * (2 if unit == "d" else 1):
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def size_text(amount: float) -> str:
    """Return bytes as `1.50 GiB` or `12.0 MiB`."""
    return f"{amount / 2**30:.2f} GiB" if amount >= 2**30 else f"{amount / 2**20:.1f} MiB"
