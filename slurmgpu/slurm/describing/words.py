"""Names in Slurm's lists: those that a job could name in an option."""

from __future__ import annotations

import re

__all__ = ["sound", "words"]

_SOUND = re.compile(r"[^\s\"'#\\$`]+")


def sound(name: str) -> bool:
    """Whether a name can be written into a profile, and into an option; administrators may give others."""
    return _SOUND.fullmatch(name) is not None


def words(text: str) -> tuple[str, ...]:
    """The names in a list with commas, each once."""
    return tuple(dict.fromkeys(word for word in text.split(",") if sound(word)))
