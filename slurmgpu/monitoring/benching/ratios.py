"""A training's tries beside the one they are compared with: processes beside one process, precisions beside fp32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from slurmgpu.monitoring.benching.results import Results
from slurmgpu.monitoring.json_rows import Row, positive, whole
from slurmgpu.monitoring.reporting.wording import percent

__all__ = ["PUBLISHED", "Ratios", "precision_of", "ratios"]

PUBLISHED: Mapping[tuple[str, int], float] = {("dp", 4): 0.7, ("ddp", 4): 0.3}
"""What a textbook gives for 4 GPUs and a batch of 1,024: the time over that of one GPU. It is known here without the network
and the GPUs that it was measured with."""
_PUBLISHED_NOTE = (
    "published: a textbook's round figures for 4 GPUs and a batch of 1,024, network and GPUs not known"
)
_NAMES = {"dp": "DataParallel", "ddp": "DDP", "fsdp2": "FSDP2"}
_LAYOUTS = ("compile", "channels_last")


class Ratios(NamedTuple):
    """A table of them; ``note`` says what stands beside, empty where nothing does."""

    name: str
    """Of its file: ``scaling``."""
    title: str
    head: tuple[str, ...]
    lines: list[tuple[str, ...]]
    note: str


def ratios(results: Results) -> Iterator[Ratios]:
    """The tables of those parts that were tried."""
    if (lines := _scaling_lines(results)) is not None:
        title = "Time for as many samples, over that of one process; the micro-batch of each is kept"
        yield Ratios("scaling", title, ("How", "Here", "Published"), lines, _PUBLISHED_NOTE)
    if lines := _precisions(results):
        yield Ratios(
            "precision", "Samples/s, over those with fp32", ("Precision", "Times as fast"), lines, ""
        )


def _scaling_lines(results: Results) -> list[tuple[str, ...]] | None:
    base = _rate(next((row for row in results.rows if row.get("what") == "base"), {}))
    found: dict[tuple[str, int], tuple[str, float | None]] = {}
    for row in results.rows:
        how = {"each": "ddp", "dp": "dp", "fsdp2": "fsdp2"}.get(str(row.get("how")))
        number = whole(row.get("gpus" if how == "dp" else "processes"))
        if row.get("what") == "scaling" and how is not None and number is not None and number > 1:
            found[how, number] = (_named(how, number, whole(row.get("nodes")) or 1), _rate(row))
    if base is None or not found:
        return None
    places = sorted({*found, *PUBLISHED}, key=lambda place: (place[1], list(_NAMES).index(place[0])))
    lines: list[tuple[str, ...]] = [("1 process", "100 %", "100 %")]
    for place in places:
        name, rate = found.get(place, (_named(*place, 1), None))
        published = PUBLISHED.get(place)
        lines.append(
            (
                name,
                "-" if rate is None else percent(base / rate),
                "-" if published is None else f"about {percent(published)}",
            )
        )
    return lines


def _named(how: str, number: int, nodes: int) -> str:
    if how == "dp":
        return f"{_NAMES[how]}, {number} GPUs"
    return f"{_NAMES[how]}, {number} processes{'' if nodes == 1 else f' on {nodes} nodes'}"


def _precisions(results: Results) -> list[tuple[str, ...]]:
    rows = [row for row in results.rows if row.get("what") == "precision"]
    plain = next((_rate(row) for row in rows if precision_of(row) == "fp32"), None)
    if plain is None:
        return []
    # The layouts are tried with the job's own precision: they have no place beside fp32.
    of_precision = [row for row in rows if not any(key in row for key in _LAYOUTS)]
    return [
        (precision_of(row), "failed" if (rate := _rate(row)) is None else f"{rate / plain:.2f}")
        for row in of_precision
    ]


def precision_of(row: Row) -> str:
    """Which precision or layout was tried: `fp32`, `TF32`, `bf16`, `compile`."""
    layout = next((key for key in _LAYOUTS if key in row), None)
    return layout or ("TF32" if row.get("tf32") is True else str(row.get("precision")))


def _rate(row: Row) -> float | None:
    return positive(row.get("samples_per_second")) or None
