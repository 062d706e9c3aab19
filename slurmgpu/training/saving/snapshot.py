"""A copy of the training's state in CPU memory, made of what ``weights_only`` can read back.

The copy is what lets the training go on while a thread writes. On a GPU it goes to pinned memory without
waiting: the kernels of the next step are queued behind it, and the writing thread waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Optional

import torch
import torch.distributed as dist

from ..errors import TrainingError
from ..names import with_versions
from ..sharding.local import is_sharded, local
from . import pieces

__all__ = ["Snapshot", "Trial", "gpu_tensors", "plain_state", "reserve", "try_out"]


class Snapshot:
    """Copies values; ``wait`` (from any thread) returns when the copies are complete."""

    def __init__(self) -> None:
        self.pieces: dict[str, torch.Tensor] = {}
        """This rank's pieces of sharded tensors, by where these stand."""
        self.only_pieces = False
        """True to copy these alone: rank 0 copies the rest that all have in common."""
        self._copies: dict[object, torch.Tensor] = {}
        self._devices: set[torch.device] = set()
        self._events: dict[torch.device, torch.cuda.Event] = {}

    def take(self, value: object, where: str) -> Any:
        """Return a copy of the value; tensors that share memory (tied weights) share it in the copy too.

        Raises:
            TrainingError: something inside is of another kind; the message says where. So it is found out
                when saving, not when it is too late.
        """
        if isinstance(value, torch.Tensor):
            if is_sharded(value):
                return self._sharded(value, where)
            return value if self.only_pieces else self._copy(value.detach())
        if isinstance(value, pieces.Owned):
            if not value.tensor.is_meta and value.rank == dist.get_rank():
                self.pieces[where] = self._copy(value.tensor.detach())
            return value.note(where)
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, dict):
            taken = {key: self.take(each, f"{where}[{key!r}]") for key, each in value.items()}
            return with_versions(taken, value)
        if isinstance(value, (list, tuple)):
            items = [self.take(each, f"{where}[{index}]") for index, each in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        if hasattr(value, "item") and not getattr(value, "shape", None):
            return value.item()  # a number of numpy
        raise TrainingError(
            f"{where} is a {type(value).__name__}, which a checkpoint cannot hold: "
            "only tensors, numbers, strings, lists, tuples and mappings can be read back safely"
        )

    def _sharded(self, value: torch.Tensor, where: str) -> Any:
        """Return a note of the tensor; this rank's piece of it is kept, if it is for this rank to write."""
        note, rank = pieces.note_of(value, where), dist.get_rank()
        region, writes = pieces.own_region(note, rank)
        piece = local(value)
        if tuple(piece.shape) != region.sizes:
            raise TrainingError(
                f"{where} is cut over the ranks in a way that is not known: rank {rank} has {tuple(piece.shape)} of it, and "
                f"{region.sizes} was expected"
            )
        if writes:
            self.pieces[where] = self._copy(piece)
        return note

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided:  # its indices and values lie apart
            return tensor.to("cpu", copy=True)
        # The last two: a conjugate of complex numbers has their memory, until somebody looks.
        key = (
            tensor.device, tensor.dtype, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(),
            tensor.is_conj(), tensor.is_neg(),
        )  # fmt: skip
        if key not in self._copies or not tensor.numel():
            if tensor.is_cuda:
                copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
                copy.copy_(tensor, non_blocking=True)
                self._devices.add(tensor.device)
            else:
                copy = tensor.clone()
            self._copies[key] = copy
        return self._copies[key]

    def finish(self) -> Snapshot:
        """Mark the end of the copying; call it where the copies were taken."""
        for device in self._devices:
            # Of the stream that copied, which is that of the copied tensors' device.
            self._events[device] = torch.cuda.current_stream(device).record_event()
        return self

    def wait(self) -> None:
        """Wait until the GPU has copied everything."""
        for device, event in self._events.items():
            # A thread begins with device 0: without this, each rank would get a context on the first GPU too.
            torch.cuda.set_device(device)
            event.synchronize()


class Trial(Snapshot):
    """Finds out what a snapshot would refuse; copies only tensors that are more than their memory (expanded ones)."""

    def _sharded(self, value: torch.Tensor, where: str) -> Any:
        return value

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        strided = tensor.layout is torch.strided and tensor.numel() > 1
        return tensor.clone() if strided and 0 in tensor.stride() else tensor


def try_out(part: Any, name: str) -> Optional[str]:
    """Save and load a part on the spot, so that what cannot come back is known before there is something to lose.

    The part stays as it was. Returns where its state then differed, if it did: a resume would not be exact.

    Raises:
        TrainingError: it cannot be saved, or does not take its own state back; the message says why.
    """
    state = Trial().take(plain_state(part), name)
    own = getattr(part, "__dict__", {})
    kept = dict(own)
    try:
        part.load_state_dict(state)
        return _difference(state, Trial().take(plain_state(part), name), name)
    except Exception as error:
        raise TrainingError(
            f"{name} ({type(part).__name__}) does not take its own state back, and no resume could put it back: "
            f"{type(error).__name__}: {str(error).strip()}"
        ) from error
    finally:
        own.clear()
        own.update(kept)


def _difference(before: object, after: object, where: str) -> Optional[str]:
    """Return the first place at which two states differ."""
    pairs: list[tuple[object, object, str]] = []
    if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        return None if before is after or _equal(before, after) else where
    if isinstance(before, dict) and isinstance(after, dict):
        if before.keys() != after.keys():
            return where
        pairs = [(before[key], after[key], f"{where}[{key!r}]") for key in before]
    elif isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
        if len(before) != len(after):
            return where
        pairs = [(one, other, f"{where}[{n}]") for n, (one, other) in enumerate(zip(before, after))]
    elif before != after and before == before:  # NaN is itself
        return where
    return next((found for found in (_difference(*pair) for pair in pairs) if found), None)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    one, other = local(one), local(other)
    if one.is_meta:
        return other.is_meta
    if one.layout is not torch.strided or other.layout is not torch.strided:
        return True  # torch does not compare sparse ones
    if one.shape != other.shape or one.dtype != other.dtype or one.is_quantized:
        return one.shape == other.shape and one.dtype == other.dtype
    other = other.to(one.device)
    return bool(((one == other) | ((one != one) & (other != other))).all())


def reserve(value: object) -> None:
    """Fill torch's cache of pinned memory with what copies of the value need; call it from a background thread."""
    found: list[torch.Tensor] = []
    for tensor in gpu_tensors(value):
        torch.cuda.set_device(tensor.device)  # this thread's own, which begins with device 0
        found.append(torch.empty_like(tensor, device="cpu", pin_memory=True))


def gpu_tensors(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors on a GPU in a value, however deep they lie."""
    if isinstance(value, torch.Tensor):
        if value.is_cuda:
            yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for each in list(value.values()) if isinstance(value, Mapping) else value:
            yield from gpu_tensors(each)


def plain_state(part: Any) -> Optional[dict[str, object]]:
    """Return a part's state without functions, which come back with the part itself (older OneCycleLR has them)."""
    if part is None:
        return None
    state = part.state_dict()
    return with_versions({name: value for name, value in state.items() if not callable(value)}, state)
