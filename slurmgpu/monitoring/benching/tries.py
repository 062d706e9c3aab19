"""The tries of a training, as lines of a table."""

from __future__ import annotations

from collections.abc import Iterator

from slurmgpu.monitoring.benching.results import Results
from slurmgpu.monitoring.benching.wording import digits
from slurmgpu.monitoring.json_rows import positive
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
            digits(rate) if (rate := positive(row.get("samples_per_second"))) else "unknown",
            f"{step:.3g} s" if (step := positive(row.get("step_seconds"))) else "unknown",
            percent(positive(row.get("waits_for_data"))),
            short(peak) if (peak := positive(row.get("peak_bytes"))) else "unknown",
        )
