"""From the parts of a step to what costs time, how that is known, and what to change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from .measuring import PARTS
from .wording import advice, evidence

__all__ = ["LEAST", "OF_ALL", "SCHEMA", "judge"]

SCHEMA = "slurmgpu.profile-verdict/1"

LEAST = {
    "data": 0.15, "copying": 0.15, "small": 0.3, "communicating": 0.2, "waiting": 0.15, "outside": 0.2,
    "queued": 0.15, "evaluating": 0.3, "saving": 0.1,
}  # fmt: skip
"""The share of the time from which on a part is called a cause; computing is what the time is for."""
_MOST_QUEUED = 0.5
OF_ALL = ("evaluating", "saving")
"""Parts whose share of the whole training counts, where it is known: a few steps do not tell how often they come."""

Measured = Mapping[str, Any]


def judge(
    ranks: Mapping[int, Measured],
    settings: Mapping[str, Any],
    of_training: Optional[Mapping[str, float]] = None,
) -> dict[str, Any]:
    """Return the verdict on a training, from what ``measure`` found on each rank.

    ``of_training`` has the shares of evaluating and saving of all the time that is logged, where that is known.
    """
    whole = dict(of_training or {})
    own = _together(ranks)
    seconds = own["step_seconds"] or 1.0
    shares = {name: value / seconds for name, value in own["parts"].items()}
    causes = _causes(own, shares, whole, len(ranks))
    for each in causes:
        name = each["cause"]
        each.update(evidence=evidence(name, own, settings), change=advice(name, own, settings))
    kept = ("device", "step_seconds", "timed_steps", "recorded_steps", "recording_seconds")
    return {
        "schema": SCHEMA,
        "ranks": sorted(ranks),
        **{name: own[name] for name in kept},
        "shares": shares,
        "of_training": whole,
        "tensor_cores": _tensor_cores(own),
        "causes": causes,
    }


def _together(ranks: Mapping[int, Measured]) -> dict[str, Any]:
    """Return the mean rank. Who communicates least is who the others wait for: more than its time is waiting."""
    found = list(ranks.values())
    parts = {name: sum(each["parts"][name] for each in found) / len(found) for name in PARTS}
    last = min(ranks, key=lambda rank: ranks[rank]["parts"]["communicating"])
    parts["waiting"] = parts["communicating"] - ranks[last]["parts"]["communicating"]
    parts["communicating"] -= parts["waiting"]
    own = {**ranks[min(ranks)], "parts": parts, "step_seconds": sum(parts.values())}
    return {**own, "last_rank": last, "last_by": _behind(ranks, last)}


def _causes(
    own: Measured, shares: Mapping[str, float], whole: Mapping[str, float], world: int
) -> list[dict[str, Any]]:
    """Return the parts that are causes, the largest first, each with its share and of what that is.

    Where a CPU is waited for, the others are judged by what is left without it: as they are on a quiet machine. Where that is
    less than half of a step, it tells nothing of them.
    """
    alone = _of_the_last(own, world) if shares["waiting"] >= LEAST["waiting"] else {}
    queued = shares["queued"] if shares["queued"] >= LEAST["queued"] else 0.0
    found = []
    for name, least in LEAST.items():
        share, of, rest = shares.get(name, 0.0), "steps", 1.0
        if name in OF_ALL and name in whole:
            share, of = whole[name], "training"
        elif queued > _MOST_QUEUED and name != "queued":
            continue
        elif queued and name != "queued":
            of, rest = "rest", 1 - queued
        if (share - alone.get(name, 0.0)) / rest >= least:
            found.append((share, {"cause": name, "share": share / rest, "of": of}))
    return [each for _, each in sorted(found, key=lambda one: -one[0])]


def _of_the_last(own: Measured, world: int) -> dict[str, float]:
    """Return the share of a mean step that the rank which the others wait for is behind by: that is told of this rank alone."""
    name, seconds = own["last_by"]
    return {name: seconds / world / (own["step_seconds"] or 1.0)}


def _behind(ranks: Mapping[int, Measured], last: int) -> tuple[str, float]:
    """In which part a rank is behind the others' mean, and by how many seconds of a step."""
    others = [each["parts"] for rank, each in ranks.items() if rank != last]
    if not others:
        return "computing", 0.0
    own = ranks[last]["parts"]
    more = {
        name: own[name] - sum(each[name] for each in others) / len(others)
        for name in PARTS
        if name != "communicating"
    }
    name = max(more, key=lambda each: more[each])
    return name, more[name]


def _tensor_cores(own: Measured) -> Optional[dict[str, float]]:
    """Return how much of the time of matrix products and convolutions is on Tensor Cores; None where nobody can tell."""
    facts = own["facts"]
    used, unused = facts.get("tensor_core_seconds", 0.0), facts.get("no_tensor_core_seconds", 0.0)
    if not used + unused:
        return None
    return {
        "share": used / (used + unused),
        "of_step": facts["products_seconds"] / (own["step_seconds"] or 1.0),
    }
