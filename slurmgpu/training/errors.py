"""What ends a training: one clear error, or a signal."""

from __future__ import annotations

import signal

__all__ = ["SettingsError", "Stopped", "TrainingError"]


class TrainingError(Exception):
    """An error that the user can act on; printed as one message, without a traceback (exit code 1)."""

    exit_code = 1


class SettingsError(TrainingError):
    """Settings that cannot be read, or that do not fit together (exit code 2)."""

    exit_code = 2


class Stopped(BaseException):
    """A signal asked this process to end; no ``Exception``, so that a task cannot swallow it by accident."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = signal.Signals(number).name
        self.exit_code = 128 + number
