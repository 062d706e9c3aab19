"""Holding jobs, releasing them, and putting them back into the queue: scontrol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from slurmgpu.slurm.answers import meaning_of
from slurmgpu.slurm.commands import Commands, unreachable
from slurmgpu.slurm.scancel import Said

__all__ = ["Verb", "control", "control_command"]

Verb = Literal["hold", "release", "requeue"]


def control_command(verb: Verb, ids: Sequence[str]) -> list[str]:
    """Return the scontrol command; it takes several jobs as one word.

    A job is held as its owner would (`uhold`): by an operator's `hold`, it could not be released by its owner (scontrol(1)).
    """
    return ["scontrol", "uhold" if verb == "hold" else verb, ",".join(ids)]


def control(slurm: Commands, verb: Verb, ids: Sequence[str]) -> Said:
    """Ask Slurm to hold, release or requeue jobs; it says nothing where it does so.

    Raises SlurmUnreachable when the request reached nobody; after a lost reply the queue has to tell.
    """
    answer = slurm.ask(control_command(verb, ids))
    meaning = meaning_of(answer)
    if meaning == "no answer":
        raise unreachable(answer)
    text = answer.text or (f"exit status {answer.rc}" if answer.rc else "")
    return Said(text, lost=meaning == "lost")
