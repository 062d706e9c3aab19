"""``meta_device``: a model that no process ever has whole, from the moment on when the task makes it.

The task's ``model(cfg)`` makes it without memory for its large tensors (``deferred``). It is cut while it is on torch's device
``meta``. Then rank 0 works out one parameter after the other and sends it to all, and each keeps its piece: the values are
those of a model that is made in memory, to the bit.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Optional

import torch
from torch import nn

from ..errors import SettingsError, TrainingError
from ..processes.group import Group
from ..saving.pieces import note_of, own_region
from ..settings import Settings
from .deferred import Deferred, Place
from .local import is_sharded, local

__all__ = ["Unmade", "refuse"]

_HINTS = ("fake", "tensor subclass", "meta tensor", "data pointer", "typemeta")
_DEEP = 4  # containers in one another in which a module keeps tensors


def refuse(settings: Settings) -> None:
    """Refuse a strategy by which each process has the whole model.

    Raises:
        SettingsError: the message names the strategy, and what to do.
    """
    if settings.meta_device and settings.strategy not in ("fsdp2", "pipeline"):
        raise SettingsError(
            f"meta_device is true, and strategy is {settings.strategy}: a process then has the whole model; use strategy fsdp2 "
            "or pipeline, or leave out meta_device"
        )


class Unmade:
    """A model's values before they are there: entered while the task makes the model, and while weights are put into it.

    Args:
        restored: A checkpoint follows, which has all parameters: they need no values before.
    """

    def __init__(self, group: Group, restored: bool = False) -> None:
        self._group, self._restored = group, restored
        self._deferred = Deferred()
        self._places: dict[str, Place] = {}
        self._warnings = contextlib.ExitStack()

    def __enter__(self) -> Unmade:
        self._warnings.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        self._deferred.__enter__()  # type: ignore[no-untyped-call, unused-ignore]
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._deferred.__exit__(kind, error, trace)  # type: ignore[no-untyped-call, unused-ignore]
        self._warnings.__exit__(kind, error, trace)
        if isinstance(error, (TypeError, RuntimeError)) and any(
            each in str(error).lower() for each in _HINTS
        ):
            raise TrainingError(
                "meta_device is true, and the model looks at the values of a large tensor while it is made "
                f"({str(error).splitlines()[0]}): make that tensor with numpy or torch.tensor(...), or set meta_device: false"
            ) from error

    @contextlib.contextmanager
    def with_weights(self) -> Iterator[None]:
        """Entered while the weights of a file are put into the model: nobody else has these."""
        self._deferred.trusts = True
        try:
            with self:
                yield
        finally:
            self._deferred.trusts = False

    def settle(self, model: nn.Module) -> None:
        """After all is made: what has no values is on the device ``meta``, except what is not cut, which gets its values.

        Raises:
            TrainingError: a parameter gets no values from anything, so that it would begin with what was in memory.
        """
        parameters: dict[int, nn.Parameter] = {}
        others: dict[Place, torch.Tensor] = {}
        for prefix, module in model.named_modules(remove_duplicate=False):
            for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
                if tensor is None or not self._deferred.knows(tensor):
                    continue
                place = self._deferred.place(tensor)
                if isinstance(tensor, nn.Parameter):
                    self._places[f"{prefix}.{name}" if prefix else name] = place
                    if id(tensor) not in parameters:
                        parameters[id(tensor)] = _on_meta(tensor, place)
                    setattr(module, name, parameters[id(tensor)])
                else:
                    module._buffers[name] = self._other(place, others)
            for name, value in list(vars(module).items()):
                found = self._settled(value, others)
                if found is not value:
                    setattr(module, name, found)
        self._deferred.end()
        if not self._restored:
            self._group.on_first(self._refuse_unfilled)

    def _settled(self, value: Any, others: dict[Place, torch.Tensor], deep: int = _DEEP) -> Any:
        """What a module keeps, with values; lists and dictionaries stay the same objects."""
        if isinstance(value, torch.Tensor):
            own = not isinstance(value, nn.Parameter) and self._deferred.knows(value)
            return self._other(self._deferred.place(value), others) if own else value
        if not deep or type(value) not in (list, tuple, dict):
            return value
        keys = list(value) if isinstance(value, dict) else range(len(value))
        found = {key: self._settled(value[key], others, deep - 1) for key in keys}
        changed = [key for key in keys if found[key] is not value[key]]
        if changed and isinstance(value, tuple):
            return tuple(found.values())
        for key in changed:
            value[key] = found[key]
        return value

    def _other(self, place: Place, others: dict[Place, torch.Tensor]) -> torch.Tensor:
        if place not in others:
            others[place] = self._deferred.value(place)
        return others[place]

    def _refuse_unfilled(self) -> None:
        for name, place in self._places.items():
            if not self._deferred.is_filled(place):
                raise TrainingError(
                    f"meta_device is true, and nothing gives {name} its first values: it is made by torch.empty alone; fill it "
                    "in its module's __init__ (torch.nn.init), or load all weights (pretrained)"
                )

    def fill(self, model: nn.Module, device: torch.device) -> None:
        """Give the parameters of a model that is cut its values on the device, one after the other; all ranks together.

        Raises:
            TrainingError: a parameter has another name or another shape than when it was made.
        """
        named = dict(model.named_parameters(remove_duplicate=False))
        names = {id(each): name for name, each in reversed(list(named.items()))}

        def filled(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device.type != "meta":
                return tensor
            place = self._place_of(names.get(id(tensor), "a buffer"), tensor)
            found = torch.empty_like(tensor, device=device)
            if not self._restored:
                whole = self._whole(place)
                piece = local(found)
                if is_sharded(found):
                    region, _ = own_region(note_of(found, ""), self._group.ranks.rank)
                    for dim, (start, size) in enumerate(zip(region.offsets, region.sizes)):
                        whole = whole.narrow(dim, start, size)
                piece.copy_(whole)
            return found

        with torch.no_grad():
            # As to_empty does; FSDP2 takes what it gets for its own then.
            model._apply(filled)  # type: ignore[no-untyped-call, unused-ignore]

    def fill_whole(self, model: nn.Module, own: Iterable[nn.Module]) -> None:
        """The same where a process has some modules of the model whole, and of the others nothing."""
        ours = {id(each) for module in own for each in module._parameters.values()}
        found: dict[int, torch.Tensor] = {}
        for prefix, module in model.named_modules():
            for name, tensor in list(module._parameters.items()):
                if tensor is None or tensor.device.type != "meta":
                    continue
                if id(tensor) not in found:
                    place = self._place_of(f"{prefix}.{name}" if prefix else name, tensor)
                    value = tensor
                    if not self._restored:
                        value = _laid_out(self._whole(place), place)
                    elif id(tensor) in ours:
                        value = torch.empty_strided(
                            place.size, place.stride, dtype=place.dtype, device=self._group.device
                        )
                    found[id(tensor)] = _with_values(tensor, value) if id(tensor) in ours else tensor
                setattr(module, name, found[id(tensor)])

    def _place_of(self, name: str, tensor: torch.Tensor) -> Place:
        place = self._places.get(name)
        if place is None or place.size != tuple(tensor.shape):
            made = "no parameter of this name" if place is None else f"{name} of shape {place.size}"
            raise TrainingError(
                f"meta_device is true, and the sharded model has {name} of shape {tuple(tensor.shape)}, where model(cfg) made "
                f"{made}: parallelize must leave names and shapes as they are, or set meta_device: false"
            )
        return place

    def _whole(self, place: Place) -> torch.Tensor:
        """A parameter with its values, on all ranks."""
        device = self._group.device
        if self._group.ranks.first:
            found = self._deferred.value(place).to(device).contiguous()
        else:
            found = torch.empty(place.size, dtype=place.dtype, device=device)
        self._group.send(found)
        return found


def _laid_out(tensor: torch.Tensor, place: Place) -> torch.Tensor:
    """With the strides that it was made with, by which kernels are chosen, as with channels_last."""
    if tuple(tensor.stride()) == place.stride:
        return tensor
    return torch.empty_strided(place.size, place.stride, dtype=tensor.dtype, device=tensor.device).copy_(
        tensor
    )


def _on_meta(parameter: nn.Parameter, place: Place) -> nn.Parameter:
    """The same parameter on no device."""
    empty = torch.empty_strided(place.size, place.stride, dtype=place.dtype, device="meta")
    with Deferred(0):
        common = vars(nn.Parameter(torch.empty(1))).keys()
    return _with_values(parameter, empty, common)


def _with_values(parameter: nn.Parameter, value: torch.Tensor, without: Iterable[str] = ()) -> nn.Parameter:
    """A parameter with other values, and the attributes that the model has given it; ``without``: those of fake tensors."""
    found = nn.Parameter(value, requires_grad=parameter.requires_grad)
    for name in vars(parameter).keys() - set(without):
        setattr(found, name, vars(parameter)[name])
    return found
