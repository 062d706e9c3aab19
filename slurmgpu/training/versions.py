"""A state_dict's versions of modules, which a plain copy of it would lose."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["with_versions"]


def with_versions(
    state: dict[Any, Any], of: object, renamed: Callable[[str], str] = lambda module: module
) -> dict[Any, Any]:
    """Return the state with the versions of its modules, as ``state_dict()`` has them beside its entries.

    A module whose layout has changed reads a state without a version as one of its first, and changes what it reads.
    """
    versions = getattr(of, "_metadata", None)
    if not isinstance(versions, Mapping):
        return state
    found: Any = OrderedDict(state)
    found._metadata = OrderedDict(
        (renamed(module), {"version": facts["version"]})
        for module, facts in versions.items()
        if isinstance(facts, Mapping) and isinstance(facts.get("version"), int)
    )
    kept: dict[Any, Any] = found
    return kept
