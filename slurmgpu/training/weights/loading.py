"""Puts weights of a file into a model, and says what of them does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..errors import TrainingError
from ..names import with_versions
from ..processes.group import Group
from ..saving.pieces import cut_like
from ..settings import Settings
from ..sharding.local import is_sharded, local
from ..watching.console import Console
from .reading import read_state

__all__ = ["Fit", "load_into", "load_pretrained", "load_pretrained_cut", "new_name"]

_SHOWN = 8  # names of each kind: the whole fits on a screen


@dataclass
class Fit:
    """Weights that were taken, and those that were not: lines of names, with shapes where these differ."""

    taken: int
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    filled: list[str] = field(default_factory=list)
    """Names of the model's weights that have values of the file."""

    @property
    def whole(self) -> bool:
        """True if everything has found its place."""
        return not (self.missing or self.unexpected or self.shapes)

    def describe(self) -> str:
        """Return all of it in a few lines."""
        kinds = (
            ("of another shape or kind, left as they were", self.shapes),
            ("in the model alone, left as they were", self.missing),
            ("in the file alone, not used", self.unexpected),
        )
        lines = [f"{self.taken} weights of the model taken"]
        for what, names in kinds:
            if names:
                more = f" and {len(names) - _SHOWN} others" if len(names) > _SHOWN else ""
                lines.append(f"  {len(names)} {what}: {', '.join(names[:_SHOWN])}{more}")
        return "\n".join(lines)


def load_pretrained(
    model: torch.nn.Module,
    settings: Settings,
    group: Group,
    console: Console,
) -> None:
    """Put the weights that the settings name into the model, on all ranks; rank 0 alone reads them.

    Raises:
        TrainingError: on every rank, where they cannot be read, or do not fit.
    """
    if settings.pretrained is None:
        return
    path = Path(settings.pretrained).expanduser()
    fit = group.on_first(
        lambda: _fitted(model, path, settings, _renamed(read_state(path), settings.pretrained_rename))
    )
    group.share(model)
    console.say(f"pretrained {path}: {fit.describe()}")


def load_pretrained_cut(
    model: torch.nn.Module, settings: Settings, group: Group, console: Console
) -> frozenset[str]:
    """Do the same with a model of which each rank has a piece, and return the names of the weights that are loaded.

    Rank 0 alone reads them, and sends one after the other.
    """
    if settings.pretrained is None:
        return frozenset()
    path = Path(settings.pretrained).expanduser()
    read: Mapping[str, Any] = {}

    def read_and_describe() -> dict[str, Any]:
        nonlocal read
        read = _renamed(read_state(path), settings.pretrained_rename)
        described = {
            name: each.to("meta") if isinstance(each, torch.Tensor) else each for name, each in read.items()
        }
        return with_versions(described, read)

    described = group.on_first(read_and_describe)
    own = model.state_dict()
    state: dict[str, Any] = dict(described)
    for name, each in described.items():
        if isinstance(each, torch.Tensor):
            whole = read[name].to(group.device) if read else torch.empty_like(each, device=group.device)
            group.send(whole)
            state[name] = _like(whole, own.get(name), group.ranks.rank)
    fit = _fitted(model, path, settings, with_versions(state, described))
    console.say(f"pretrained {path}: {fit.describe()}")
    return frozenset(fit.filled)


def _like(whole: torch.Tensor, own: Any, rank: int) -> torch.Tensor:
    """Return the weight as the model has its own: cut, on the meta device, or whole."""
    if not isinstance(own, torch.Tensor):
        return whole.cpu()
    if own.shape != whole.shape:
        return whole
    if own.is_meta:
        return own
    return cut_like(whole, own, rank) if is_sharded(own) else whole


def _fitted(model: torch.nn.Module, path: Path, settings: Settings, state: Mapping[str, Any]) -> Fit:
    fit = load_into(model, state)
    if settings.pretrained_strict and not fit.whole:
        raise TrainingError(
            f"pretrained: {path} does not fit the model: {fit.describe().replace('taken', 'would fit', 1)}\n"
            "pretrained_rename gives names other beginnings; pretrained_strict: false takes what fits"
        )
    if not fit.taken:
        names = ", ".join(list(state)[:4]), ", ".join(list(model.state_dict())[:4])
        raise TrainingError(
            f"pretrained: nothing in {path} fits the model: it has {names[0]} ..., and the model {names[1]} ...; "
            "pretrained_rename gives names other beginnings"
        )
    return fit


def _renamed(state: Mapping[str, Any], rename: Mapping[str, str]) -> dict[str, Any]:
    """Return the state with other beginnings of names."""
    found: dict[str, Any] = {}
    for name, value in state.items():
        new = new_name(name, rename)
        if new in found:
            raise TrainingError(f"pretrained_rename: two weights would be named {new!r}; one was {name!r}")
        found[new] = value
    return with_versions(found, state, lambda module: new_name(f"{module}.", rename)[:-1] if module else "")


def new_name(name: str, rename: Mapping[str, str]) -> str:
    """Return the name with another beginning: of all in ``rename`` that apply, the longest."""
    old = max((each for each in rename if name.startswith(each)), key=len, default=None)
    return name if old is None else rename[old] + name[len(old) :]


def load_into(model: torch.nn.Module, state: Mapping[str, Any]) -> Fit:
    """Put what fits of the weights into a model, each in the model's own dtype."""
    own = model.state_dict()
    different = {
        name: f"{name} ({_about(state[name])}, and the model {_about(own[name])})"
        for name in own
        if name in state and not _alike(state[name], own[name])
    }
    fits = with_versions({name: value for name, value in state.items() if name not in different}, state)
    tied = _tied(own)
    missing = [name for name in own if name not in state and not tied.get(name, set()) & fits.keys()]
    try:
        # The modules' own hooks may know older names, and what may be missing.
        result = model.load_state_dict(fits, strict=False)
    except (RuntimeError, ValueError, KeyError) as error:
        raise TrainingError(f"pretrained: the model does not take the weights: {error}") from error
    absent = [name for name in result.missing_keys if name in missing]
    return Fit(
        len(own.keys() & fits.keys()),
        absent,
        list(result.unexpected_keys),
        list(different.values()),
        [name for name in own if name not in missing and name not in different],
    )


def _tied(own: Mapping[str, Any]) -> dict[str, set[str]]:
    """Names of the same memory: a file may have just one of them."""
    groups: dict[object, set[str]] = {}
    for name, value in own.items():
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.numel():
            piece = local(value)
            memory = (piece.untyped_storage()._cdata, piece.storage_offset(), value.shape, value.stride())
            groups.setdefault(memory, set()).add(name)
    return {name: names for names in groups.values() for name in names}


def _alike(one: Any, other: Any) -> bool:
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return type(one) is type(other)
    kinds = ((each.is_floating_point(), each.is_complex()) for each in (one, other))
    return one.shape == other.shape and len(set(kinds)) == 1


def _about(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__
