"""Writes weights as a folder that Hugging Face's libraries load: with the files, names, dtypes and configuration of one that is
there already, such as the one that the training began with.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch

from ..errors import TrainingError
from ..files import sync_folder, write_whole
from ..names import plain_names
from ..saving.pieces import Pieces
from .loading import new_name
from .reading import read_named, safetensors_library

__all__ = ["Written", "write_like", "write_safetensors"]

_ONE = "model.safetensors"
_INDEX = f"{_ONE}.index.json"
# Weights of any kind: these are written anew, or are of other libraries and would no longer be of the same model.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".ot", ".onnx", ".gguf", ".index.json")


class Written(NamedTuple):
    """Summary of a written folder: tensors, their values and bytes, files; names that only one of the two has."""

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
        state: Tensors by name, or notes of sharded ones; ``pieces`` puts them together, a file's at a time.
        rename: As in ``train.pretrained_rename``: beginnings of names in ``like``, and those that the state has instead.

    Raises:
        TrainingError: ``like`` holds no weights, nothing of them is in the state, or two would have one name.
        OSError: the folder cannot be written.
    """
    there, places = read_named(like)
    own = {str(name): value for name, value in state.items()}
    # By file: the names there, those that the state has instead, and the dtype there.
    files: dict[str, dict[str, tuple[str, Optional[torch.dtype]]]] = {
        _as_safetensors(file): {} for file in places.values()
    }
    taken, left_out = set(), []
    for name, plain in zip(there, plain_names(there, wrapped=True)):
        own_name = new_name(str(plain), rename)
        if own_name not in own:
            left_out.append(str(name))
            continue
        taken.add(own_name)
        files[_as_safetensors(places[name])][str(name)] = own_name, getattr(there[name], "dtype", None)
    if not taken:
        here, those = ", ".join(list(own)[:3]), ", ".join(list(map(str, there))[:3])
        raise TrainingError(
            f"--like {like}: no weight of the checkpoint has a name that stands there: it has {here} ..., and the folder "
            f"{those} ...; give the folder that train.pretrained named"
        )
    tied = {pieces.memory(own[name]) for name in taken}
    added = [name for name in own if name not in taken and pieces.memory(own[name]) not in tied]
    doubled = sorted(set(added) & set(map(str, there)))
    if doubled:
        raise TrainingError(f"--like {like}: two weights would be named {doubled[0]!r} there")
    files[next(reversed(list(files)))].update((name, (name, None)) for name in added)
    files = {file: names for file, names in files.items() if names}
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    temporary.mkdir()
    size = values = total = 0
    try:
        for file, names in files.items():
            tensors = {}
            for name, (own_name, dtype) in names.items():
                value = pieces.resolved(own[own_name])
                # In the dtype that it has there, if both are floating-point numbers.
                floats = dtype is not None and dtype.is_floating_point and value.is_floating_point()
                tensors[name] = value.to(dtype) if floats else value
            write_safetensors(temporary / file, tensors)
            size += (temporary / file).stat().st_size
            values += sum(each.numel() for each in tensors.values())
            total += sum(each.numel() * each.element_size() for each in tensors.values())
        if list(files) != [_ONE]:
            places = {name: file for file, names in files.items() for name in names}
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
            text = json.dumps(index, indent=2).encode() + b"\n"
            write_whole(temporary / _INDEX, lambda file: file.write(text))
        for path in sorted(like.iterdir()):
            if path.is_file() and not path.name.endswith(_WEIGHTS):
                shutil.copyfile(path, temporary / path.name)
        sync_folder(temporary)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(target.parent)
    return Written(sum(map(len, files.values())), values, size, len(files), added, left_out)


def write_safetensors(path: Path, tensors: Mapping[Any, torch.Tensor]) -> None:
    """Write tensors by name into a new file, and sync it; tied ones, which the format does not have, once for each name.

    Raises:
        TrainingError: the package safetensors is not installed, or the format has no name for a dtype.
        OSError: the file cannot be written.
    """
    library = safetensors_library("writing a safetensors file")
    held: dict[str, torch.Tensor] = {}
    seen = set()
    for name, value in tensors.items():
        each = value.detach().cpu().contiguous()
        place = each.untyped_storage().data_ptr()
        held[str(name)] = each.clone() if place in seen else each
        seen.add(place)
    path.touch(exist_ok=False)
    mode = path.stat().st_mode
    try:
        library.save_file(held, str(path), metadata={"format": "pt"})
    except Exception as error:  # the library's own, for a full disk as well
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number:
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
        raise TrainingError(f"a safetensors file cannot hold this state: {error}") from error
    path.chmod(mode)  # the library gives it to the user alone
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _as_safetensors(file: str) -> str:
    """Return the name of a file of weights, in this format."""
    stem = Path(file).stem.replace("pytorch_model", "model", 1)
    return f"{stem}.safetensors"
