"""What is said of the machine that was measured, and of its figures."""

from __future__ import annotations

from collections.abc import Mapping

from slurmgpu.monitoring.benching.results import Results
from slurmgpu.monitoring.json_rows import positive, whole
from slurmgpu.monitoring.reporting.wording import count

__all__ = ["digits", "is_busy", "machine_line"]

_BUSY = 0.5
"""Processes that run or wait for a CPU, for each CPU: from there on, others slow down what is measured."""


def digits(rate: float) -> str:
    """A number of samples a second: whole from 100 on, three digits below."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def machine_line(results: Results) -> str:
    """The node, its processors and the software, in a line."""
    machine = results.machine
    if not machine:
        return "nothing was measured"
    gpus = machine.get("gpus")
    names = (
        [str(one.get("name")) for one in gpus if isinstance(one, Mapping)] if isinstance(gpus, list) else []
    )
    processors = ", ".join(
        [f"{count(whole(machine.get('cpus')) or 0, 'CPU')} ({machine.get('cpu') or 'of an unknown model'})"]
        + [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    )
    return f"{machine.get('node')}: {processors}; torch {machine.get('torch')}; {machine.get('when')}"


def is_busy(results: Results) -> bool:
    """Whether others used the machine as the measuring began."""
    load, cpus = positive(results.machine.get("load")), whole(results.machine.get("cpus"))
    return load is not None and bool(cpus) and load / (cpus or 1) > _BUSY
