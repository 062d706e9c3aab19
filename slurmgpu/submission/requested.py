"""A planned job with its script, and what the rules say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from slurmgpu.errors import PlanError

if TYPE_CHECKING:
    from slurmgpu.files.jobs import LoadedJob
    from slurmgpu.models.cluster import Cluster
    from slurmgpu.models.plan import Plan
    from slurmgpu.planning.reading import ScriptFacts

__all__ = ["Remark", "Requested", "Verdict"]


class Requested(NamedTuple):
    """A planned job with its script, and what both came from."""

    plan: Plan
    script: str
    loaded: LoadedJob
    cluster: Cluster
    python: ScriptFacts | None = None
    """What the user's script shows, where it was read already."""
    batch: tuple[str, str] | None = None
    """Name and text of the batch script that was taken as a job."""


class Remark(NamedTuple):
    """What is wrong with a request, in the words in which it was made, and what to write instead."""

    message: str
    hint: str


class Verdict(NamedTuple):
    """What the rules say of a request."""

    errors: tuple[Remark, ...] = ()
    warnings: tuple[Remark, ...] = ()

    def refuse(self, otherwise: str | None = None) -> None:
        """PlanError where something cannot work; ``otherwise`` says how to send it all the same."""
        if self.errors:
            hints = [*dict.fromkeys(one.hint for one in self.errors), *([otherwise] if otherwise else [])]
            raise PlanError("; ".join(one.message for one in self.errors), hint="; ".join(hints))
