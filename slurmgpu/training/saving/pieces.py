"""Sharded tensors in checkpoints: each rank writes its pieces, and what is common to all says where each piece belongs.

Where a tensor would stand in ``model.pt`` or ``training.pt`` there is a *note*: its shape, and how it is cut over which ranks.
From it every reader works out which part of the tensor is in which rank's ``shard-R.pt``, with any number of processes, and
with none (export). A tensor that several ranks have is written by the first of them.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch

from ..errors import TrainingError
from ..names import with_versions
from ..sharding.local import is_sharded

__all__ = [
    "Owned",
    "Pieces",
    "Region",
    "cut_like",
    "fit_model",
    "fit_optimizer",
    "is_note",
    "note_of",
    "own_region",
    "ranks_of",
    "refuse_uneven",
]

_MARK = "slurmgpu.piece/1"


class Region(NamedTuple):
    """A part of a tensor: where it begins, and how large it is, in each dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def is_note(value: object) -> bool:
    """Return True if this stands for a sharded tensor."""
    return isinstance(value, Mapping) and _MARK in value


class Owned(NamedTuple):
    """A tensor that one rank has whole, as a pipeline's stages do; on other ranks it is on no device (``meta``)."""

    tensor: torch.Tensor
    rank: int

    def note(self, where: str) -> dict[str, Any]:
        """Return what stands for it in a checkpoint."""
        return {
            _MARK: where,
            "shape": list(self.tensor.shape),
            "dtype": str(self.tensor.dtype).rpartition(".")[2],
            "mesh": [1],
            "ranks": [self.rank],
            "placements": [["whole"]],
        }


def note_of(tensor: Any, where: str) -> dict[str, Any]:
    """Return what stands for a sharded tensor in a checkpoint; ``where``: its name in the files of the ranks.

    Raises:
        TrainingError: it is cut in a way that cannot be put down.
    """
    placements = [_kind(each, where) for each in tensor.placements]
    return {
        _MARK: where,
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).rpartition(".")[2],
        "mesh": list(tensor.device_mesh.mesh.shape),
        "ranks": _ranks_of_mesh(tensor.device_mesh),
        "placements": placements,
    }


@functools.lru_cache(maxsize=4)
def _ranks_of_mesh(mesh: Any) -> Any:
    """Return the ranks of a mesh, without a list of all where they are a first one and a stride in each dimension."""
    ranks = mesh.mesh
    first, sizes = int(ranks.flatten()[0]), list(ranks.shape)
    strides = [
        int(ranks.select(at, 1).flatten()[0]) - first if size > 1 else 0 for at, size in enumerate(sizes)
    ]
    room = 1  # of a rank's number the place in each dimension is read off, the widest stride first
    for stride, size in sorted((stride, size) for stride, size in zip(strides, sizes) if size > 1):
        if stride < room:
            return ranks.flatten().tolist()
        room = stride * (size - 1) + room
    even = torch.full(sizes, first)
    for at, (stride, size) in enumerate(zip(strides, sizes)):
        shape = [size if each == at else 1 for each in range(len(sizes))]
        even = even + stride * torch.arange(size).reshape(shape)
    if not torch.equal(even, ranks.to("cpu", even.dtype)):
        return ranks.flatten().tolist()
    return {"first": first, "strides": strides}


def _rank_at(note: Mapping[str, Any], coordinate: Sequence[int]) -> int:
    ranks = note["ranks"]
    if isinstance(ranks, Mapping):
        return int(ranks["first"] + sum(map(operator.mul, coordinate, ranks["strides"])))
    number = 0
    for place, count in zip(coordinate, note["mesh"]):
        number = number * count + place
    return int(ranks[number])


def _coordinate_of(note: Mapping[str, Any], rank: int) -> Optional[tuple[int, ...]]:
    """Return the place of a rank in the mesh; None where it is not in it."""
    ranks, mesh = note["ranks"], note["mesh"]
    found = [0] * len(mesh)
    if isinstance(ranks, Mapping):
        rest = rank - ranks["first"]
        for at in sorted(range(len(mesh)), key=lambda at: -ranks["strides"][at]):
            if mesh[at] > 1:
                found[at], rest = divmod(rest, ranks["strides"][at])
        inside = not rest and all(0 <= place < count for place, count in zip(found, mesh))
        return tuple(found) if inside else None
    if rank not in ranks:
        return None
    number = ranks.index(rank)
    for at in reversed(range(len(mesh))):
        number, found[at] = divmod(number, mesh[at])
    return tuple(found)


def _kind(placement: Any, where: str) -> list[Any]:
    if placement.is_replicate():
        return ["whole"]
    if placement.is_shard() and type(placement).__name__ != "_StridedShard":
        return ["shard", placement.dim]
    raise TrainingError(
        f"{where} is cut over the ranks as {placement}, which a checkpoint cannot hold: only shards and whole copies can be "
        "put back"
    )


def _region(note: Mapping[str, Any], coordinate: Sequence[int]) -> Region:
    """Return the part of the tensor at a place of the mesh: each dimension is cut into pieces of one size, the last shorter."""
    offsets, sizes = [0] * len(note["shape"]), list(note["shape"])
    for place, count, placement in zip(coordinate, note["mesh"], note["placements"]):
        if placement[0] == "whole":
            continue
        dim = placement[1]
        piece = -(-sizes[dim] // count)
        start = min(place * piece, sizes[dim])
        stop = min(start + piece, sizes[dim])
        offsets[dim] += start
        sizes[dim] = stop - start
    return Region(tuple(offsets), tuple(sizes))


def own_region(note: Mapping[str, Any], rank: int) -> tuple[Region, bool]:
    """Return the part of a tensor that a rank has, and whether it is for this rank to write it."""
    coordinate = _coordinate_of(note, rank)
    if coordinate is None:
        raise ValueError(f"rank {rank} has no part of the tensor")
    return _region(note, coordinate), _coordinate_of(note, 0) is not None and _writes(note, coordinate)


def _writes(note: Mapping[str, Any], coordinate: Sequence[int]) -> bool:
    return not any(
        place for place, placement in zip(coordinate, note["placements"]) if placement[0] == "whole"
    )


def _written(note: Mapping[str, Any], wanted: Optional[Region] = None) -> Iterator[tuple[int, Region]]:
    """Yield the parts of a tensor, each with the rank that has written it; those alone that have something of what is wanted."""
    kinds = [placement[0] for placement in note["placements"]]
    if "shard again" in kinds:
        raise TrainingError(
            f"{note[_MARK]} was saved by processes of tensor_parallel, which this version cannot put together: export the "
            "checkpoint with the version that wrote it (checkpoint export), and begin from that file (pretrained)"
        )
    cuts = [at for at, each in enumerate(kinds) if each == "shard"]
    coordinate, offsets, sizes = [0] * len(kinds), [0] * len(note["shape"]), list(note["shape"])

    def cut(number: int) -> Iterator[tuple[int, Region]]:
        if number == len(cuts):
            yield _rank_at(note, coordinate), Region(tuple(offsets), tuple(sizes))
            return
        at = cuts[number]
        dim, count = note["placements"][at][1], note["mesh"][at]
        start, size = offsets[dim], sizes[dim]
        piece = -(-size // count)
        first, last = 0, count - 1
        if wanted is not None and piece:
            first = max(0, (wanted.offsets[dim] - start) // piece)
            last = min(last, (wanted.offsets[dim] + wanted.sizes[dim] - 1 - start) // piece)
        for place in range(first, last + 1):
            coordinate[at] = place
            begin = min(place * piece, size)
            offsets[dim], sizes[dim] = start + begin, min(begin + piece, size) - begin
            yield from cut(number + 1)
        coordinate[at], offsets[dim], sizes[dim] = 0, start, size

    yield from cut(0)


def ranks_of(values: Iterable[Any]) -> list[int]:
    """Return the ranks whose files hold parts of sharded tensors, out of values some of which are notes."""
    return sorted({rank for each in values if is_note(each) for rank, _ in _written(each)})


class Pieces:
    """Tensors of one checkpoint, whole or in part; of the ranks' files only what is asked for is read.

    Args:
        folder: That of the checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, Mapping[str, torch.Tensor]] = {}

    def whole(self, value: Any) -> torch.Tensor:
        """Return the tensor that a note stands for."""
        shape = tuple(value["shape"])
        return self.part(value, Region((0,) * len(shape), shape))

    def part(self, value: Any, region: Region) -> torch.Tensor:
        """Return a part of a tensor, which may be there itself, or a note; in memory of its own.

        Raises:
            TrainingError: a rank's file is missing or is not what it should be.
        """
        if not is_note(value):
            found = value[_slices(region)] if region.sizes else value
            return torch.clone(found, memory_format=torch.contiguous_format)
        filled = torch.empty(region.sizes, dtype=getattr(torch, value["dtype"]))
        for rank, there in _written(value, region):
            begin = [max(pair) for pair in zip(region.offsets, there.offsets)]
            end = [
                min(a + n, b + m)
                for a, n, b, m in zip(region.offsets, region.sizes, there.offsets, there.sizes)
            ]
            if any(stop <= start for start, stop in zip(begin, end)):
                continue
            piece = self._file(rank)[value[_MARK]]
            filled[_between(begin, end, region.offsets)] = piece[_between(begin, end, there.offsets)]
        return filled

    def memory(self, value: Any) -> object:
        """Something that two values have in common if they are the same memory, as tied weights are, and no others have."""
        if not is_note(value):
            same = isinstance(value, torch.Tensor) and value.layout is torch.strided and value.numel()
            return (-1, value.data_ptr(), value.shape, value.stride()) if same else id(value)
        for rank, region in _written(value):
            if math.prod(region.sizes):
                piece = self._file(rank)[value[_MARK]]
                return (rank, piece.data_ptr(), tuple(value["shape"]), piece.stride())
        return id(value)

    def resolved(self, value: Any) -> Any:
        """Return the value, with the tensors themselves where notes stand for them."""
        if is_note(value):
            return self.whole(value)
        if isinstance(value, Mapping):
            return with_versions({name: self.resolved(each) for name, each in value.items()}, value)
        if isinstance(value, (list, tuple)):
            items = [self.resolved(each) for each in value]
            return items if isinstance(value, list) else tuple(items)
        return value

    def _file(self, rank: int) -> Mapping[str, torch.Tensor]:
        if rank not in self._files:
            path = self._folder / f"shard-{rank}.pt"
            try:
                self._files[rank] = torch.load(str(path), map_location="cpu", weights_only=True, mmap=True)
            except FileNotFoundError:
                raise TrainingError(
                    f"{path} is not visible from here: "
                    "the run directory must be on a file system that all nodes share"
                ) from None
            except Exception as error:
                raise TrainingError(f"cannot load {path}: {error}") from error
        return self._files[rank]


def _slices(region: Region) -> tuple[slice, ...]:
    return tuple(slice(start, start + size) for start, size in zip(region.offsets, region.sizes))


def _between(begin: Sequence[int], end: Sequence[int], offsets: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(start - offset, stop - offset) for start, stop, offset in zip(begin, end, offsets))


def fit_model(
    saved: Mapping[str, Any], target: Mapping[str, Any], pieces: Pieces, rank: int
) -> Mapping[str, Any]:
    """Return a saved state of a model, or of anything with tensors by name, cut as the state ``target`` is.

    Raises:
        ValueError: a shape is another one.
    """
    if not any(map(is_note, saved.values())) and not any(
        is_sharded(each) or getattr(each, "is_meta", False) for each in target.values()
    ):
        return saved
    fitted = {name: _like(name, value, target.get(name), pieces, rank) for name, value in saved.items()}
    return with_versions(fitted, saved)


def _like(name: str, value: Any, target: Any, pieces: Pieces, rank: int) -> Any:
    if getattr(target, "is_meta", False):
        return target
    if not is_sharded(target):
        return pieces.whole(value) if is_note(value) else value
    shape = tuple(value["shape"]) if is_note(value) else tuple(getattr(value, "shape", ()))
    if shape != tuple(target.shape):
        raise ValueError(f"size mismatch for {name}: {shape} in the checkpoint, {tuple(target.shape)} now")
    return _cut(value, target, pieces, rank)


def _cut(value: Any, target: Any, pieces: Pieces, rank: int) -> torch.Tensor:
    """Return the tensor, cut as the target is."""
    region, _ = own_region(note_of(target, ""), rank)
    return _as_piece_of(target, pieces.part(value, region))


def cut_like(whole: torch.Tensor, target: Any, rank: int) -> torch.Tensor:
    """Return this rank's piece of a whole tensor, cut as the target is, and of its type."""
    region, _ = own_region(note_of(target, ""), rank)
    return _as_piece_of(target, whole[_slices(region)].to(target.dtype).clone())


def _as_piece_of(target: Any, piece: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        piece.to(target.device),
        target.device_mesh,
        target.placements,
        run_check=False,
        shape=target.shape,
        stride=target.stride(),
    )


def fit_optimizer(optimizer: Any, saved: Mapping[str, Any], pieces: Pieces, rank: int) -> Mapping[str, Any]:
    """Return a saved state of an optimizer, or of several by name, cut as the parameters are that it is for.

    Raises:
        ValueError: what stands in the state of a parameter has another shape than it, and is cut.
    """
    if "param_groups" not in saved:
        named = getattr(optimizer, "named", {})
        return {
            name: fit_optimizer(named[name], state, pieces, rank) if name in named else state
            for name, state in saved.items()
        }
    if not hasattr(optimizer, "state"):
        return saved
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    of: dict[Any, Optional[torch.Tensor]] = dict(zip(numbers, parameters))
    state = {
        number: {name: _entry(name, value, of.get(number), pieces, rank) for name, value in entries.items()}
        for number, entries in saved["state"].items()
        if not getattr(of.get(number), "is_meta", False)
    }
    return {**saved, "state": state}


def _entry(name: str, value: Any, parameter: Any, pieces: Pieces, rank: int) -> Any:
    if not (is_note(value) or (isinstance(value, torch.Tensor) and value.dim())):
        return value
    shape = tuple(value["shape"]) if is_note(value) else tuple(value.shape)
    if parameter is None or not is_sharded(parameter):
        return pieces.whole(value) if is_note(value) else value
    if shape == tuple(parameter.shape):
        return _cut(value, parameter, pieces, rank)
    raise ValueError(
        f"the optimizer keeps {name} of shape {shape} for a parameter of shape {tuple(parameter.shape)}, and nothing says "
        "how it is cut"
    )


def refuse_uneven(optimizer: Any) -> None:
    """Refuse an optimizer that keeps something for a sharded parameter which is not sharded like it: it would be lost.

    Raises:
        TrainingError: the message names the optimizer and what it keeps.
    """
    for parameter, state in getattr(optimizer, "state", {}).items():
        if not is_sharded(parameter):
            continue
        for name, value in state.items():
            if (
                isinstance(value, torch.Tensor)
                and math.prod(value.shape) > 1
                and (not is_sharded(value) or value.shape != parameter.shape)
            ):
                raise TrainingError(
                    f"{type(optimizer).__name__} keeps {name} of shape {tuple(value.shape)} for a sharded parameter of shape "
                    f"{tuple(parameter.shape)}, which is not cut as the parameter is: no checkpoint of it could be put back; "
                    "use an optimizer whose state is as large as its parameters, such as AdamW, or strategy ddp"
                )
