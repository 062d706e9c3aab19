"""One exception root, a few children; each knows the exit code it ends the command with.

A message names the field, the value, what is valid and the next act, in that order.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "InvalidInput",
    "OutcomeUnknown",
    "PlanError",
    "RunFailed",
    "SlurmGpuError",
    "SlurmRefused",
    "SlurmUnreachable",
    "did_you_mean",
    "nearest",
]


class SlurmGpuError(Exception):
    """Base of every error of slurmgpu: a sentence for the user, and the exit code.

    ``hint`` is the next act, printed on a line of its own.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Return the message and the next act, for those who see a traceback: users of ``slurmgpu.submit``."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidInput(SlurmGpuError):
    """A file, an option or a value that cannot be read (exit code 2)."""

    exit_code = 2


class PlanError(SlurmGpuError):
    """A request that the described cluster cannot satisfy (exit code 1)."""


class RunFailed(SlurmGpuError):
    """Something that was started here and failed (exit code 1)."""


class SlurmRefused(SlurmGpuError):
    """Slurm answered, and the answer was no; its own words are in the message (exit code 1)."""


class OutcomeUnknown(SlurmGpuError):
    """Slurm may or may not have done what was asked; nothing is tried again (exit code 3)."""

    exit_code = 3


class SlurmUnreachable(SlurmGpuError):
    """Slurm is not installed here, or its controller does not answer (exit code 4)."""

    exit_code = 4


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word that is most like another, if one is; ``cutoff`` is how alike, from 0 to 1 (difflib)."""
    from difflib import get_close_matches  # only a mistake pays for it

    return next(iter(get_close_matches(word, list(known), n=1, cutoff=cutoff)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``did you mean 'gpu'? `` for a word that is like a known one, with a blank behind it; '' for any other."""
    near = nearest(word, known)
    return f"did you mean {near!r}? " if near else ""
