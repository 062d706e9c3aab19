"""Random states: seeded, captured, restored; and those of generators that the task and the model keep."""

from __future__ import annotations

import ctypes
import functools
import inspect
import itertools
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

import torch

from .order import mix

__all__ = [
    "Seed",
    "capture_random_state",
    "digest",
    "find",
    "put_back",
    "raw_bytes",
    "reach",
    "restore_random_state",
    "seed_all",
    "states_of",
    "used_by",
]


def seed_all(seed: int) -> None:
    """Seed Python, torch (all devices) and numpy where it is loaded."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def capture_random_state(device: torch.device) -> dict[str, object]:
    """Return the random state as plain values and tensors, so that ``weights_only`` can read it back."""
    state: dict[str, object] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
        if torch.cuda.device_count() > 1:  # DataParallel's replicas draw from those of their own devices
            state["all_cuda"] = torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        state["numpy"] = (str(kind), [int(key) for key in keys], *(float(value) for value in rest))
    return state


def restore_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Put a captured random state back; parts that do not exist here are left out."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and len(state.get("all_cuda", ())) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["all_cuda"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        kind, keys, position, has_gauss, gauss = state["numpy"]
        keys = numpy.array(keys, dtype=numpy.uint32)
        numpy.random.set_state((kind, keys, int(position), int(has_gauss), gauss))


Seed = Callable[[int], object]
"""Seeds one generator."""

# How deep is looked, at how many entries of each container, and at how many objects in all.
_DEPTH, _FIRST, _MOST = 8, 64, 5_000
# Nothing of these keeps a generator but in attributes of an instance.
_LIBRARIES = {"builtins", "collections", "functools", "numpy", "random", "torch", "torchvision", "typing"}
_OF_MODULES = vars(torch.nn.Module()).keys()
_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.Tensor)


def find(*values: object) -> list[Seed]:
    """Return what seeds each generator that the values can reach, always in the same order; none of the global ones."""
    numpy = sys.modules.get("numpy")
    found: list[Seed] = []
    for number, value in enumerate(reach(*values)):
        seed = _seeder(value, numpy)
        found.append(lambda base, seed=seed, number=number: seed(mix(base, number)))  # type: ignore[misc]
    return found


def reach(*values: object) -> list[Any]:
    """Return each generator that the values can reach, always in the same order; none of the global ones."""
    numpy = sys.modules.get("numpy")
    seen = {id(torch.default_generator), id(getattr(random, "_inst", None))}
    if numpy is not None:
        seen.add(id(getattr(numpy.random.mtrand, "_rand", None)))
    found: list[Any] = []
    todo = [(value, _DEPTH) for value in reversed(values)]
    kept: list[object] = []  # what lives for a moment only would lend its id to the next
    while todo and len(kept) < _MOST:
        value, depth = todo.pop()
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        kept.append(value)
        if _seeder(value, numpy) is not None:
            found.append(value)
        elif depth:
            todo += [(each, depth - 1) for each in reversed(list(_inside(value)))]
    return found


def _seeder(value: object, numpy: Any) -> Any:
    if isinstance(value, torch.Generator):
        return lambda seed: value.manual_seed(seed >> 1)
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else value.seed
    if numpy is None:
        return None
    if isinstance(value, numpy.random.Generator):
        value = value.bit_generator
    if isinstance(value, numpy.random.RandomState):
        return lambda seed: value.seed(seed >> 32)
    if isinstance(value, numpy.random.BitGenerator):
        return functools.partial(_set_bits, value)
    return None


def used_by(method: object) -> list[object]:
    """Return the task's attributes that a method may draw from: those that its code names, or that of methods named there."""
    owner = getattr(method, "__self__", None)
    if owner is None or isinstance(owner, type):
        return [method]
    found: list[object] = []
    todo: list[Any] = [getattr(method, "__func__", method)]
    seen: set[str] = set()
    while todo:
        function = inspect.unwrap(todo.pop())
        found.append(function)
        for name in sorted(set(_code_names(getattr(function, "__code__", None))) - seen):
            seen.add(name)
            # As it is kept: to ask for it might run code of the task's.
            value = getattr(owner, "__dict__", {}).get(name, inspect.getattr_static(type(owner), name, None))
            value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            (todo if isinstance(value, types.FunctionType) else found).append(value)
    return found


def states_of(generators: Iterable[Any]) -> list[list[Any]]:
    """Return the states of generators as plain values, each with its kind."""
    return [[type(each).__name__, _plain(_state(each))] for each in generators]


def put_back(generators: Sequence[Any], saved: Sequence[Sequence[Any]]) -> bool:
    """Put the states of generators back; False, and nothing done: they are those of others."""
    kinds = [type(each).__name__ for each in generators]
    if kinds != [kind for kind, _ in saved]:
        return False
    for each, (_, state) in zip(generators, saved):
        if isinstance(each, torch.Generator):
            each.set_state(state)
        elif isinstance(each, random.Random):
            each.setstate(state)
        elif hasattr(
            each, "set_state"
        ):  # numpy's RandomState keeps every other number of a normal distribution
            each.set_state(_like(_state(each), state))
        else:
            bits = _bits(each)
            bits.state = _like(bits.state, state)
    return True


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "get_state"):
        return generator.get_state(legacy=False)
    return _bits(generator).state


def _bits(generator: Any) -> Any:
    """Return what a generator of numpy draws its bits from."""
    return getattr(generator, "bit_generator", generator)


def _plain(state: Any) -> Any:
    if isinstance(state, Mapping):
        return {name: _plain(each) for name, each in state.items()}
    return state.tolist() if hasattr(state, "tolist") and not isinstance(state, torch.Tensor) else state


def _like(now: Any, saved: Any) -> Any:
    """Return the saved values, as arrays where the state has arrays now."""
    if isinstance(now, Mapping):
        return {name: _like(now.get(name), each) for name, each in saved.items()}
    return sys.modules["numpy"].array(saved, now.dtype) if hasattr(now, "dtype") else saved


def _set_bits(bits: Any, seed: int) -> None:
    bits.state = type(bits)(seed).state


def _inside(value: object) -> Iterable[object]:
    """Return what an object holds, as far as a generator may lie there."""
    if isinstance(value, (types.FunctionType, types.MethodType)):
        return _of_function(value)
    if isinstance(value, functools.partial):
        return value.func, *value.args, *value.keywords.values()
    if isinstance(value, Mapping):
        return _first(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return _first(value)
    if isinstance(value, types.ModuleType):
        return ()
    if isinstance(value, type):
        return _of_class(value)
    if isinstance(
        value, torch.nn.Module
    ):  # all of its parts at once, however deep they lie, and nothing of torch's own
        return *value.modules(), *_first(own_attributes(value).values()), *type(value).__mro__
    slots = [name for kind in type(value).__mro__ for name in _names(getattr(kind, "__slots__", ()))]
    own = [getattr(value, name, None) for name in slots if not name.startswith("__")]
    return *_first(getattr(value, "__dict__", {}).values()), *own, *type(value).__mro__


def own_attributes(module: torch.nn.Module) -> dict[str, Any]:
    """Return what a module keeps beside what each module has: parameters, buffers, modules, hooks."""
    return {name: value for name, value in vars(module).items() if name not in _OF_MODULES}


def _first(values: Iterable[object]) -> list[object]:
    return list(itertools.islice(values, _FIRST))


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _of_class(kind: type) -> list[object]:
    """Return the methods and the attributes of a class, unless it is a library's."""
    if (kind.__module__ or "").partition(".")[0] in _LIBRARIES:
        return []
    found = []
    for value in list(vars(kind).values()):
        value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        found.append(value.fget if isinstance(value, property) else value)
    return found


def _of_function(function: Any) -> list[object]:
    if isinstance(function, types.MethodType):
        return [function.__self__, function.__func__]
    if (function.__module__ or "").partition(".")[0] in _LIBRARIES:
        return []
    found: list[object] = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # nothing in it yet
            continue
    names = set(_code_names(function.__code__))
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        if isinstance(value, types.ModuleType):  # module.generator
            value = [vars(value)[each] for each in sorted(names & vars(value).keys())]
            value = [
                each for each in value if not isinstance(each, (type, types.ModuleType, types.FunctionType))
            ]
        found.append(value)
    return found


def _code_names(code: Optional[types.CodeType]) -> Iterator[str]:
    if code is None:
        return
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_names(constant)


def digest(value: object) -> object:
    """Plain values that tell two samples apart; of what is not known, the type alone."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape), raw_bytes(value))
    if isinstance(value, Mapping):
        return tuple((str(key), digest(each)) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(digest, value))
    if isinstance(value, (str, bytes, int, float, complex, bool, type(None))):
        return repr(value)  # NaN is like NaN
    if hasattr(value, "tobytes"):  # arrays, images
        return value.tobytes()
    return type(value).__name__


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """Return a tensor's values as they lie in memory; of a sparse one, nothing."""
    if tensor.layout is not torch.strided:
        return b""
    whole = tensor.detach().cpu().contiguous()
    return ctypes.string_at(whole.data_ptr(), whole.nbytes) if whole.nbytes else b""
