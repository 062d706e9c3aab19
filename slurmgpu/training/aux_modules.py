"""Things that a task keeps outside its model: modules that its loss uses, and state that no checkpoint has."""

from __future__ import annotations

import inspect
import itertools
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import CodeType
from typing import Optional

import torch
from torch import nn

from .errors import TrainingError
from .generators import own_attributes, raw_bytes

__all__ = ["AuxModules", "UnsavedState"]


# Of a list of modules that a task keeps, so many are looked at.
_MOST_IN_A_LIST = 64


class AuxModules:
    """The modules that ``loss`` and ``evaluate`` use and that are not the model's, moved to the device.

    They are found by the names in these methods and in those they call. A module that only the dataset uses stays on
    the CPU, where the data-loader workers are.
    """

    def __init__(self, user: object, model: nn.Module, device: torch.device) -> None:
        own = {id(each) for each in model.modules()}
        self._modules = {name: each for name, each in _named(user).items() if id(each) not in own}
        for name, module in self._modules.items():
            tensors = (*module.parameters(), *module.buffers())
            if any(each.is_meta for each in tensors):
                raise TrainingError(
                    f"meta_device is true, and model(cfg) makes {name} beside the model, which then has no values: make it in "
                    "the task's __init__ or prepare, or set meta_device: false"
                )
            module.to(device)
        self._before = [(name, tensor, tensor._version) for name, tensor in self._tensors()]

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, module in self._modules.items():
            for inner, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
                yield f"{name}.{inner}", tensor

    def refuse_trained(
        self, groups: Iterable[Mapping[str, Iterable[torch.Tensor]]], model: nn.Module, where: str
    ) -> None:
        """Raise where the optimizer trains what is not the model's: a resume would lose it, and ranks go apart."""
        own = {id(each) for each in model.parameters()}
        names = {id(tensor): name for name, tensor in self._tensors()}
        trained = itertools.chain.from_iterable(group["params"] for group in groups)
        others = [each for each in trained if id(each) not in own]
        if others:
            named = ", ".join(names.get(id(each), f"one of shape {tuple(each.shape)}") for each in others[:4])
            raise TrainingError(
                f"{where}: the optimizer trains {len(others)} parameter(s) that are not the model's ({named}): "
                "checkpoints hold the model's, and processes share the gradients of the model's; "
                "make them part of what model(cfg) returns, and use them in its forward"
            )

    def changed(self) -> list[str]:
        """Return the names of tensors that are not as they were at the start: no checkpoint holds them."""
        now = dict(self._tensors())
        return [
            name
            for name, tensor, version in self._before
            if now.get(name) is not tensor or tensor._version != version
        ]


def _named(user: object) -> dict[str, nn.Module]:
    """Return the modules by the names that the methods use for them."""
    found: dict[str, nn.Module] = {}
    todo, seen = ["loss", "step", "evaluate"], {"loss", "step", "evaluate"}
    file = getattr(type(user), "__module__", None)
    while todo:
        name = todo.pop()
        for value, globals_ in _meanings(user, name):
            found.update(_modules(name, value))
            for inner in _names_in(value):
                if inner not in seen:
                    seen.add(inner)
                    todo.append(inner)
                outside = globals_.get(inner)
                found.update(_modules(inner, outside))
                if inspect.isfunction(outside) and outside.__module__ == file:
                    for further in _names_in(outside):
                        found.update(_modules(further, outside.__globals__.get(further)))
    return found


def _meanings(user: object, name: str) -> Iterator[tuple[object, Mapping[str, object]]]:
    """Yield what a name is on the task: its own attribute, and that of each of its classes; with the globals seen there."""
    for space in (getattr(user, "__dict__", {}), *(vars(kind) for kind in type(user).__mro__)):
        if name in space:
            value = space[name]
            if isinstance(value, (staticmethod, classmethod)):
                value = value.__func__
            if inspect.isfunction(value):
                value = inspect.unwrap(value)  # evaluate is often wrapped by torch.no_grad()
            yield value, getattr(value, "__globals__", {})
    inner = user._modules if isinstance(user, nn.Module) else {}
    if name in inner:
        yield inner[name], {}


def _names_in(value: object) -> Iterable[str]:
    code = getattr(value, "__code__", None)
    if isinstance(code, CodeType):
        yield from code.co_names
        for constant in code.co_consts:  # functions and comprehensions inside
            if isinstance(constant, CodeType):
                yield from constant.co_names


def _modules(name: str, value: object) -> Iterator[tuple[str, nn.Module]]:
    """Yield the module, or those of a list or mapping, with their names."""
    if isinstance(value, nn.Module):
        yield name, value
    elif isinstance(value, (list, tuple, dict)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in itertools.islice(items, _MOST_IN_A_LIST):
            if isinstance(each, nn.Module):
                yield f"{name}[{key!r}]", each


# Values of a tensor, beyond which it is not looked at.
_MOST_VALUES = 1 << 16


class UnsavedState:
    """Numbers, texts, containers and tensors in attributes of the task and of the model's modules.

    Such as a temperature that falls with each forward pass. Buffers that are not persistent count, too.
    """

    def __init__(self, user: object, model: nn.Module) -> None:
        self._user, self._model = user, model
        self._before: Optional[dict[str, object]] = None

    def changed(self) -> list[str]:
        """Return the names of what has changed since the first call, after a step: the first batch sets many for good."""
        now = dict(self._all())
        if self._before is None:
            self._before = now
        return [name for name, mark in now.items() if name in self._before and self._before[name] != mark]

    def _all(self) -> Iterator[tuple[str, object]]:
        for where, module in self._model.named_modules(prefix="model"):
            for name in module._non_persistent_buffers_set:
                yield f"{where}.{name}", _mark(getattr(module, name))
            yield from _marks(where, module)
        if self._user is not self._model:
            yield from _marks(type(self._user).__name__, self._user)


def _marks(where: str, holder: object) -> Iterator[tuple[str, object]]:
    kept = own_attributes(holder) if isinstance(holder, nn.Module) else getattr(holder, "__dict__", {})
    for name, value in list(kept.items()):
        mark = _mark(value)
        if mark is not None:
            yield f"{where}.{name}", mark


def _mark(value: object) -> Optional[tuple[object, ...]]:
    """Return what tells two values apart at little cost; None: of this kind it is not known."""
    if isinstance(value, torch.Tensor):
        # By its values: DDP writes each buffer anew before a forward pass, and it is the same.
        known = (
            value.numel() <= _MOST_VALUES and not value.is_meta
        )  # as what other processes of a pipeline have
        return ("tensor", zlib.crc32(raw_bytes(value))) if known else None
    if isinstance(value, (bool, int, float, str)):
        return "plain", repr(value)
    if isinstance(value, Collection) and hasattr(value, "__len__"):
        return "length", len(value)
    return None
