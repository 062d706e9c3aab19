"""Questions that were shown, each with a key that counts once: what nobody was asked is not done, and nothing is done twice."""

from __future__ import annotations

import secrets
import threading
import time
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Questions"]

T = TypeVar("T")

_MOST = 256
_GOOD_FOR = 900.0
"""Seconds within which a person answers."""


class _Asked(NamedTuple, Generic[T]):
    what: T
    at: float


class Questions(Generic[T]):
    """What was asked, by the key that its form holds."""

    def __init__(self) -> None:
        self._asked: dict[str, _Asked[T]] = {}
        self._lock = threading.Lock()

    def ask(self, what: T) -> str:
        """The key for a form that asks this."""
        key = secrets.token_urlsafe(16)
        with self._lock:
            while len(self._asked) >= _MOST:
                del self._asked[next(iter(self._asked))]
            self._asked[key] = _Asked(what, time.monotonic())
        return key

    def answered(self, key: str) -> T | None:
        """What was asked with this key; None where nothing was, long ago, or where it was answered before."""
        with self._lock:
            asked = self._asked.pop(key, None)
        return asked.what if asked is not None and time.monotonic() - asked.at < _GOOD_FOR else None
