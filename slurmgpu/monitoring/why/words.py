"""How figures are said: amounts, times, lists."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from slurmgpu.printable import printable

__all__ = ["amount", "clock", "gibibytes", "gpus", "listed", "span"]


def amount(count: int, thing: str) -> str:
    """`1 job`, `12 jobs`."""
    return f"{count:,} {thing}{'' if count == 1 or thing.endswith('s') else 's'}"


def gpus(count: int, types: Sequence[str] = ()) -> str:
    """`8 a100`, `1 GPU`; types come from Slurm, and are made safe for a terminal."""
    if len(types) == 1 and types[0] != "gpu":
        return f"{count:,} {printable(types[0])}"
    return amount(count, "GPU")


def gibibytes(mib: int) -> str:
    """MiB as people say them: `64 GiB`, `500 MiB`."""
    if mib < 1024:
        return f"{mib} MiB"
    return f"{mib / 1024:,.0f} GiB" if mib % 1024 == 0 or mib >= 102400 else f"{mib / 1024:,.1f} GiB"


def clock(moment: datetime, now: datetime) -> str:
    """The time in this machine's zone; with its date where that is not today's."""
    local, today = moment.astimezone(), now.astimezone().date()
    if local.date() == today:
        return f"{local:%H:%M}"
    return f"{local:%a %H:%M}" if 0 < (local.date() - today).days < 7 else f"{local:%Y-%m-%d %H:%M}"


def span(seconds: float) -> str:
    """A length of time in its two largest units: `2 d 3 h`, `45 min`, `30 s`."""
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


def listed(names: Sequence[str], most: int = 4) -> str:
    """`a, b and c`; of many the first, and how many more."""
    shown = [printable(name) for name in names[:most]]
    more = len(names) - len(shown)
    if more:
        return f"{', '.join(shown)} and {more} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
