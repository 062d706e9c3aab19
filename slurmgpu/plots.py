"""Pages that need nothing else, and plots in them as SVG: lines over time, and bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from slurmgpu.printable import printable

__all__ = ["bar", "document", "plot", "table", "text"]


_STYLE = """
:root { color-scheme: light dark; --ink: #1c2126; --soft: #5b6670; --line: #d7dde2; --back: #fff; --fill: #2f6fb3;
  --track: #e8edf1; --c0: #2f6fb3; --c1: #b5531c; --c2: #2e7d4f; --c3: #8e44ad; --c4: #a33; --c5: #6b6b00; --c6: #00757f;
  --c7: #555; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaee; --soft: #a3adb7; --line: #3a434b; --back: #16191c;
  --fill: #6aa9e9; --track: #2a3138; --c0: #6aa9e9; --c1: #f0955c; --c2: #6fcf97; --c3: #c79be6; --c4: #f28b82;
  --c5: #d6cf5b; --c6: #5fd0d9; --c7: #bbb; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); margin: 0; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .25rem; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 1.25rem 0 .25rem; } p { margin: .25rem 0; } .soft, .none, caption { color: var(--soft); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; margin: .75rem 0; }
caption { text-align: left; padding-bottom: .25rem; }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: baseline; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; } th { font-weight: 600; }
td { overflow-wrap: anywhere; }
.bar .all { fill: var(--track); } .bar .part { fill: var(--fill); } figure { margin: 1rem 0; }
figcaption { font-weight: 600; } .plot { width: 100%; max-width: 46rem; height: auto; }
.plot polyline { fill: none; stroke-width: 1.6; } .grid { stroke: var(--line); stroke-width: 1; }
.axis { fill: var(--soft); font-size: 11px; } .keys { list-style: none; padding: 0; margin: 0; display: flex; flex-wrap: wrap;
  gap: .2rem 1rem; font-size: .85rem; } .keys li::before { content: ""; display: inline-block; width: .8rem; height: .2rem;
  margin-right: .4rem; vertical-align: middle; background: currentColor; }
.next li { font-weight: 600; } .next span { font-weight: 400; color: var(--soft); } code { font-size: .95em; }
""" + "".join(
    f".plot .c{n} {{ stroke: var(--c{n}); }} .keys .c{n} {{ color: var(--c{n}); }}\n" for n in range(8)
)


def document(title: str, body: Iterable[str]) -> str:
    """Return the whole page; the parts of the body are HTML, and empty ones are left out."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def text(words: str) -> str:
    """Words as HTML."""
    return escape(printable(words))


def table(caption: str, heads: Sequence[str], lines: Iterable[Sequence[str]], first_number: int) -> str:
    """A table; cells from ``first_number`` on are numbers, as text, and stand to the right; those before are HTML already."""

    def cells(row: Sequence[str], kind: str) -> str:
        made = []
        for at, cell in enumerate(row):
            tag = "th" if kind == "th" or at == 0 else "td"
            scope = ' scope="col"' if kind == "th" else ' scope="row"' if at == 0 else ""
            number = at >= first_number
            made.append(
                f"<{tag}{scope}{' class=n' if number else ''}>{text(cell) if number else cell}</{tag}>"
            )
        return f"<tr>{''.join(made)}</tr>"

    inner = "".join(cells(line, "td") for line in lines)
    return (
        f'<div class="scroll"><table><caption>{text(caption)}</caption><thead>{cells(heads, "th")}</thead>'
        f"<tbody>{inner}</tbody></table></div>"
    )


_WIDTH, _HEIGHT = 640, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 12, 34
_POINTS = 300
COLOURS = 8
"""Number of colours in the page's style."""

Line = Sequence[tuple[float, float]]


def bar(share: float | None, label: str) -> str:
    """Return a bar of a share of 1; what goes beyond is full, and the text beside it says by how much."""
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
    """Return what somebody who does not see it is told of each line."""
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
    """Return as many points as a plot shows: the mean of each stretch, and finite values alone."""
    finite = [(x, y) for x, y in line if math.isfinite(x) and math.isfinite(y)]
    if len(finite) <= _POINTS:
        return finite
    made = []
    for at in range(_POINTS):
        part = finite[at * len(finite) // _POINTS : (at + 1) * len(finite) // _POINTS]
        made.append((sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)))
    return made
