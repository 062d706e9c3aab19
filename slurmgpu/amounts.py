"""Amounts in words: counts, bytes, shares, energy, durations, the time of day."""

from __future__ import annotations

from datetime import date, datetime
from functools import lru_cache
from typing import overload

__all__ = ["amount", "count", "duration", "energy", "percent", "size_text", "span", "time_of_day"]


def count(number: int, thing: str) -> str:
    """Return `1 job`, `2 jobs`."""
    return f"{number:,} {thing}{'' if number == 1 or thing.endswith('s') else 's'}"


def amount(number: float) -> str:
    """Return a number of hours or CPUs, in as many digits as tell something."""
    if 0 < number < 0.005:
        return "<0.01"
    return _digits(number, 0 if number >= 100 else 1 if number >= 10 else 2)


def percent(share: float | None) -> str:
    """Return a share of 1 in percent; below one in a hundred with a digit more."""
    if share is None:
        return "unknown"
    return f"{share * 100:.1f} %" if 0 < share < 0.01 else f"{share * 100:.0f} %"


def size_text(size: float) -> str:
    """Return bytes in three digits: `9.1 GiB`, `64 GiB`, `95.6 KiB`."""
    units = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
    factor, unit = next((one for one in units if size >= 0.9995 * one[0]), units[-1])
    size /= factor
    return f"{_digits(size, 0 if size >= 99.5 else 1 if size >= 9.95 else 2)} {unit}"


def energy(joules: float) -> str:
    """Return joules as kWh, as bills have it."""
    kwh = joules / 3.6e6
    return f"{kwh:.1f} kWh" if kwh >= 100 else f"{kwh:.3g} kWh"


@overload
def duration(seconds: float) -> str: ...
@overload
def duration(seconds: None) -> None: ...
@overload
def duration(seconds: float | None) -> str | None: ...
def duration(seconds: float | None) -> str | None:
    """Return a time that Slurm counts, such as a limit, as Slurm writes it: `1-02:03:04`; None where it is not known."""
    if seconds is None:
        return None
    days, rest = divmod(round(seconds), 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def span(seconds: float, *, rough: bool = False) -> str:
    """Return a length of time from or to this moment, in its two largest units: `2 d 3 h`, `45 min`, `30 s`.

    ``rough``: rounded to one of them, for an estimate says no more.
    """
    left = round(abs(seconds))
    for length, unit, smaller, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 60, "")):
        if rough and left >= length * (2 if unit == "d" else 1):
            return f"{left / length:.0f} {unit}"
        if left >= length and not rough:
            rest = left % length // smaller
            return f"{left // length} {unit}" + (f" {rest} {name}" if rest else "")
    return f"{left} s"


def time_of_day(moment: datetime, now: datetime) -> str:
    """Return the time in this machine's zone, with its date, or the coming day of the week, where that is not today."""
    local, today = moment.astimezone(), _day(now)
    clock = f"{local.hour:02}:{local.minute:02}"  # of many jobs: strftime is slow
    if local.date() == today:
        return clock
    if 0 < (local.date() - today).days < 7:
        return f"{local:%a} {clock}"
    return f"{local.year:04}-{local.month:02}-{local.day:02} {clock}"


@lru_cache(maxsize=8)
def _day(now: datetime) -> date:
    return now.astimezone().date()


def _digits(number: float, most: int) -> str:
    text = f"{number:,.{most}f}"
    return text.rstrip("0").rstrip(".") if most else text
