"""The seven networks' times, in the layout of Shi et al. (2016, arXiv 1608.07249): seconds per mini-batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from slurmgpu.monitoring.benching.results import Results, median
from slurmgpu.monitoring.json_rows import Row, whole

__all__ = ["PUBLISHED", "PUBLISHED_PLACES", "Table", "network_lines", "place_of", "seconds", "times"]

PUBLISHED_PLACES = ("published: CPU", "published: GTX 1080")
PUBLISHED: Mapping[str, tuple[float, float]] = {
    "FCN-S": (0.382, 0.031),
    "AlexNet-S": (1.090, 0.023),
    "ResNet-50": (3.683, 0.144),
    "FCN-R": (0.366, 0.016),
    "AlexNet-R": (3.940, 0.043),
    "ResNet-56": (2.560, 0.101),
    "LSTM": (3.260, 0.324),
}
"""What the paper gives for Torch: the best of its server's CPU threads, and one GTX 1080."""


class Table(NamedTuple):
    """Seconds per mini-batch: a row a network, a column a place; None where it was not measured, or could not be."""

    places: list[str]
    batches: dict[str, int | None]
    seconds: dict[str, dict[str, float | None]]
    why: dict[tuple[str, str], str]
    """Why a network has no time at a place."""


def times(results: Results) -> Table:
    """The table of what was measured, in the order in which it was."""
    table = Table([], {}, {}, {})
    for row in results.rows:
        name, place = str(row.get("network")), place_of(row)
        if place not in table.places:
            table.places.append(place)
        table.batches[name] = whole(row.get("batch"))
        table.seconds.setdefault(name, {})[place] = median(row, "step")
        if "why" in row:
            table.why[name, place] = str(row["why"])
    return table


def network_lines(table: Table) -> Iterator[list[str]]:
    """A line for each network: its name, its mini-batch, the time at each place, and the published ones."""
    for name, here in table.seconds.items():
        published = PUBLISHED.get(name, (None, None))
        measured = [table.why.get((name, place)) or seconds(here.get(place)) for place in table.places]
        yield [name, str(table.batches[name]), *measured, *map(seconds, published)]


def place_of(row: Row) -> str:
    """Where it was measured: `2 threads`, `GPU 0 bf16`."""
    threads = whole(row.get("threads"))
    if threads is not None:
        return f"{threads} thread{'' if threads == 1 else 's'}"
    return f"GPU {row.get('gpu')} {row.get('precision')}"


def seconds(value: float | None) -> str:
    """In three digits, as the paper has them."""
    if value is None:
        return "-"
    return f"{value:.4f}" if value < 0.1 else f"{value:.3f}" if value < 10 else f"{value:.1f}"
