"""State dicts: names of weights without what DDP and torch.compile put before them, and the versions of their modules."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from .errors import TrainingError

__all__ = ["plain_names", "with_versions"]

_COMPILED = "_orig_mod"
_WRAPPED = "module."


def plain_names(state: Mapping[object, object], *, wrapped: bool) -> dict[object, object]:
    """Return the state under the plain model's names: without torch.compile's, and if ``wrapped`` without DDP's.

    DDP's is removed only where all names begin with it: a model may have a part named module.
    """
    plain = {_without_compiled(name): value for name, value in state.items()}
    cut = 0
    if wrapped and plain and all(str(name).startswith(_WRAPPED) for name in plain):
        cut = len(_WRAPPED)
        plain = {str(name)[cut:]: value for name, value in plain.items()}
    if len(plain) != len(state):
        raise TrainingError("two tensors would get one name: the state has them compiled and not compiled")
    return with_versions(plain, state, lambda module: str(_without_compiled(module))[cut:])


def _without_compiled(name: object) -> object:
    if not isinstance(name, str):
        return name
    return ".".join(part for part in name.split(".") if part != _COMPILED)


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
