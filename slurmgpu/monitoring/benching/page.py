"""A bench as one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurmgpu.monitoring.benching import node, tries
from slurmgpu.monitoring.benching.figures import figures, svg
from slurmgpu.monitoring.benching.gathered import Part, missing, slow
from slurmgpu.monitoring.benching.networks import PUBLISHED_PLACES, network_lines, seconds, times
from slurmgpu.monitoring.benching.ratios import ratios
from slurmgpu.monitoring.benching.results import Results, median
from slurmgpu.monitoring.benching.verdict import judge
from slurmgpu.monitoring.benching.wording import machine_line
from slurmgpu.monitoring.reporting.pages import document, table, text
from slurmgpu.monitoring.reporting.wording import count

__all__ = ["page", "page_of_parts"]

_PARTS = ("forward", "backward", "update", "step")


_TITLES = {"networks": "Seven networks", "node": "Node", "task": "A training"}


def page(kind: str, results: Results) -> str:
    """The page of what one machine measured."""
    title = f"{_TITLES[kind]} on {results.machine.get('node')}"
    return document(title, [f"<h1>{text(title)}</h1>", *_of_machine(kind, results)])


def page_of_parts(kind: str, parts: Sequence[Part]) -> str:
    """The page of a bench in jobs of its own: a section for each, after what is missing and who is slow."""
    title = f"{_TITLES[kind]}: {count(len(parts), 'job')}"
    body = [f"<h1>{text(title)}</h1>"]
    body += [f"<p>{text(sentence)}.</p>" for sentence in (*slow(parts), *missing(parts))]
    for part in parts:
        body.append(f"<h2>{text(part.job.on)}</h2>")
        body += _of_machine(kind, part.results) if part.results.machine else [f"<p>{text(part.state)}</p>"]
    return document(title, body)


def _of_machine(kind: str, results: Results) -> Iterator[str]:
    yield f'<p class="soft">{text(machine_line(results))}</p>'
    if not results.whole:
        yield "<p>The measuring was cut short: rows are missing.</p>"
    yield from {"networks": _networks, "node": _node, "task": _task}[kind](results)


def _networks(results: Results) -> Iterator[str]:
    found = times(results)
    rows = [[text(name), *cells] for name, *cells in network_lines(found)]
    heads = ("Network", "Mini-batch", *found.places, *PUBLISHED_PLACES)
    yield table("Seconds per mini-batch, median", heads, rows, 1)
    yield (
        '<p class="soft">Published: Shi et al. (2016), arXiv 1608.07249, Torch; other software on other machines.</p>'
    )
    yield from map(svg, figures("networks", results))
    parts = []
    for row in results.rows:
        cells = [seconds(median(row, part)) for part in _PARTS]
        where = (
            f"{row.get('threads')} threads"
            if "threads" in row
            else f"{row.get('device')} {row.get('precision')}"
        )
        parts.append([text(str(row.get("network"))), text(where), *cells, str(row.get("rounds", "-"))])
    heads = ("Network", "Where", "Forward", "Backward", "Update", "Step", "Times measured")
    yield table("Seconds of each part, median", heads, parts, 2)


def _node(results: Results) -> Iterator[str]:
    rows = [[text(what), text(where), *figures] for what, where, *figures in node.node_lines(results)]
    yield table("Measured, beside the published peak", node.HEAD, rows, 2)


def _task(results: Results) -> Iterator[str]:
    verdict = judge(results)
    for sentence in verdict.sentences:
        yield f"<p>{text(sentence[:1].upper() + sentence[1:])}.</p>"
    if verdict.proposals:
        items = (
            f"<li><code>{text(f'{one.key}: {one.value}')}</code> <span>{text(one.why)}</span></li>"
            for one in verdict.proposals
        )
        yield f'<h3>What follows</h3><ul class="next">{"".join(items)}</ul>'
    rows = [[text(what), text(setting), *figures] for what, setting, *figures in tries.try_lines(results)]
    yield table("What was tried", tries.HEAD, rows, 2)
    for one in ratios(results):
        yield table(one.title, one.head, [[text(name), *cells] for name, *cells in one.lines], 1)
        if one.note:
            yield f'<p class="soft">{text(one.note[:1].upper() + one.note[1:])}.</p>'
    yield from map(svg, figures("task", results))
