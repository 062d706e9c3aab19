"""A step on the CPU: what the thread that takes the steps was at."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from typing import Any

from .alone import Alone, alone, lines_in
from .intervals import Span, common, length, longer, merged, without
from .timeline import Timeline

__all__ = ["split_cpu"]

_SHORT = 20.0  # microseconds; what calls an operator takes a few
_STILL = 100.0  # without an operator, while a collective is under way: waiting for it
_GAP = 1000.0  # without an operator: not torch's doing
_COPY = re.compile(r"aten::(copy_|_foreach_copy_)")
_COLLATE = re.compile(r"aten::(copy_|cat|_cat|stack)")
# These are around others; what they have of their own is no work on tensors.
_AROUND = re.compile(
    r"autograd::engine|torch::autograd::AccumulateGrad|DistributedDataParallel|torch\.distributed|"
    r"Torch-Compiled Region|TorchDynamo|c10d::"
)
_MOST = 5  # names of operators


def split_cpu(found: Timeline, window: list[Span]) -> tuple[dict[str, float], dict[str, Any]]:
    """Microseconds of each part within the window, and what tells of them."""
    operators = alone(found.own, found.names, window)
    evaluating = common(found.in_phase("evaluating"), window)
    saving = without(common(found.in_phase("saving"), window), evaluating)
    left = without(without(window, evaluating), saving)
    data = common(found.in_phase("data"), left)
    inner = without(left, data)
    long = [each for each in operators if each.seconds >= _SHORT and not _AROUND.match(each.name)]
    collated = common(_spans(long, _COLLATE), data)
    forward = common(found.in_phase("forward"), inner) if "forward" in found.phases else inner
    copying = common(_spans(long, _COPY), forward)
    computing = without(common(_spans(long), inner), copying)
    calls = merged(span for each in operators if not _AROUND.match(each.name) for span in each.spans)
    collectives = common(_collectives(found), left)
    still = longer(without(inner, calls), _STILL)
    communicating = common(still, collectives)
    outside = without(longer(without(inner, calls), _GAP), communicating)
    parts = {
        "evaluating": length(evaluating),
        "saving": length(saving),
        "data": length(data) - length(collated),
        "copying_data": length(collated),
        "copying": length(copying),
        "computing": length(computing),
        "communicating": length(communicating),
        "outside": length(outside),
    }
    parts["small"] = max(0.0, length(window) - sum(parts.values()))
    steps = max(1, len(found.steps))
    facts = {
        **_of_operators(operators, inner, steps),
        "lines": lines_in(found, outside, steps),
        "copies": sum(1 for each in long if _COLLATE.match(each.name)) / steps,
        "copying_data_seconds": length(collated) / steps / 1e6,
        "collectives": sum(1 for start in found.collectives.starts if _within(start, window)) / steps,
        "collective_seconds": length(collectives) / steps / 1e6,
    }
    return parts, facts


def _spans(operators: list[Alone], pattern: re.Pattern[str] = re.compile("")) -> list[Span]:
    return merged(span for each in operators if pattern.match(each.name) for span in each.spans)


def _collectives(found: Timeline) -> list[Span]:
    return merged(zip(found.collectives.starts, found.collectives.ends))


def _within(at: float, window: list[Span]) -> bool:
    return window[0][0] <= at < window[-1][1]


def _of_operators(operators: list[Alone], inner: list[Span], steps: int) -> dict[str, Any]:
    """Return how many there are, how long, and which take most."""
    times: dict[str, float] = defaultdict(float)
    counted: list[float] = []
    for each in operators:
        if _AROUND.match(each.name) or not each.spans or not common(each.spans, inner):
            continue
        times[each.name] += each.seconds
        counted.append(each.seconds)
    whole = sum(times.values()) or 1.0
    first = sorted(times.items(), key=lambda item: -item[1])[:_MOST]
    return {
        "operators": len(counted) / steps,
        "operator_median_seconds": statistics.median(counted) / 1e6 if counted else 0.0,
        "short": sum(1 for each in counted if each < _SHORT) / steps,
        "most": [[name, seconds / whole] for name, seconds in first],
    }
