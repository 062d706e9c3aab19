"""The tries of a training, as lines of a table."""

from __future__ import annotations

from collections.abc import Iterator

from slurmgpu.monitoring.benching.results import Results
from slurmgpu.monitoring.json_rows import Row, positive
from slurmgpu.monitoring.reporting.wording import percent, short

__all__ = ["HEAD", "lines"]

HEAD = ("What", "Setting", "Samples/s", "Step", "Waits for data", "Memory at the peak")
_ORDER = ("processes", "batch_size", "workers", "precision", "tf32", "channels_last", "compile")
_SHOWN = {
    "base": ("processes", "batch_size"),
    "batch": ("batch_size",),
    "workers": ("workers",),
    "precision": ("precision", "tf32", "channels_last", "compile"),
    "scaling": ("processes", "batch_size"),
}


def lines(results: Results) -> Iterator[tuple[str, str, str, str, str, str]]:
    """A line for each try; one that did not run says why."""
    for row in results.rows:
        what = str(row.get("what"))
        setting = ", ".join(f"{key} {row[key]}" for key in _SHOWN.get(what, _ORDER) if key in row)
        if "why" in row:
            yield (what, setting, str(row["why"]), "-", "-", "-")
            continue
        yield (
            what,
            setting,
            _number(row, "samples_per_second", "{:,.4g}"),
            _number(row, "step_seconds", "{:.3g} s"),
            percent(positive(row.get("waits_for_data"))),
            short(peak) if (peak := positive(row.get("peak_bytes"))) else "unknown",
        )


def _number(row: Row, key: str, form: str) -> str:
    found = positive(row.get(key))
    return "unknown" if found is None else form.format(found)
