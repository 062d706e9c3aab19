"""Holds what a run has written of an interval against what a replay of it has written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmgpu.monitoring.json_rows import end_of
from slurmgpu.monitoring.metrics import FILE, SCHEMA, MetricsRow, metrics_rows

__all__ = ["Difference", "Told", "first_difference", "starts", "told"]

_COMPARED = ("loss", "gradient_norm", "learning_rate")
_ORDER = ("losses", "gradients", "weights", "optimizer")
_WHERE = {
    "losses": "its loss: its batch, its weights, or its forward pass",
    "gradients": "its gradients: its backward pass",
    "weights": "its weights after the step: averaging gradients, or the update",
    "optimizer": "its optimizer's state after the step",
}


@dataclass(frozen=True)
class Told:
    """What a run has written by step: means over all ranks, and each rank's checksums."""

    lines: Mapping[int, Mapping[str, Any]]
    sums: Mapping[int, Mapping[int, Mapping[str, Any]]]
    """By step, then by rank."""


@dataclass(frozen=True)
class Difference:
    """The first difference: it came in one of the steps ``earliest`` to ``latest``.

    ``what`` differs first there; ``ranks`` None: it cannot be told, and ``why`` says why.
    """

    earliest: int
    latest: int
    what: str
    ranks: list[int] | None
    why: str | None = None


def _rows(file: Path) -> Iterator[MetricsRow]:
    """All rows of a file; none where there is no such file."""
    size = file.stat().st_size if file.is_file() else 0
    return metrics_rows(end_of(file, SCHEMA, size))


def starts(run_dir: Path) -> list[MetricsRow]:
    """The lines of the run's starts, in the order in which they were written."""
    return [row for row in _rows(run_dir / FILE) if row.kind == "start"]


def told(run_dir: Path, after: int, until: int) -> Told:
    """What there is of the steps after ``after``, up to ``until``; of a step that was repeated, the last."""
    lines: dict[int, Mapping[str, Any]] = {}
    for row in _rows(run_dir / FILE):
        if row.kind == "train" and after < row.step <= until:
            lines[row.step] = {
                name: value for name, value in row.values.items() if name.partition(".")[0] in _COMPARED
            }
    sums: dict[int, dict[int, Mapping[str, Any]]] = {}
    for file in (run_dir / "checksums").glob("rank-*.jsonl"):
        number = file.stem.removeprefix("rank-")
        for row in _rows(file) if number.isdecimal() else ():
            if after < row.step <= until:
                sums.setdefault(row.step, {})[int(number)] = row.values
    return Told(lines, sums)


def first_difference(
    run: Told, again: Told, after: int, until: int, ranks: int, weights_differ: bool
) -> Difference | None:
    """The first difference between a run and its replay; ``weights_differ``: whether their checkpoints do at the end."""
    same, found = after, None
    for step in sorted(run.sums.keys() & again.sums.keys()):
        one, other = run.sums[step], again.sums[step]
        both = sorted(one.keys() & other.keys())
        for what in _ORDER:
            wrong = [rank for rank in both if one[rank].get(what) != other[rank].get(what)]
            if wrong:
                found = step, what, wrong, both
                break
        if found:
            break
        same = step
    line = next((each for each in sorted(run.lines) if run.lines[each] != again.lines.get(each)), None)
    if found and (line is None or found[0] <= line):
        step, what, wrong, both = found
        if ranks > 1 and len(wrong) == len(both):
            why = "all processes differ at once, as after an average of gradients of which one was wrong"
            return Difference(same + 1, step, _WHERE[what], None, why)
        return Difference(same + 1, step, _WHERE[what], wrong)
    alone = [0] if ranks == 1 else None
    unclear = (
        None if alone else "metrics have means over all processes: with checksum_steps, each is compared"
    )
    if line is not None:
        return Difference(same + 1, line, "the line of metrics", alone, unclear)
    if weights_differ:
        return Difference(same + 1, until, "the checkpoint", alone, unclear)
    return None
