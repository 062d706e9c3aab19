"""Values with tensors in them, to be sent: what is small as one text, each large tensor by itself."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

__all__ = ["as_bytes", "pack", "unpack"]

_LEAST = 4096  # bytes of a tensor that is sent by itself

Kind = tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, kept: list[torch.Tensor]) -> None:
        super().__init__(file)
        self._kept = kept
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> Any:
        """Return the number of a large tensor among those that are kept; tied weights are one."""
        if type(value) is not torch.Tensor or not _is_plain(value):
            return None
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._kept)
            self._kept.append(value)
        return self._numbers[id(value)]


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, kept: list[torch.Tensor]) -> None:
        super().__init__(file)
        self._kept = kept

    def persistent_load(self, number: int) -> torch.Tensor:
        """Return the tensor with that number."""
        return self._kept[number]


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return True if a tensor is large, on the CPU, and fills one stretch of memory."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        return False
    if tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.is_complex():
        return False
    return tensor.numel() * tensor.element_size() >= _LEAST and _is_dense(tensor)


def _is_dense(tensor: torch.Tensor) -> bool:
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def pack(value: object, kept: list[torch.Tensor]) -> tuple[bytes, list[Kind]]:
    """Return the value without its large tensors, which are put into ``kept``, and the type, shape and strides of these."""
    file = io.BytesIO()
    _Packer(file, kept).dump(value)
    return file.getvalue(), [(each.dtype, tuple(each.shape), tuple(each.stride())) for each in kept]


def unpack(data: bytes, kept: list[torch.Tensor]) -> object:
    """Return the value that was packed; with its tensors."""
    return _Unpacker(io.BytesIO(data), kept).load()


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a packed tensor, as bytes in their order there."""
    flat: torch.Tensor = tensor.as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8)
