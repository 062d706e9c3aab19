"""A verdict as lines for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .wording import called, time

__all__ = ["lines", "summary"]

_SEEN = 0.005  # of a step; less is not listed
_OF = {
    "steps": "a step",
    "training": "all the time that is logged",
    "rest": "what is left of a step without waiting for a CPU",
}
Values = Mapping[str, Any]


def lines(verdict: Values) -> list[str]:
    """Return all of it: where it was measured, the shares, and each cause with what shows it and what to change."""
    shares = sorted(verdict["shares"].items(), key=lambda item: -float(item[1]))
    found = [f"a step takes {time(verdict['step_seconds'])} ({_measured(verdict)})"]
    found += [
        f"{100 * share:5.1f} %  {called(name, verdict['device'])}" for name, share in shares if share >= _SEEN
    ]
    of_training = verdict["of_training"]
    if of_training:
        told = ", ".join(
            f"{called(name, verdict['device'])} {100 * share:.1f} %" for name, share in of_training.items()
        )
        found.append(f"of all the time that is logged: {told}")
    cores = verdict["tensor_cores"]
    if cores is not None:
        found.append(
            f"Tensor Cores: {100 * cores['share']:.0f} % of the time of matrix products and convolutions whose kernels "
            f"tell, which are {100 * cores['of_step']:.0f} % of a step{_slow_products(cores)}"
        )
    for number, cause in enumerate(verdict["causes"]):
        found += [f"{'verdict' if not number else 'also'}: {_cause(cause, verdict['device'])}"]
        found += [f"  evidence: {cause['evidence']}", f"  change: {cause['change']}"]
    if not verdict["causes"]:
        found.append(f"verdict: no clear cause{_computing(verdict)}")
    return found


def summary(verdict: Values) -> list[str]:
    """Return the same in a few lines, for a log."""
    shares = sorted(verdict["shares"].items(), key=lambda item: -float(item[1]))
    listed = ", ".join(
        f"{called(name, verdict['device'])} {100 * share:.0f} %" for name, share in shares if share >= 0.01
    )
    found = [f"profile: a step takes {time(verdict['step_seconds'])} ({_measured(verdict)}): {listed}"]
    for number, cause in enumerate(verdict["causes"]):
        head = "verdict" if not number else "also"
        found.append(
            f"profile: {head}: {_cause(cause, verdict['device'])}: {cause['evidence']}. To change: {cause['change']}"
        )
    if not verdict["causes"]:
        found.append(f"profile: verdict: no clear cause{_computing(verdict)}")
    return found


def _cause(cause: Values, device: str) -> str:
    return f"{called(cause['cause'], device)}, {100 * cause['share']:.0f} % of {_OF[cause['of']]}"


def _computing(verdict: Values) -> str:
    return f"; {100 * verdict['shares']['computing']:.0f} % of a step is computing"


def _slow_products(cores: Values) -> str:
    if cores["share"] >= 0.5 or cores["of_step"] < 0.2:
        return ""
    return "; precision: bf16 or fp16, or tf32: true, would use them"


def _measured(verdict: Values) -> str:
    ranks = verdict["ranks"]
    of = f"; mean of {len(ranks)} ranks" if len(ranks) > 1 else f"; rank {ranks[0]}"
    recorded = verdict["recorded_steps"]
    if verdict["timed_steps"] is None:
        steps = f"{recorded} steps" if recorded else "the whole trace"
        return f"{steps} as recorded: the profiler's own time is in it{of}"
    slower = verdict["recording_seconds"] / (verdict["step_seconds"] or 1.0)
    return (
        f"{verdict['timed_steps']} steps timed, {recorded} recorded to split them; "
        f"recording made a step {100 * slower:.0f} % slower, which is left out{of}"
    )
