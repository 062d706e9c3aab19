"""A recorded step's time, split: on the CPU by what its thread did, on a GPU by what the device did.

A GPU that is idle is told by what the thread that feeds it was at meanwhile.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from .trace import Span, Timeline, Track, common, length, longer, merged, without

__all__ = ["on_tensor_cores", "split_cpu", "split_gpu"]

# Times are in microseconds, as in a trace.
_MOST_NAMES = 5  # of operators, or of kernels
_MOST_LINES = 3  # lines of Python
_BUILT_IN = "<built-in"

_SHORT_OPERATOR = 20.0  # microseconds; what calls an operator takes a few
_STILL = 100.0  # without an operator, while a collective is under way: waiting for it
_NO_OPERATOR = 1000.0  # without an operator: not torch's doing
_COPY = re.compile(r"aten::(copy_|_foreach_copy_)")
_COLLATE = re.compile(r"aten::(copy_|cat|_cat|stack)")
# These are around others; what they have of their own is no work on tensors.
_AROUND = re.compile(
    r"autograd::engine|torch::autograd::AccumulateGrad|DistributedDataParallel|torch\.distributed|"
    r"Torch-Compiled Region|TorchDynamo|c10d::"
)

_NO_KERNEL = 1000.0  # microseconds between two kernels: more than a launch takes, whatever the host is at
_SHORT_KERNEL = 10.0  # a launch takes about as long as such a kernel
_PRODUCT = re.compile(r"gemm|gemv|conv|cutlass|nvjet|wgrad|dgrad|fprop|flash|fmha|mma|Cijk_", re.IGNORECASE)
# How NVIDIA's libraries name the kernels that use Tensor Cores: by the instruction's shape, or by what it is called.
_TENSOR = re.compile(
    r"[hsidcb]\d{3,5}(gemm|cudnn|fprop|dgrad|wgrad|_|$)|tensorop|hmma|imma|wgmma|gmma|tf32|nvjet|"
    r"xmma_(gemm|implicit_gemm|fprop|dgrad|wgrad|sparse|warp_specialized)|flash|fmha|s16816|s1688|h884|s884",
    re.IGNORECASE,
)
_NO_TENSOR = re.compile(
    r"simt|(ampere|volta|turing|maxwell|hopper|pascal)_(s|d)gemm|gemv|gemmSN|ffma", re.IGNORECASE
)


def split_cpu(found: Timeline, window: list[Span]) -> tuple[dict[str, float], dict[str, Any]]:
    """Microseconds of each part within the window, and what tells of them."""
    operators = alone(found.own, found.names, window)
    evaluating = common(found.in_phase("evaluating"), window)
    saving = without(common(found.in_phase("saving"), window), evaluating)
    left = without(without(window, evaluating), saving)
    data = common(found.in_phase("data"), left)
    inner = without(left, data)
    long = [each for each in operators if each.seconds >= _SHORT_OPERATOR and not _AROUND.match(each.name)]
    collated = common(_spans_of(long, _COLLATE), data)
    forward = common(found.in_phase("forward"), inner) if "forward" in found.phases else inner
    copying = common(_spans_of(long, _COPY), forward)
    computing = without(common(_spans_of(long), inner), copying)
    calls = merged(span for each in operators if not _AROUND.match(each.name) for span in each.spans)
    collectives = common(_covered(found.collectives), left)
    still = longer(without(inner, calls), _STILL)
    communicating = common(still, collectives)
    outside = without(longer(without(inner, calls), _NO_OPERATOR), communicating)
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


def _spans_of(operators: list[Alone], pattern: re.Pattern[str] = re.compile("")) -> list[Span]:
    return merged(span for each in operators if pattern.match(each.name) for span in each.spans)


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
    first = sorted(times.items(), key=lambda item: -item[1])[:_MOST_NAMES]
    return {
        "operators": len(counted) / steps,
        "operator_median_seconds": statistics.median(counted) / 1e6 if counted else 0.0,
        "short": sum(1 for each in counted if each < _SHORT_OPERATOR) / steps,
        "most": [[name, seconds / whole] for name, seconds in first],
    }


def split_gpu(found: Timeline, window: list[Span]) -> tuple[dict[str, float], dict[str, Any]]:
    """Microseconds of each part within the window, and what tells of them."""
    evaluating = common(found.in_phase("evaluating"), window)
    saving = without(common(found.in_phase("saving"), window), evaluating)
    left = without(without(window, evaluating), saving)
    kernels, collectives = common(_covered(found.kernels), left), common(_covered(found.collectives), left)
    copies = common(_covered(found.copies), left)
    communicating = without(collectives, kernels)
    copying = without(without(copies, kernels), collectives)
    idle = without(without(without(left, kernels), collectives), copies)
    data = found.in_phase("data")
    waiting = common(idle, data)
    host = without(idle, data)
    outside = longer(host, _NO_KERNEL)
    at_data = common(copying, data)
    parts = {
        "evaluating": length(evaluating),
        "saving": length(saving),
        "data": length(waiting),
        "copying_data": length(at_data),
        "copying": length(copying) - length(at_data),
        "computing": length(kernels),
        "communicating": length(communicating),
        "outside": length(outside),
        "small": length(host) - length(outside),
    }
    steps = max(1, len(found.steps))
    return parts, {
        **_of_kernels(found, window, steps),
        "lines": lines_in(found, outside, steps),
        **_of_copies(found, window, steps),
        "waits": _count(found.waits, window) / steps,
        "collectives": _count(found.collectives, window) / steps,
        "collective_seconds": length(collectives) / steps / 1e6,
    }


def _covered(track: Track) -> list[Span]:
    return merged(zip(track.starts, track.ends))


def _count(track: Track, window: list[Span]) -> int:
    return len(track.inside(window[0][0], window[-1][1]))


def on_tensor_cores(kernel: str) -> Optional[bool]:
    """Return True if a matrix product or a convolution used Tensor Cores, by its kernel's name; None: the name does not tell."""
    if _NO_TENSOR.search(kernel):
        return False
    return True if _TENSOR.search(kernel) else None


def _of_kernels(found: Timeline, window: list[Span], steps: int) -> dict[str, Any]:
    """Return how many there are, how long, which take most, and how much of the products' time is on Tensor Cores."""
    times: dict[str, float] = defaultdict(float)
    every: list[float] = []
    for start, end, number in found.kernels.inside(window[0][0], window[-1][1]):
        times[found.names[number]] += end - start
        every.append(end - start)
    products: dict[Optional[bool], float] = defaultdict(float)
    for name, seconds in times.items():
        if _PRODUCT.search(name) and not name.startswith("Mem"):
            products[on_tensor_cores(name)] += seconds
    whole = sum(times.values()) or 1.0
    first = sorted(times.items(), key=lambda item: -item[1])[:_MOST_NAMES]
    return {
        "operators": len(every) / steps,
        "operator_median_seconds": statistics.median(every) / 1e6 if every else 0.0,
        "short": sum(1 for each in every if each < _SHORT_KERNEL) / steps,
        "most": [[name, seconds / whole] for name, seconds in first],
        "products_seconds": sum(products.values()) / steps / 1e6,
        "tensor_core_seconds": products[True] / steps / 1e6,
        "no_tensor_core_seconds": products[False] / steps / 1e6,
    }


def _of_copies(found: Timeline, window: list[Span], steps: int) -> dict[str, Any]:
    seconds, sizes, pageable, count = 0.0, 0.0, 0, 0
    for number, (start, end) in enumerate(zip(found.copies.starts, found.copies.ends)):
        if window[0][0] <= start < window[-1][1]:
            seconds += end - start
            sizes += found.copied[number]
            count += 1
            pageable += "Pageable" in found.names[found.copies.names[number]]
    return {
        "copies": count / steps,
        "copy_seconds": seconds / steps / 1e6,
        "copied_bytes": sizes / steps,
        "pageable": pageable / steps,
    }


class Alone(NamedTuple):
    """A call, when it ran nothing that is recorded itself, and the name of what called it, if that is."""

    name: str
    caller: str
    seconds: float
    spans: list[Span]


def alone(track: Track, names: Sequence[str], window: list[Span]) -> list[Alone]:
    """Return each call of one thread, by itself."""
    ordered = track.inside(window[0][0], window[-1][1])
    spans: list[list[Span]] = [[] for _ in ordered]
    callers = [""] * len(ordered)
    stack: list[tuple[float, int]] = []  # end and number of those that are open
    at = 0.0
    for number, (start, end, _) in enumerate(ordered):
        at = _close(stack, spans, at, start)
        if stack:
            callers[number] = names[ordered[stack[-1][1]][2]]
            if start > at:
                spans[stack[-1][1]].append((at, start))
        at = start
        stack.append((min(end, stack[-1][0]) if stack else end, number))
    _close(stack, spans, at, float("inf"))
    return [
        Alone(names[name], caller, length(own), own)
        for (_, _, name), caller, own in zip(ordered, callers, spans)
    ]


def _close(stack: list[tuple[float, int]], spans: list[list[Span]], at: float, until: float) -> float:
    while stack and stack[-1][0] <= until:
        end, number = stack.pop()
        if end > at:
            spans[number].append((at, end))
            at = end
    return at


def lines_in(found: Timeline, spans: list[Span], steps: int) -> list[tuple[str, float]]:
    """Return the functions of Python that ran most of the time in these spans, and for how many seconds of a step."""
    track = found.functions.get(found.thread) if found.thread is not None else None
    if track is None or not spans:
        return []
    times: dict[str, float] = defaultdict(float)
    # What began before a step may still run in it.
    for each in alone(track, found.names, [(float("-inf"), float("inf"))]):
        inside = length(common(each.spans, spans))
        if inside:
            called = f"{each.name} in {each.caller}" if each.name.startswith(_BUILT_IN) else each.name
            times[called] += inside
    first = sorted(times.items(), key=lambda item: -item[1])[:_MOST_LINES]
    return [(name, seconds / steps / 1e6) for name, seconds in first]
