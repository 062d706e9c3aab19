"""What a node is worth, as lines: products, copies, sums over processes, folders; each beside its published peak."""

from __future__ import annotations

from collections.abc import Iterator

from slurmgpu.monitoring.benching.results import Results, median
from slurmgpu.monitoring.json_rows import Row, positive
from slurmgpu.monitoring.reporting.wording import amount, percent, short

__all__ = ["HEAD", "node_lines", "over"]

HEAD = ("What", "Where", "Measured", "Published peak", "Reached")


def node_lines(results: Results) -> Iterator[tuple[str, str, str, str, str]]:
    """A line for each figure; a peak that is not known is `-`."""
    for row in results.rows:
        what = row.get("what")
        if what == "product":
            yield _product(row)
        elif what == "copy":
            rate = median(row, "gb_per_s")
            yield ("copy", f"{row.get('from')} to {row.get('to')}", _rate(rate, "GB/s"), "-", "-")
        elif what == "reduction":
            yield _reduction(row)
        elif what == "folder":
            yield from _folder(row)


def _product(row: Row) -> tuple[str, str, str, str, str]:
    rate, peak = median(row, "tflops"), positive(row.get("peak_tflops"))
    reached = percent(rate / peak) if rate is not None and peak else "-"
    what = f"matrix product, {row.get('type')}"
    published = "-" if peak is None else _rate(peak, "TFLOP/s")
    return (what, str(row.get("device")), _rate(rate, "TFLOP/s"), published, reached)


def _reduction(row: Row) -> tuple[str, str, str, str, str]:
    rate = _rate(median(row, "gb_per_s"), "GB/s")
    return (
        over(row),
        str(row.get("backend", "-")),
        f"not measured: {row['why']}" if "why" in row else rate,
        "-",
        "-",
    )


def over(row: Row) -> str:
    """Which sum over processes it is, in words."""
    nodes, size = row.get("nodes"), positive(row.get("bytes"))
    on = "" if nodes == 1 else f" on {nodes} nodes"
    return f"all-reduce over {row.get('processes')} processes{on}" + (f", {short(size)}" if size else "")


def _folder(row: Row) -> Iterator[tuple[str, str, str, str, str]]:
    place = str(row.get("folder"))
    for name, key, unit in (
        ("large file written", "write_mb_per_s", "MB/s"),
        ("large file read", "read_mb_per_s", "MB/s"),
        ("small files made", "made_per_s", "/s"),
        ("small files looked at", "looked_at_per_s", "/s"),
        ("small files removed", "removed_per_s", "/s"),
    ):
        rate = positive(row.get(key))
        if rate is not None:
            yield (name, place, _rate(rate, unit), "-", "-")
    if "why" in row:
        yield ("folder", place, f"not measured: {row['why']}", "-", "-")


def _rate(rate: float | None, unit: str) -> str:
    return "unknown" if rate is None else f"{amount(rate)} {unit}"
