"""Writes weights as a folder that Hugging Face's libraries load: with the files, names, dtypes and configuration of one that is
there already, such as the one that the training began with.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..errors import TrainingError
from ..files import sync_folder, write_whole
from ..names import plain_names
from ..saving.pieces import Pieces
from . import safetensors
from .loading import new_name
from .reading import read_named
from .safetensors import Lazy

__all__ = ["Written", "write_like"]

_ONE = "model.safetensors"
_INDEX = f"{_ONE}.index.json"
# Weights of any kind: these are written anew, or are of other libraries and would no longer be of the same model.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".ot", ".onnx", ".gguf", ".index.json")


class Written(NamedTuple):
    """What was written: tensors, their values and bytes, files; names that only one of the two has."""

    tensors: int
    values: int
    bytes: int
    files: int
    added: list[str]
    left_out: list[str]


def write_like(
    like: Path, target: Path, state: Mapping[Any, Any], pieces: Pieces, rename: Mapping[str, str]
) -> Written:
    """Write weights into a new folder, whole or not at all, in the way of the folder ``like``, whose other files are copied.

    Each weight has the name, the dtype and the file that it has there; the values are the state's. Of tied weights, the names are
    written that stand there. What stands there alone is left out; what the state alone has is added under its own name.

    Args:
        state: Tensors by name, or notes of sharded ones; ``pieces`` puts them together, one at a time.
        rename: As in ``train.pretrained_rename``: beginnings of names in ``like``, and those that the state has instead.

    Raises:
        TrainingError: ``like`` holds no weights, nothing of them is in the state, or two would have one name.
        OSError: the folder cannot be written.
    """
    there, places = read_named(like)
    own = {each.name: each for each in pieces.tensors(state)}
    files: dict[str, list[Lazy]] = {_as_safetensors(file): [] for file in places.values()}
    taken, left_out = set(), []
    for name, plain in zip(there, plain_names(there, wrapped=True)):
        found = own.get(new_name(str(plain), rename))
        if found is None:
            left_out.append(str(name))
            continue
        taken.add(found.name)
        files[_as_safetensors(places[name])].append(_as_there(found, str(name), there[name]))
    if not taken:
        names = ", ".join(list(own)[:3]), ", ".join(list(map(str, there))[:3])
        raise TrainingError(
            f"--like {like}: no weight of the checkpoint has a name that stands there: it has {names[0]} ..., and the folder "
            f"{names[1]} ...; give the folder that train.pretrained named"
        )
    tied = {pieces.memory(state[name]) for name in taken}
    added = [name for name in own if name not in taken and pieces.memory(state[name]) not in tied]
    doubled = sorted(set(added) & set(map(str, there)))
    if doubled:
        raise TrainingError(f"--like {like}: two weights would be named {doubled[0]!r} there")
    files[next(reversed(list(files)))] += [own[name] for name in added]
    files = {file: each for file, each in files.items() if each}
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    temporary.mkdir()
    try:
        size = _fill(temporary, like, files)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(target.parent)
    written = [each for tensors in files.values() for each in tensors]
    values = sum(torch.Size(each.shape).numel() for each in written)
    return Written(len(written), values, size, len(files), added, left_out)


def _as_safetensors(file: str) -> str:
    """Return the name of a file of weights, in this format."""
    stem = Path(file).stem.replace("pytorch_model", "model", 1)
    return f"{stem}.safetensors"


def _as_there(own: Lazy, name: str, there: Any) -> Lazy:
    """Return the tensor under the name that it has there; in the dtype as well, if both are floating-point numbers."""
    dtype = own.dtype
    if isinstance(there, torch.Tensor) and there.is_floating_point() and dtype.is_floating_point:
        dtype = there.dtype
    return Lazy(name, dtype, own.shape, partial(_converted, own, dtype))


def _converted(own: Lazy, dtype: torch.dtype) -> torch.Tensor:
    return own.get().to(dtype)


def _fill(folder: Path, like: Path, files: Mapping[str, list[Lazy]]) -> int:
    """Write the weights, an index of them where there are several files, and copies of the other files; the weights' bytes."""
    size = sum(write_whole(folder / file, safetensors.writer(each))["bytes"] for file, each in files.items())
    if list(files) != [_ONE]:
        tensors = {each.name: (each, file) for file, held in files.items() for each in held}
        total = sum(torch.Size(each.shape).numel() * _bytes_of(each.dtype) for each, _ in tensors.values())
        index = {
            "metadata": {"total_size": total},
            "weight_map": {name: tensors[name][1] for name in sorted(tensors)},
        }
        text = json.dumps(index, indent=2).encode() + b"\n"
        write_whole(folder / _INDEX, lambda file: file.write(text))
    for path in sorted(like.iterdir()):
        if path.is_file() and not path.name.endswith(_WEIGHTS):
            shutil.copyfile(path, folder / path.name)
    sync_folder(folder)
    return size


def _bytes_of(dtype: torch.dtype) -> int:
    return torch.empty((), dtype=dtype).element_size()
