"""Changes by the last evaluation of a training, where a checkpoint of its last step is there already.

A signal may stop a training after its last step and before its last evaluation. The next start makes up for the
evaluation, which may lower a rate (``ReduceLROnPlateau``) or change what the task keeps. Weights, and what an optimizer
keeps for them, stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..optimizers import with_groups_of, without_states

LATE = "late.pt"
"""The part beside ``training.pt`` that holds it."""


def evaluated(common: Mapping[str, object], own: Mapping[str, object], together: bool) -> dict[str, Any]:
    """Return what of the parts an evaluation may have changed; of the task's own state, where one process has all of it."""
    if "state.pt" in common:  # of a loop of one's own: all of it
        return dict(common["state.pt"])  # type: ignore[call-overload, no-any-return]
    training = common["training.pt"]
    assert isinstance(training, dict)
    late = {**training, "optimizer": without_states(training["optimizer"])}
    return late if together or "task" not in own else {**late, "task": own["task"]}


def with_late(training: dict[str, Any], late: Mapping[str, Any]) -> dict[str, Any]:
    """``training.pt`` as it would be, had it been saved after the last evaluation."""
    if not late:
        return training
    return {**training, **late, "optimizer": with_groups_of(late["optimizer"], training["optimizer"])}
