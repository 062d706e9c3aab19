"""The training entrypoint: torch and the standard library only, to run wherever torch runs.

``Run`` is for scripts with a loop of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .own import Run

__all__ = ["Run"]


def __getattr__(name: str) -> object:
    # torch takes a second to import: only when it is needed.
    if name == "Run":
        from .own import Run

        return Run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
