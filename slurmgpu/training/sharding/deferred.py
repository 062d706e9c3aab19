"""Tensors whose values are worked out later: what ``meta_device`` is made of.

While a model is made, large tensors are made without memory for their values, as torch's fake tensors, and the operations on
them are put down. The values of a tensor come later from those operations alone that they depend on, with the random numbers that
each has drawn in its turn: the same bits as without, and never more in memory than belongs to one tensor. Modules need nothing
for it, no ``reset_parameters`` either. (The idea is that of torchdistX's ``deferred_init``.) Fake tensors and not those of the
device ``meta``, because code asks for the device: torch's own ``trunc_normal_`` does nothing on ``meta``.
"""

from __future__ import annotations

import contextlib
import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from ..errors import TrainingError
from ..watching.checksums import checksum

__all__ = ["LEAST", "Deferred", "Place"]

LEAST = 1 << 14
"""Elements of a tensor from which on it is made later: what is smaller costs nothing, and code may look at its values."""

_EMPTY = (
    "aten::empty",
    "aten::empty_strided",
    "aten::empty_like",
    "aten::new_empty",
    "aten::new_empty_strided",
)
_OVERWRITE = ("aten::copy_", "aten::fill_", "aten::zero_")
_PIECE = 1 << 22  # elements of which a checksum is taken at a time: it needs memory of its own


@dataclass(frozen=True)
class Place:
    """Where a tensor's values are: in which storage, by its number, and how they lie in it."""

    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class _Operation(NamedTuple):
    function: Any
    arguments: Any
    """As it was called, with a ``Place`` for each tensor that is made later."""
    reads: frozenset[int]
    writes: frozenset[int]
    """Storages that it makes or changes."""
    begins: frozenset[int]
    """Those of them of which nothing before it matters."""
    outputs: tuple[Optional[Place], ...]
    """Of what it makes."""
    generator: Optional[torch.Tensor]
    """The state in which it finds the generator that it draws from."""
    constants: tuple[tuple[torch.Tensor, tuple[int, ...]], ...]
    """Large tensors with values that it takes, and what tells whether they are still as they were."""


class _Fake(FakeTensorMode):  # type: ignore[misc, unused-ignore]
    """That of tensors without values; ``over``: the model is made, and nothing may compute with them any more."""

    over = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.over:
            shapes = [tuple(each.shape) for each in _tensors((args, kwargs)) if isinstance(each, FakeTensor)]
            raise TrainingError(
                f"meta_device is true, and a tensor of shape {shapes[0] if shapes else '()'} that model(cfg) has made is "
                f"used ({function._schema.name}), and is neither a parameter, a buffer nor an attribute of a module, and so has "
                "no values: give it to its module (register_buffer), or set meta_device: false"
            )
        return super().__torch_dispatch__(function, types, args, kwargs)  # type: ignore[no-untyped-call, unused-ignore]


class Deferred(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """While it is entered, large tensors are made without values; ``value`` gives these, then or afterwards.

    Args:
        least: Elements of a tensor from which on it is made later.
    """

    def __init__(self, least: int = LEAST) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self._least = least
        self._fake = _Fake(allow_non_fake_inputs=True)
        self.trusts = False
        """Whether nobody changes the tensors with values that are taken from now on, so that none is looked at for it."""
        self._operations: list[_Operation] = []
        self._writers: dict[int, list[int]] = defaultdict(list)
        self._storages: list[torch.UntypedStorage] = []
        self._numbers: dict[int, int] = {}

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether the values of a tensor are to be worked out here."""
        return self._number(tensor) is not None

    def place(self, tensor: torch.Tensor) -> Place:
        """Where the values of a tensor are that ``knows`` knows; it may be gone when they are asked for."""
        number = self._number(tensor)
        assert number is not None
        return Place(
            number, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())
        )

    def end(self) -> None:
        """From now on an operation on a tensor without values is refused, where torch would leave out what it does."""
        self._fake.over = True

    def is_filled(self, place: Place) -> bool:
        """Whether anything has been written there since it was made."""
        return any(each.function._schema.name not in _EMPTY for each in self._needed({place.storage}))

    @torch.no_grad()
    def value(self, place: Place) -> torch.Tensor:
        """The values, as they are now, in memory of their own.

        Raises:
            TrainingError: they cannot be worked out; the message says why.
        """
        return _tensor(self._worked_out({place.storage})[place.storage], place)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Optional[dict[str, Any]] = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        given = _tensors((args, kwargs))
        if function is torch.ops.prim.device.default:  # asked for at each place that is written to
            return function(*args) if not self.knows(given[0]) else torch.device("cpu")
        if any(map(self.knows, given)):
            return self._put_down(function, args, kwargs)
        if given or not _on_cpu(function, kwargs):
            return function(*args, **kwargs)
        state = _generator(args, kwargs).get_state() if _draws(function) else None
        made = self._without_values(function, args, kwargs)
        if any(each.numel() < self._least or each.layout is not torch.strided for each in _tensors(made)):
            return function(*args, **kwargs)
        return self._put_down(function, args, kwargs, made, state)

    def _put_down(
        self,
        function: Any,
        args: Any,
        kwargs: dict[str, Any],
        made: Any = None,
        state: Optional[torch.Tensor] = None,
    ) -> Any:
        """Do without values what was asked for, so that it can be done later."""
        if _draws(function) and state is None:
            state = _generator(args, kwargs).get_state()
        changed = _changed(function, args, kwargs)
        if not all(map(self.knows, changed)):
            return self._really(function, args, kwargs)
        if made is None:
            try:
                made = self._without_values(function, tree_map(_shape, args), tree_map(_shape, kwargs))
            except Exception:
                if changed:
                    raise
                return self._really(function, args, kwargs)
        outputs = _tensors(made)
        if any(not _is_fake(each) for each in outputs) or (not outputs and not changed):
            return self._really(function, args, kwargs)
        given = (args, kwargs)
        reads, constants = self._read(given, changed)
        before = len(self._storages)
        numbers = [self._number(each, new=True) for each in outputs]
        new = {number for number in numbers if number is not None and number >= before}
        if not new and not changed:
            return made  # a view: what lies where is known
        written = {self.place(each).storage for each in changed}
        begins = set(new)
        if _overwrites(function):
            whole = changed[0]
            if whole.numel() * whole.element_size() == whole.untyped_storage().nbytes() and _is_dense(whole):
                begins |= written - reads
        if begins < new | written:
            reads |= written - begins
        operation = _Operation(
            function,
            tree_map(self._kept, given),
            frozenset(reads),
            frozenset(new | written),
            frozenset(begins),
            tuple(self.place(each) if number in new else None for each, number in zip(outputs, numbers)),
            state,
            constants,
        )
        if state is not None:
            self._draw(operation, state)
        for number in operation.writes:
            self._writers[number].append(len(self._operations))
        self._operations.append(operation)
        return made

    def _without_values(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        with self._fake:
            made = function(*args, **kwargs)
        # It remembers what it makes by weak references, with which no tensor can be put in another's place, as Module.to does.
        self._fake.fake_tensor_converter.tensor_memo.clear()
        return made

    def _read(
        self, given: Any, changed: list[torch.Tensor]
    ) -> tuple[set[int], tuple[tuple[torch.Tensor, tuple[int, ...]], ...]]:
        """The storages whose values an operation looks at, and the large tensors that are there."""
        ignored = {id(each) for each in changed}
        reads, constants = set(), []
        for each in _tensors(given):
            number = self._number(each)
            if number is None and each.numel() >= self._least:
                constants.append((each, () if self.trusts else _state(each)))
            elif number is not None and id(each) not in ignored:
                reads.add(number)
        return reads, tuple(constants)

    def _draw(self, operation: _Operation, state: torch.Tensor) -> None:
        """Draw what it draws, on a tensor that is then dropped: what comes next must draw what comes next."""
        generator = _generator(*operation.arguments)
        generator.set_state(state)
        known = self._worked_out(set(operation.reads - operation.writes))
        with torch.no_grad():
            args, kwargs = tree_map(lambda each: _given(each, known, alone=True), operation.arguments)
            operation.function(*args, **kwargs)

    def _really(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Do at once what looks at values, or changes a tensor that is there."""
        changed = {id(each): each for each in _changed(function, args, kwargs) if self.knows(each)}
        written: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def with_values(each: Any) -> Any:
            if not self._is_ours(each):
                return each
            value = self.value(self.place(each))
            if id(each) in changed:
                written[id(value)] = each, value
            return value

        answer = function(*tree_map(with_values, args), **tree_map(with_values, kwargs))
        for each, value in written.values():
            self._put_down(torch.ops.aten.copy_.default, (each, value), {})
        return tree_map(lambda each: written[id(each)][0] if id(each) in written else each, answer)

    def _kept(self, value: Any) -> Any:
        if self._is_ours(value):
            return self.place(value)
        small = isinstance(value, torch.Tensor) and value.numel() < self._least
        return value.detach().clone() if small else value

    def _is_ours(self, value: object) -> bool:
        return isinstance(value, torch.Tensor) and self.knows(value)

    def _number(self, tensor: torch.Tensor, new: bool = False) -> Optional[int]:
        if not _is_fake(tensor):
            return None
        storage = tensor.untyped_storage()
        number = self._numbers.get(storage._cdata)
        if number is None and new:
            number = self._numbers[storage._cdata] = len(self._storages)
            self._storages.append(storage)  # while it is kept, no other has its address
        return number

    def _needed(self, wanted: set[int]) -> list[_Operation]:
        """The operations on which the values of these storages depend, in their order."""
        needed, found, last = set(wanted), [], len(self._operations)
        todo = [-place for number in wanted for place in self._writers[number]]
        heapq.heapify(todo)
        while todo and needed:
            place = -heapq.heappop(todo)
            operation = self._operations[place]
            if place == last or not operation.writes & needed:
                continue
            last = place
            found.append(operation)
            needed -= operation.begins
            for number in operation.reads - needed:
                needed.add(number)
                for earlier in self._writers[number]:
                    if earlier < place:
                        heapq.heappush(todo, -earlier)
        return found[::-1]

    def _worked_out(self, wanted: set[int]) -> dict[int, torch.UntypedStorage]:
        """These storages with their values; what they need on the way is dropped as soon as it can be."""
        operations = self._needed(wanted)
        until = {
            number: place for place, each in enumerate(operations) for number in each.reads | each.writes
        }
        known: dict[int, torch.UntypedStorage] = {}
        for place, operation in enumerate(operations):
            self._carry_out(operation, known)
            for number in operation.reads | operation.writes:
                if until[number] == place and number not in wanted:
                    known.pop(number, None)
        return known

    def _carry_out(self, operation: _Operation, known: dict[int, torch.UntypedStorage]) -> None:
        name = operation.function._schema.name
        if any(state and _state(each) != state for each, state in operation.constants):
            raise TrainingError(
                f"meta_device is true, and a tensor that {name} has taken was changed afterwards, so that the values of then are "
                "gone: copy it before it is changed, or set meta_device: false"
            )
        for number in operation.writes - {each.storage for each in operation.outputs if each is not None}:
            if number not in known:
                known[number] = torch.UntypedStorage(self._storages[number].nbytes())  # type: ignore[no-untyped-call, unused-ignore]
        args, kwargs = tree_map(lambda each: _given(each, known), operation.arguments)
        with _as_then(_generator(args, kwargs), operation.generator):
            made = operation.function(*args, **kwargs)
        for expected, tensor in zip(operation.outputs, _tensors(made)):
            if expected is None:
                continue
            lies = (tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()), tensor.dtype)
            if lies != (expected.size, expected.stride, expected.offset, expected.dtype):
                raise TrainingError(
                    f"meta_device is true, and {name} gives another tensor ({lies[0]}, {lies[3]}) than without values "
                    f"({expected.size}, {expected.dtype}): set meta_device: false"
                )
            known[expected.storage] = tensor.untyped_storage()


def _tensors(values: Any) -> list[torch.Tensor]:
    return [each for each in tree_flatten(values)[0] if isinstance(each, torch.Tensor)]


def _state(tensor: torch.Tensor) -> tuple[int, ...]:
    """What a tensor has: torch counts no changes by way of numpy, of ``.data``, or within ``inference_mode``."""
    return tuple(int(checksum(piece)) for piece in torch.split(tensor.detach().reshape(-1), _PIECE))  # type: ignore[no-untyped-call, unused-ignore]


def _is_fake(tensor: torch.Tensor) -> bool:
    on_cpu = isinstance(tensor, FakeTensor) and tensor.device.type == "cpu"
    return on_cpu and tensor.layout is torch.strided


def _shape(value: Any) -> Any:
    """Without values, with the same shape and strides."""
    if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return value


def _given(value: Any, known: dict[int, torch.UntypedStorage], alone: bool = False) -> Any:
    """An operand with its values; ``alone``: what has none yet gets memory in which none are needed."""
    if not isinstance(value, Place):
        return value
    if alone and value.storage not in known:
        return torch.empty_strided(value.size, value.stride, dtype=value.dtype)
    return _tensor(known[value.storage], value)


def _tensor(storage: torch.UntypedStorage, place: Place) -> torch.Tensor:
    return torch.empty(0, dtype=place.dtype).set_(storage, place.offset, place.size, place.stride)  # type: ignore[call-overload, no-any-return, unused-ignore]


def _on_cpu(function: Any, kwargs: dict[str, Any]) -> bool:
    """Whether it makes something on a device that it is told, and that is the CPU."""
    if not any(each.name == "device" for each in function._schema.arguments):
        return False
    device = kwargs.get("device")
    return device is None or torch.device(device).type == "cpu"


def _draws(function: Any) -> bool:
    # rrelu's schema has a generator and no tag.
    return torch.Tag.nondeterministic_seeded in function.tags or any(
        each.name == "generator" for each in function._schema.arguments
    )


def _generator(args: Any, kwargs: dict[str, Any]) -> torch.Generator:
    """The generator that an operation draws from."""
    given: Iterator[torch.Generator] = (
        each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Generator)
    )
    return next(given, torch.default_generator)


@contextlib.contextmanager
def _as_then(generator: torch.Generator, state: Optional[torch.Tensor]) -> Iterator[None]:
    """A generator in an earlier state, and back in its own afterwards."""
    if state is None:
        yield
        return
    now = generator.get_state()
    generator.set_state(state)
    try:
        yield
    finally:
        generator.set_state(now)


def _changed(function: Any, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that an operation writes to."""
    found: list[torch.Tensor] = []
    for number, each in enumerate(function._schema.arguments):
        if each.alias_info is not None and each.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(each.name)
            found += _tensors(value)
    if function is torch.ops.aten.native_batch_norm.default and args[5]:
        found += _tensors(args[3:5])  # the running mean and variance, of which its schema does not tell
    return found


def _overwrites(function: Any) -> bool:
    """Whether it gives all of one tensor new values, whatever it had."""
    name = function._schema.name
    return name in _OVERWRITE or (_draws(function) and name.endswith("_") and "rrelu" not in name)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether each element has a place of its own, and there are no places between them."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
