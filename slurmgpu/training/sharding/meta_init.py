"""``meta_device``: the model is made on torch's meta device, without memory, and gets its first values when it is cut.

Its tensors get memory on the device block by block (fsdp2), or for this process's stage alone (pipeline), and then their first
values: from the task's ``init_weights(model)``, or else from the ``reset_parameters()`` of each module. The parameters are whole
when they are filled, so that ``weight[0].zero_()`` does what it says; fsdp2 then keeps this process's piece. New memory is NaN:
a value that nothing has filled is found, and refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from ..errors import TrainingError
from ..generators import seed_all
from ..order import mix
from ..processes.group import Group
from ..settings import Settings
from ..task import Task
from .local import local

__all__ = ["MetaInit"]


class _Filled(NamedTuple):
    """A tensor of a module that has memory now, and the one without that it replaces."""

    module: nn.Module
    attribute: str
    name: str
    now: torch.Tensor
    before: torch.Tensor
    version: int


class MetaInit:
    """First values of a model that has been made on the meta device."""

    def __init__(self, task: Task, settings: Settings, group: Group) -> None:
        self._task, self._seed, self._group = task, settings.seed, group
        self._missing: dict[str, str] = {}  # names of tensors without values, and why
        self._pieces: dict[str, torch.Tensor] = {}

    @contextlib.contextmanager
    def making(self) -> Iterator[None]:
        """Make tensors on the meta device while the task makes the model.

        Raises:
            TrainingError: the task looks at the values of a tensor that has none.
        """
        try:
            with torch.device("meta"):
                yield
        except (RuntimeError, TypeError) as error:
            if "meta" not in str(error).lower():
                raise
            raise TrainingError(
                f"meta_device is true, and model(cfg) looks at the values of a tensor ({str(error).splitlines()[0]}): compute "
                "it with Python's math or numpy, or set meta_device: false"
            ) from error

    def fill(self, model: nn.Module, part: Iterable[nn.Module]) -> list[_Filled]:
        """Give the tensors of some modules of the model memory and first values, and return the tensors."""
        part = list(part)
        filled = self._allocate(model, part)
        places = {id(module): place for place, module in enumerate(model.modules())}
        with torch.no_grad(), self._group.device:
            if self._task.has("init_weights"):
                # Each part draws from a seed of its own, whatever the other processes have.
                first = min((places[id(each)] for each in part if id(each) in places), default=0)
                seed_all(mix(self._seed, first) >> 1)
                self._task.init_weights(model)
            else:
                self._missing.update(_ambiguous(filled))
                self._reset_modules(model, {id(each) for each in part}, {id(each.module) for each in filled})
        for each in filled:
            if _is_unset(each):
                self._missing.setdefault(each.name, self._why(each))
        self._missing.update(_outside(model, part))
        return filled

    def _reset_modules(self, model: nn.Module, part: set[int], owners: set[int]) -> None:
        for place, (name, module) in enumerate(model.named_modules()):
            if id(module) not in part | owners or not callable(getattr(module, "reset_parameters", None)):
                continue
            inner = [f"{name}.{each}".lstrip(".") for each in _names_below(module)]
            if inner:
                why = f"reset_parameters of {_called(name, module)} may change the parts of the module, too"
                self._missing.update(dict.fromkeys(inner, why))
            elif id(module) in owners:
                seed_all(mix(self._seed, place) >> 1)
                module.reset_parameters()

    def _allocate(self, model: nn.Module, part: list[nn.Module]) -> list[_Filled]:
        """Replace the part's tensors on the meta device by tensors of NaN; ties stay."""
        ours = {id(each) for module in part for each in _own(module).values() if each.is_meta}
        made: dict[int, torch.Tensor] = {}
        filled = []
        for prefix, module in [*model.named_modules(), *(("", each) for each in part)]:
            for attribute, before in _own(module).items():
                if id(before) in ours:
                    if id(before) not in made:
                        made[id(before)] = _empty(before, self._group.device)
                    now = made[id(before)]
                    setattr(module, attribute, now)
                    name = f"{prefix}.{attribute}" if prefix else attribute
                    filled.append(_Filled(module, attribute, name, now, before, now._version))
        return filled

    def _why(self, each: _Filled) -> str:
        if self._task.has("init_weights"):
            return "init_weights(model) of the task does not fill it"
        called = _called(each.name.rpartition(".")[0], each.module)
        if callable(getattr(each.module, "reset_parameters", None)):
            return f"reset_parameters of {called} does not fill it"
        return f"{called} has no reset_parameters"

    def fill_blocks(self, model: nn.Module, blocks: Iterable[nn.Module]) -> None:
        """Fill the model block by block, and keep this process's pieces: parameters are on the meta device afterwards."""
        done: set[int] = set()
        for block in (*blocks, model):
            part = [each for each in block.modules() if id(each) not in done]
            done.update(map(id, part))
            self._keep_pieces(self.fill(model, part))

    def _keep_pieces(self, filled: list[_Filled]) -> None:
        for each in filled:
            # One that init_weights has replaced by another is cut by fully_shard itself.
            if isinstance(each.now, nn.Parameter) and getattr(each.module, each.attribute) is each.now:
                self._pieces[each.name] = _piece(each.now.detach(), self._group)
                setattr(each.module, each.attribute, each.before)

    def place_pieces(self, model: nn.Module, device: torch.device) -> None:
        """Give the parameters of the sharded model memory on the device, with the pieces that were kept."""
        names = {id(each): name for name, each in model.named_parameters()}

        def placed(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_meta:
                return tensor
            found = torch.empty_like(tensor, device=device)
            local(found).copy_(self._pieces.pop(names[id(tensor)]))
            return found

        with torch.no_grad():
            # As to_empty does; FSDP2 takes what it gets for its own then.
            model._apply(placed)  # type: ignore[no-untyped-call, unused-ignore]
        self._pieces.clear()

    def require_values(self, others: Collection[str]) -> None:
        """Refuse tensors that have no values, on all ranks; those of ``others`` have got theirs from a file.

        Raises:
            TrainingError: the message names the module, and what to do.
        """
        seed_all(self._seed)  # from here on all ranks draw the same
        missing = [f"{name} ({why})" for name, why in self._missing.items() if name not in others]
        more = f" and {len(missing) - 4} others" if len(missing) > 4 else ""
        said = self._group.first_of(f"{', '.join(missing[:4])}{more}" if missing else None)
        if said is not None:
            raise TrainingError(
                f"meta_device is true, and nothing gives first values to {said}: define init_weights(model) in the task, which "
                "fills parameters and buffers in place, or load all weights (pretrained), or set meta_device: false"
            )


def _own(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the module's own parameters and buffers, without those of its parts."""
    return {
        name: each
        for name, each in (*module._parameters.items(), *module._buffers.items())
        if each is not None
    }


def _names_below(module: nn.Module) -> list[str]:
    """Return the names of the parameters and buffers of the module's parts."""
    return [
        f"{prefix}.{name}"
        for prefix, part in module.named_modules()
        if part is not module
        for name in _own(part)
    ]


def _called(name: str, module: nn.Module) -> str:
    return f"{name or 'the model'} (a {type(module).__name__})"


def _empty(before: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor like the one on the meta device, whose values cannot be taken for real ones."""
    found = torch.empty_like(before, device=device)
    if found.is_floating_point() or found.is_complex():
        found.fill_(float("nan"))
    if not isinstance(before, nn.Parameter):
        return found
    parameter = nn.Parameter(found, requires_grad=before.requires_grad)
    vars(parameter).update(vars(before))
    return parameter


def _is_unset(each: _Filled) -> bool:
    if getattr(each.module, each.attribute, None) is not each.now:
        return False  # replaced by another one
    if each.now.is_floating_point() or each.now.is_complex():
        return bool(each.now.isnan().any())
    return bool(each.now._version == each.version)


def _ambiguous(filled: list[_Filled]) -> dict[str, str]:
    """Return the names of weights that modules of different types share: each type has other first values."""
    types: dict[int, set[str]] = {}
    for each in filled:
        types.setdefault(id(each.now), set()).add(type(each.module).__name__)
    return {
        each.name: f"{' and '.join(sorted(types[id(each.now)]))} share it, and give it different values"
        for each in filled
        if len(types[id(each.now)]) > 1
    }


def _outside(model: nn.Module, part: list[nn.Module]) -> dict[str, str]:
    """Return the names of tensors on the meta device that a module keeps beside parameters and buffers."""
    names = {id(module): name for name, module in model.named_modules()}
    return {
        f"{names.get(id(module), '')}.{attribute}".lstrip(
            "."
        ): "it is neither a parameter nor a buffer: register_buffer it"
        for module in part
        for attribute, value in vars(module).items()
        if attribute not in ("_parameters", "_buffers", "_modules") and _has_meta(value)
    }


def _has_meta(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return bool(value.is_meta)
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return any(each.is_meta for each in values if isinstance(each, torch.Tensor))


def _piece(whole: torch.Tensor, group: Group) -> torch.Tensor:
    """Return this process's piece, as fully_shard cuts: the first dimension, in equal chunks."""
    chunks = torch.chunk(whole, group.pieces)
    rank = group.ranks.rank
    return chunks[rank].clone() if rank < len(chunks) else whole[:0].clone()
