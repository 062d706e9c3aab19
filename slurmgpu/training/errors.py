"""Ends of a training: one clear error, or a signal."""

from __future__ import annotations

from typing import Optional

__all__ = [
    "EvaluationFailed",
    "Handed",
    "Mismatch",
    "NotFinite",
    "Paused",
    "SettingsError",
    "TakenOver",
    "TrainingError",
]


class TrainingError(Exception):
    """An error that the user can act on; printed as one message, without a traceback (exit code 1)."""

    exit_code = 1


class SettingsError(TrainingError):
    """Settings that cannot be read, or that do not fit together (exit code 2)."""

    exit_code = 2


class NotFinite(TrainingError):
    """A loss, or a parameter, of NaN or infinity, with ``nonfinite: stop``."""

    def __init__(self, step: int, what: str = "the loss") -> None:
        super().__init__(
            f"{what} is not finite at step {step}, or in the steps logged with it: the training ends here, "
            "because nothing more can be learned; a checkpoint, if there is one, is from before. A smaller lr, "
            "clip_norm or a warm-up may help; nonfinite: skip leaves such steps out, nonfinite: ignore goes on. "
            "A start in this run directory takes them from its train.json"
        )


class Mismatch(TrainingError):
    """A step that ``verify_steps`` has found to be wrong, with ``mismatch: stop``; ``step`` is as it should be now."""

    def __init__(self, text: str, step: int) -> None:
        super().__init__(
            f"{text}. The training stops here, and what two of the three agree on is saved in checkpoints/step-{step}: "
            "start it again on other devices; mismatch: warn would go on"
        )
        self.step = step


class TakenOver(TrainingError):
    """Another run writes the checkpoints now, and this one must leave them alone."""


class EvaluationFailed(TrainingError):
    """The task's ``evaluate`` has raised an error on some ranks.

    Args:
        own: This rank's error, if it is one of them.
        changed: The model that would be saved is no longer the one that was trained.
    """

    def __init__(self, ranks: list[int], own: Optional[Exception], changed: bool) -> None:
        super().__init__(f"ends because evaluate failed on rank {', '.join(map(str, ranks))}")
        self.own, self.changed = own, changed


class Paused(Exception):
    """The training has stopped before its end, and everything is saved (exit code 75: try again later)."""

    exit_code = 75


class Handed(Exception):
    """The answer of the model is the next stage's (pipeline): nothing is left to do for this one."""
