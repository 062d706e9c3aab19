"""Reads and writes safetensors files: a length (8 bytes, little-endian), a header of JSON, then the tensors' bytes without gaps.

The file may come from anywhere: nothing of its header is believed before it has been checked against the file's size.
The format: https://github.com/huggingface/safetensors (format).
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..errors import TrainingError

__all__ = ["Lazy", "looks_like", "read", "writer"]

_LONGEST = 100_000_000  # bytes of a header, as the format says
_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip


class _Entry(NamedTuple):
    """A tensor of the file: where its bytes begin and end behind the header."""

    name: str
    dtype: torch.dtype
    shape: list[int]
    begin: int
    end: int


def looks_like(start: bytes) -> bool:
    """Return True if a file that begins with these 9 bytes or more is of this format."""
    return len(start) > 8 and start[8:9] == b"{"


def read(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file by name, mapped into memory; what is written to them does not reach the file.

    Raises:
        ValueError: the file is not as the format says.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(_LONGEST, size - 8):
            raise ValueError(f"its header has {length} bytes, and the file {size}")
        entries = _entries(file.read(length), size - 8 - length)
        if not any(each.end > each.begin for each in entries):
            return {each.name: torch.empty(each.shape, dtype=each.dtype) for each in entries}
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return {each.name: _tensor(mapped, each, 8 + length) for each in entries}


class Lazy(NamedTuple):
    """A tensor to be written, which ``get`` returns when it is its turn."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    get: Callable[[], torch.Tensor]


def writer(tensors: Sequence[Lazy]) -> Callable[[Any], None]:
    """Return what writes tensors into an open file, one in memory at a time.

    Raises:
        TrainingError: the format has no name for a dtype.
    """
    names = {getattr(torch, own): name for name, own in _DTYPES.items() if hasattr(torch, own)}
    for each in tensors:
        if each.dtype not in names:
            raise TrainingError(f"{each.name!r} is of {each.dtype}, which a safetensors file cannot hold")
    # The widest first, so that each begins where its values may.
    ordered = sorted(tensors, key=lambda each: (-each.dtype.itemsize, each.name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    place = 0
    for each in ordered:
        end = place + math.prod(each.shape) * each.dtype.itemsize
        header[each.name] = {
            "dtype": names[each.dtype], "shape": list(each.shape), "data_offsets": [place, end],
        }  # fmt: skip
        place = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    def fill(file: Any) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for each in ordered:
            whole = each.get().detach().cpu().contiguous()
            size = whole.numel() * whole.element_size()
            if size:
                file.write(memoryview((ctypes.c_char * size).from_address(whole.data_ptr())))

    return fill


def _tensor(mapped: mmap.mmap, entry: _Entry, start: int) -> torch.Tensor:
    if entry.begin == entry.end:
        return torch.empty(entry.shape, dtype=entry.dtype)
    count = math.prod(entry.shape)
    place = start + entry.begin
    if place % entry.dtype.itemsize:  # not every CPU reads values across their borders
        piece = bytearray(mapped[place : start + entry.end])
        return torch.frombuffer(piece, dtype=entry.dtype, count=count).reshape(entry.shape)
    return torch.frombuffer(mapped, dtype=entry.dtype, count=count, offset=place).reshape(entry.shape)


def _entries(header: bytes, room: int) -> list[_Entry]:
    """Return what the header says, in the order of the bytes, which it must share out without gaps and overlaps."""
    try:
        found = json.loads(header, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its header is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"its header is not a mapping, but a {type(found).__name__}")
    found.pop("__metadata__", None)
    entries = sorted((_entry(name, each) for name, each in found.items()), key=lambda each: each[3:])
    place = 0
    for each in entries:
        if each.begin != place:
            raise ValueError(
                f"{each.name!r} begins at byte {each.begin}, and what is before it ends at {place}"
            )
        place = each.end
    if place != room:
        raise ValueError(f"its tensors have {place} bytes, and behind the header are {room}")
    return entries


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _entry(name: str, about: object) -> _Entry:
    if not (isinstance(about, dict) and about.keys() == {"dtype", "shape", "data_offsets"}):
        raise ValueError(f"{name!r} does not have a dtype, a shape and data_offsets alone")
    shape, offsets = about["shape"], about["data_offsets"]
    dtype = getattr(torch, _DTYPES.get(str(about["dtype"]), ""), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(
            f"{name!r} is of dtype {about['dtype']!r}, which torch {torch.__version__} does not have"
        )
    if not (_are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2):
        raise ValueError(f"{name!r} has shape {shape!r} and data_offsets {offsets!r}")
    if offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
        raise ValueError(
            f"{name!r} has {offsets[1] - offsets[0]} bytes for shape {shape} of {about['dtype']}"
        )
    return _Entry(name, dtype, shape, *offsets)


def _are_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(each) is int and 0 <= each < 1 << 62 for each in value)
