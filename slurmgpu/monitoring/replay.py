"""Holds what a run has written of an interval against what a replay of it has written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmgpu.monitoring.json_rows import rows_at_end
from slurmgpu.monitoring.metrics import FILE, METRICS_SCHEMA, MetricsRow, metrics_rows

__all__ = ["Difference", "Told", "first_difference", "lines_of_both", "starts", "told"]

_COMPARED = ("loss", "gradient_norm", "learning_rate")
_ORDER = ("losses", "gradients", "weights", "optimizer")
_WHERE = {
    "losses": "its loss: its batch, its weights, or its forward pass",
    "gradients": "its gradients: its backward pass",
    "weights": "its weights after the step: averaging gradients, or the update",
    "optimizer": "its optimizer's state after the step",
}
_NOT_SUMMED = (
    "the checksums are equal in all steps: it is in what they are not of, such as an average of weights or a random state, or "
    "it came when the checkpoint was written"
)

# What tells on which process it was, by strategy, where several work on one model: the others' values are in all else.
_LOCAL = {"fsdp2": (), "pipeline": ("weights", "optimizer")}
_SHARED = {
    "fsdp2": "the processes compute with each other's pieces of weights and gradients",
    "pipeline": "the stages compute with what they hand each other",
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
    return metrics_rows(rows_at_end(file, METRICS_SCHEMA, size))


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


def lines_of_both(run: Told, again: Told) -> list[int]:
    """The steps whose lines are means over the same steps in both: where a run has ended in between, some are not."""
    one, other = _begins(run), _begins(again)
    return [step for step, begin in one.items() if step in other and other[step] == begin]


def _begins(told: Told) -> dict[int, int]:
    """By the step of each line, that of the line before it."""
    steps = sorted(told.lines)
    return dict(zip(steps, [0, *steps], strict=False))


def first_difference(
    run: Told,
    again: Told,
    after: int,
    until: int,
    ranks: int,
    weights_differ: bool,
    strategy: str = "ddp",
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
    shared = lines_of_both(run, again)
    line = next((each for each in shared if run.lines[each] != again.lines[each]), None)
    if found and (line is None or found[0] <= line):
        step, what, wrong, both = found
        if ranks > 1 and what not in _LOCAL.get(strategy, _ORDER):
            seen = f"{_SHARED[strategy]}; it shows first on rank {', '.join(map(str, wrong))}"
            return Difference(same + 1, step, _WHERE[what], None, seen)
        if ranks > 1 and len(wrong) == len(both):
            why = "all processes differ at once, as after an average of gradients of which one was wrong"
            return Difference(same + 1, step, _WHERE[what], None, why)
        return Difference(same + 1, step, _WHERE[what], wrong)
    alone = [0] if ranks == 1 else None
    unclear = (
        None if alone else "metrics have means over all processes: with checksum_steps, each is compared"
    )
    if line is not None:
        return Difference(min(same + 1, line), line, "the line of metrics", alone, unclear)
    if weights_differ and same >= until:
        return Difference(after + 1, until, "the checkpoint", alone, _NOT_SUMMED)
    if weights_differ:
        return Difference(same + 1, until, "the checkpoint", alone, unclear)
    return None
