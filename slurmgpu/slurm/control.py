"""Ending jobs. scancel's exit status says little; the queue afterwards says what happened.

Holding jobs, releasing them, and putting them back into the queue: scontrol.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from slurmgpu.errors import InvalidInput
from slurmgpu.slurm.commands import Commands, unreachable
from slurmgpu.slurm.text import meaning_of

__all__ = ["Said", "Verb", "cancel", "cancel_command", "check_signal", "control", "control_command"]


_SIGNAL = re.compile(r"(?:SIG)?[A-Z][A-Z0-9]{1,9}|\d{1,2}", re.ASCII)


def check_signal(signal: str | None) -> None:
    """Raise InvalidInput for what cannot be a signal's name; None is not a signal."""
    if signal is not None and not _SIGNAL.fullmatch(signal.upper()):
        raise InvalidInput(
            f"signal {signal!r} is not a signal's name: use a name such as TERM, USR1, USR2 or INT, or a number"
        )


def cancel_command(ids: Sequence[str], signal: str | None = None) -> list[str]:
    """Return the scancel command; with a signal the jobs live on if they handle it."""
    check_signal(signal)
    if signal is None:
        return ["scancel", *ids]
    return ["scancel", f"--signal={signal.upper()}", *ids]


class Said(NamedTuple):
    """What scancel said, usually nothing."""

    text: str
    lost: bool
    """Whether it could not tell what became of the request."""


def cancel(slurm: Commands, ids: Sequence[str], signal: str | None = None) -> Said:
    """Ask Slurm to end jobs, or to signal their steps.

    Raises SlurmUnreachable when the request reached nobody; after a lost reply the queue has to tell.
    """
    answer = slurm.ask(cancel_command(ids, signal))
    meaning = meaning_of(answer)
    if meaning == "no answer":
        raise unreachable(answer)
    return Said(answer.text, lost=meaning == "lost")


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
