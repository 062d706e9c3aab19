"""Plots as SVG inside a page: lines over time, and a bar of what was used; colours are the page's, for light and dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

__all__ = ["bar", "plot"]

_WIDTH, _HEIGHT = 640, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 12, 34
_POINTS = 300
COLOURS = 8
"""How many the page's style has."""

Line = Sequence[tuple[float, float]]


def bar(share: float | None, label: str) -> str:
    """A bar of a share of 1; what goes beyond is full, and the text beside it says by how much."""
    if share is None:
        return '<span class="none">not known</span>'
    width = max(0.0, min(1.0, share)) * 120
    return (
        f'<svg class="bar" viewBox="0 0 120 10" width="120" height="10" role="img" aria-label="{escape(label, True)}">'
        f'<rect class="all" width="120" height="10" rx="2"/><rect class="part" width="{width:.1f}" height="10" rx="2"/></svg>'
    )


def plot(
    title: str, lines: Mapping[str, Line], *, down: str, across: str = "time", most: float | None = None,
    spelled: Callable[[float], str] = lambda value: f"{value:.3g}", along: Callable[[float], str] | None = None,
) -> str:  # fmt: skip
    """Lines by name over one axis. ``most`` is the top of the scale where that is known; ``down`` and ``across`` name axes."""
    known = {name: _thinned(line) for name, line in lines.items() if len(line) > 1}
    if not known:
        return ""
    xs = [x for line in known.values() for x, _ in line]
    ys = [y for line in known.values() for _, y in line]
    low, high = (0.0, most or max(ys) or 1.0) if min(ys) >= 0 else (min(ys), max(ys))
    high = max(high, max(ys))
    left, right = min(xs), max(xs)
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + (x - left) / ((right - left) or 1) * width,
            _TOP + (1 - (y - low) / ((high - low) or 1)) * height,
        )

    parts = [_grid(((left, right), (low, high)), place, spelled, along or spelled, across)]
    for number, (_, line) in enumerate(known.items()):
        points = " ".join(f"{px:.1f},{py:.1f}" for px, py in (place(x, y) for x, y in line))
        parts.append(f'<polyline class="c{number % COLOURS}" points="{points}"/>')
    said = f"{title}: {down} over {across}; {_spread(known, spelled)}"
    drawn = (
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(said, True)}">{"".join(parts)}'
        f'<text class="axis" x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 2}" text-anchor="end">{escape(across)}</text></svg>'
    )
    keys = "".join(
        f'<li class="c{number % COLOURS}">{escape(name)}</li>'
        for number, name in enumerate(known)
        if len(known) > 1
    )
    return f"<figure><figcaption>{escape(title)}</figcaption>{drawn}{f'<ul class=keys>{keys}</ul>' if keys else ''}</figure>"


def _spread(lines: Mapping[str, Line], spelled: Callable[[float], str]) -> str:
    """What somebody who does not see it is told of each line."""
    told = []
    for name, line in list(lines.items())[:COLOURS]:
        values = [y for _, y in line]
        mean = sum(values) / len(values)
        told.append(
            f"{name} from {spelled(min(values))} to {spelled(max(values))}, {spelled(mean)} on average"
        )
    return "; ".join(told)


def _grid(
    ends: tuple[tuple[float, float], tuple[float, float]], place: Callable[[float, float], tuple[float, float]],
    spelled: Callable[[float], str], along: Callable[[float], str], across: str,
) -> str:  # fmt: skip
    (left, right), (low, high) = ends
    parts = []
    for y in _ticks(low, high, bytes_=high >= 1 << 20):
        _, at = place(left, y)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="axis" x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{escape(spelled(y))}</text>'
        )
    for x in _ticks(left, right, times=across == "time"):
        at, _ = place(x, low)
        anchor = "start" if at < _LEFT + 20 else "end" if at > _WIDTH - _RIGHT - 20 else "middle"
        parts.append(
            f'<text class="axis" x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="{anchor}">{escape(along(x))}</text>'
        )
    return "".join(parts)


_TIMES = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


def _ticks(low: float, high: float, *, bytes_: bool = False, times: bool = False) -> list[float]:
    """At most six values between the ends that people like to read: 1, 2 and 5 times a power of ten; minutes and hours."""
    least = (high - low) / 5 or 1.0
    if bytes_:
        step = 2.0 ** math.ceil(math.log2(least))
    elif times and least <= _TIMES[-1]:
        step = float(next(one for one in _TIMES if one >= least))
    else:
        power = 10.0 ** math.floor(math.log10(least))
        step = next(one * power for one in (1, 2, 5, 10) if one * power >= least * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [(first + n) * step for n in range(math.floor(high / step + 1e-9) - first + 1)]


def _thinned(line: Line) -> Line:
    """As many points as a plot shows: the mean of each stretch, and finite values alone."""
    finite = [(x, y) for x, y in line if math.isfinite(x) and math.isfinite(y)]
    if len(finite) <= _POINTS:
        return finite
    made = []
    for at in range(_POINTS):
        part = finite[at * len(finite) // _POINTS : (at + 1) * len(finite) // _POINTS]
        made.append((sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)))
    return made
