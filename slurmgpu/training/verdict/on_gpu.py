"""A step on a GPU: what the device was at, and, where it was idle, what the thread that feeds it was at."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from typing import Any, Optional

from .alone import lines_in
from .intervals import Span, common, length, longer, merged, without
from .timeline import Timeline, Track

__all__ = ["on_tensor_cores", "split_gpu"]

_GAP = 1000.0  # microseconds between two kernels: more than a launch takes, whatever the host is at
_SHORT = 10.0  # a launch takes about as long as such a kernel
_MOST = 5  # names of kernels
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


def split_gpu(found: Timeline, window: list[Span]) -> tuple[dict[str, float], dict[str, Any]]:
    """Microseconds of each part within the window, and what tells of them."""
    evaluating = common(found.in_phase("evaluating"), window)
    saving = without(common(found.in_phase("saving"), window), evaluating)
    left = without(without(window, evaluating), saving)
    kernels, collectives = common(_spans(found.kernels), left), common(_spans(found.collectives), left)
    copies = common(_spans(found.copies), left)
    communicating = without(collectives, kernels)
    copying = without(without(copies, kernels), collectives)
    idle = without(without(without(left, kernels), collectives), copies)
    data = found.in_phase("data")
    waiting = common(idle, data)
    host = without(idle, data)
    outside = longer(host, _GAP)
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


def _spans(track: Track) -> list[Span]:
    return merged(zip(track.starts, track.ends))


def _count(track: Track, window: list[Span]) -> int:
    return len(track.inside(window[0][0], window[-1][1]))


def on_tensor_cores(kernel: str) -> Optional[bool]:
    """Whether a matrix product or a convolution used Tensor Cores, by its kernel's name; None: the name does not tell."""
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
    first = sorted(times.items(), key=lambda item: -item[1])[:_MOST]
    return {
        "operators": len(every) / steps,
        "operator_median_seconds": statistics.median(every) / 1e6 if every else 0.0,
        "short": sum(1 for each in every if each < _SHORT) / steps,
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
