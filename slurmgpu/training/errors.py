"""What ends a training: one clear error, or a signal."""

from __future__ import annotations

__all__ = ["NotFinite", "Paused", "SettingsError", "TrainingError"]


class TrainingError(Exception):
    """An error that the user can act on; printed as one message, without a traceback (exit code 1)."""

    exit_code = 1


class SettingsError(TrainingError):
    """Settings that cannot be read, or that do not fit together (exit code 2)."""

    exit_code = 2


class NotFinite(TrainingError):
    """A loss of NaN or infinity, with ``nonfinite: stop``."""

    def __init__(self, step: int) -> None:
        super().__init__(
            f"the loss is no finite number at step {step}, or in the steps logged with it: the training ends "
            "here, for nothing more can be learned; the newest checkpoint is from before. A smaller lr, clip_norm "
            "or a warm-up may help; nonfinite: skip leaves such steps out, nonfinite: ignore goes on"
        )


class Paused(Exception):
    """The training has stopped before its end, and everything is saved (exit code 75: try again later)."""

    exit_code = 75
