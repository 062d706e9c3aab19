"""The tries of a training, as lines of a table."""

from __future__ import annotations

from collections.abc import Iterator

from slurmgpu.monitoring.benching.results import Results
from slurmgpu.monitoring.benching.verdict import FULL
from slurmgpu.monitoring.benching.wording import digits
from slurmgpu.monitoring.json_rows import Row, positive
from slurmgpu.monitoring.reporting.wording import percent, short

__all__ = ["HEAD", "try_lines"]

HEAD = ("What", "Setting", "Samples/s", "Step", "Waits", "Comm.", "Memory")
_ORDER = ("processes", "batch_size", "workers", "precision", "tf32", "channels_last", "compile")
_SHOWN = {
    "base": ("processes", "batch_size"),
    "batch": ("batch_size",),
    "workers": ("workers",),
    "precision": ("precision", "tf32", "channels_last", "compile"),
    "scaling": ("processes", "batch_size"),
}


def try_lines(results: Results) -> Iterator[tuple[str, ...]]:
    """A line for each try; why one did not run is a sentence of the verdict."""
    for row in results.rows:
        what = str(row.get("what"))
        if what == "scaling" and any(_same(row, one) for one in results.rows if one.get("what") == "base"):
            continue  # one process, which is the base
        setting = ", ".join(f"{key} {row[key]}" for key in _SHOWN.get(what, _ORDER) if key in row)
        if row.get("how") == "dp":
            setting = f"dp, gpus {row.get('gpus')}, batch_size {row.get('batch_size')}"
        if row.get("how") == "fsdp2":
            setting = f"fsdp2, {setting}"
        if "why" in row:
            yield (what, setting, "no memory" if row["why"] == FULL else "failed", "-", "-", "-", "-")
            continue
        yield (
            what,
            setting,
            digits(rate) if (rate := positive(row.get("samples_per_second"))) else "unknown",
            f"{step:.3g} s" if (step := positive(row.get("step_seconds"))) else "unknown",
            percent(positive(row.get("waits_for_data"))),
            percent(positive(row["communication"])) if "communication" in row else "-",
            short(peak) if (peak := positive(row.get("peak_bytes"))) else "unknown",
        )


def _same(one: Row, other: Row) -> bool:
    return all(
        one.get(key) == other.get(key) for key in ("processes", "batch_size", "samples_per_second", "why")
    )
