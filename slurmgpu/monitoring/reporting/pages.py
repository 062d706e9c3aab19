"""Pages that need nothing else: their style for light and dark, their frame, their tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from slurmgpu.printable import printable

__all__ = ["document", "table", "text"]

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
    """The whole page; the parts of the body are HTML, and empty ones are left out."""
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
