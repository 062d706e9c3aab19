"""Names of weights, without what DDP and torch.compile put before them."""

from __future__ import annotations

from collections.abc import Mapping

from .errors import TrainingError
from .versions import with_versions

__all__ = ["plain_names"]

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
