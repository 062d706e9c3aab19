"""One setting of a training, tried: the training itself, in processes of its own, for some seconds.

What is measured is what a job would do. The processes are killed as soon as enough is known: nothing of a try is kept.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import torch

from ..data import auto_workers
from ..formats.metrics import METRICS_FILE, METRICS_SCHEMA, metrics_rows
from ..formats.rows import rows_in
from ..formats.settings import TRAIN_SCHEMA
from .machine import cpus
from .starting import Place, end, run_folder, start

__all__ = ["APART", "counted", "summed", "tried"]

_LOOK = 0.2
_HARDLY_WAITS = 0.05
_MOST_STEPS = 1_000_000
_MOST_STEPS_A_SECOND = 10_000
# Not what is measured, or what would end it.
_WITHOUT: Mapping[str, object] = {
    "evaluate_every": None, "evaluate_steps": None, "best": None,
    "early_stop": None, "checkpoint_every": 1 << 40, "checkpoint_steps": None, "checkpoint_shared_steps": None,
    "checkpoint_node_folder": None, "resume": False, "sanity": False,
    "track": [], "profile": False, "log_every": 1, "hang_timeout": None,
}  # fmt: skip
_FULL = re.compile(
    r"out of memory|can't allocate memory|not enough memory|bad_alloc|Cannot allocate memory|MemoryError"
)
_MOST_READ = 1 << 20
APART = "apart"
"""A file in the run directory: from there on, the processes have exchanged nothing."""
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)


class _Ended(NamedTuple):
    """The exit codes of those processes that ended by themselves; none: the next step was not done in time."""

    codes: list[int]


def tried(settings: Mapping[str, Any], place: Place, *, apart: bool = False) -> dict[str, Any]:
    """Return what a training with these settings does a second, and where its steps' time goes; ``why`` where it does not run.

    Rates are those of all processes together; times and memory those of rank 0, as ``metrics.jsonl`` has them. ``apart``: the
    processes exchange no gradients, and ``apart`` of what is found says whether they could be kept from it.
    """
    with run_folder(place) as run:
        # As many steps as no try takes, and not more: some schedules make a list of all.
        steps = max(_MOST_STEPS, int(_MOST_STEPS_A_SECOND * place.seconds))
        document = {"schema": TRAIN_SCHEMA, **settings, **_WITHOUT, "epochs": steps, "max_steps": steps}
        Path(run, "train.json").write_text(json.dumps(document), encoding="utf-8")
        said = Path(run, "said")
        variables = {"SLURMGPU_APART": "1"} if apart else {}
        workers = _workers(settings, place)
        with said.open("wb") as file:
            started = start(__package__.rpartition(".")[0], run, place, file.fileno(), variables)
            try:
                rows = _watched(started, Path(run, METRICS_FILE), place, max(1, workers))
            finally:
                end(started, place)
        found: dict[str, Any] = {
            "processes": place.processes, "nodes": place.nodes, "threads": place.threads, "workers": workers,
            "dataset_samples": _samples(Path(run, METRICS_FILE)),
            **({"apart": Path(run, APART).exists()} if apart else {}),
        }  # fmt: skip
        if isinstance(rows, _Ended):
            return {**found, "why": _why(_end_of(said), rows)}
        return {**found, **summed(rows)}


def _watched(
    started: list[subprocess.Popen[bytes]], metrics: Path, place: Place, each_round: int
) -> Union[list[dict[str, Any]], _Ended]:
    """Return the ``train`` lines that count; or how the processes ended before these were there."""
    ends: Optional[float] = None
    first, moved = 0, time.monotonic()
    rows: list[dict[str, Any]] = []
    lines = _Lines(metrics)
    while True:
        time.sleep(_LOOK)
        fresh = lines.more()
        rows += fresh
        gone = [each for each in started if each.poll() is not None]
        if gone:
            if first and not any(each.returncode for each in gone):
                return rows[first:] or rows[-1:]  # it took all of its steps: these will do
            return _Ended([each.returncode for each in gone])
        now = time.monotonic()
        moved = now if fresh else moved
        if now - moved > place.patience:
            return _Ended([])
        if ends is None:
            if len(rows) >= 3:  # the first line has the loader's start; what warms up is over after two more
                first, ends = len(rows), now + place.seconds
        elif now >= ends:
            enough = counted(rows[first:], each_round, place.seconds)
            if enough:
                return enough


def _workers(settings: Mapping[str, Any], place: Place) -> int:
    """Return the loader's workers of each process, also where the settings leave them to us."""
    workers = settings.get("workers", "auto")
    if workers == "auto":
        on_cpu = settings.get("device") == "cpu" or not torch.cuda.is_available()
        workers = 0 if on_cpu else auto_workers(cpus() // (place.processes // place.nodes))
    return int(workers)


def counted(rows: list[dict[str, Any]], each_round: int, seconds: float) -> list[dict[str, Any]]:
    """Those lines that tell the rate; empty as long as too few are there.

    A step that waits for the loader waits for a whole round of its workers, whose other batches then lie ready: of such steps,
    whole rounds count.
    """
    total = sum(row["step_seconds"] for row in rows)
    waited = sum(row["data_wait_seconds"] for row in rows)
    if total >= seconds / 2 and waited < _HARDLY_WAITS * total:
        return rows
    return rows[len(rows) % each_round :]


class _Lines:
    """The lines of one kind of a file that grows: each is read once, for a short step writes thousands while others are timed."""

    def __init__(self, metrics: Path, kind: str = "train") -> None:
        self._metrics, self._kind, self._at = metrics, kind, 0

    def more(self) -> list[dict[str, Any]]:
        """Those that came since the last call; the last line may still be being written."""
        try:
            with self._metrics.open("rb") as file:
                file.seek(self._at)
                text = file.read()
        except OSError:
            return []
        text = text[: text.rfind(b"\n") + 1]
        self._at += len(text)
        rows = metrics_rows(rows_in(text, METRICS_SCHEMA))
        return [dict(row.values) for row in rows if row.kind == self._kind]


def _samples(metrics: Path) -> Optional[int]:
    """Samples of an epoch; None where the training did not come so far, or reads a stream that does not say."""
    return next((row.get("dataset_samples") for row in _Lines(metrics, "start").more()), None)


def _end_of(said: Path) -> str:
    """Return the last of what the processes printed: some print without end."""
    with said.open("rb") as file:
        file.seek(max(0, said.stat().st_size - _MOST_READ))
        return file.read().decode(errors="replace")


def _why(said: str, ended: _Ended) -> str:
    if not ended.codes:
        return "no step was done in time"
    error = _error(said)
    if _FULL.search(said) or (not error and any(code in _KILLED for code in ended.codes)):
        return "out of memory"
    return error or f"the training ended with exit code {ended.codes[0]}"


def _error(said: str) -> str:
    """Return the last line that tells of an error."""
    lines = [line.strip() for line in said.splitlines() if re.search(r"error|Error|refused", line)]
    return lines[-1][:300] if lines else ""


def summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the lines come to: rates a second, times in seconds for a mean step, waits as a share of the time."""
    steps = [row["step_seconds"] for row in rows]
    total = sum(steps)
    found: dict[str, Any] = {
        "steps": len(steps),
        "step_seconds": total / len(steps),
        "samples_per_second": sum(row["samples_per_second"] * row["step_seconds"] for row in rows) / total,
        "waits_for_data": sum(row["data_wait_seconds"] for row in rows) / total,
        "peak_bytes": max(row["peak_memory_bytes"] for row in rows),
    }
    busy = [row["gpu_utilization"] for row in rows if row.get("gpu_utilization") is not None]
    if busy:
        found["gpu_busy"] = sum(busy) / len(busy)
    return found
