"""A state_dict out of whatever holds one: safetensors, torch's files, an index of several files, a checkpoint, a folder."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from ..errors import TrainingError
from ..files import read_json
from ..formats.checkpoint import MANIFEST, sha256
from ..names import plain_names, with_versions
from ..saving.pieces import Pieces, is_note, ranks_of

__all__ = ["read_named", "read_state", "safetensors_library"]

# Where a folder has its weights, the first that is there; model.pt is that of a checkpoint.
_IN_FOLDERS = (
    "model.pt", "model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json", "pytorch_model.bin",
)  # fmt: skip
# The names under which training scripts save a model beside other things.
_INSIDE = ("state_dict", "model_state_dict", "model")


def read_state(path: Path) -> dict[str, Any]:
    """Return the weights by name, on the CPU, without the names of DDP and torch.compile; no code in a file is run.

    Raises:
        TrainingError: there is no such file, or it holds no weights; the message says what was found.
    """
    if path.is_dir():
        path = _weights_in(path, "pretrained", _IN_FOLDERS)
    state = _read(path, "pretrained")[0]
    plain = plain_names(state, wrapped=True)
    return with_versions({str(name): value for name, value in plain.items()}, plain)


def read_named(folder: Path) -> tuple[Mapping[object, object], dict[object, str]]:
    """Return the weights of a folder of Hugging Face's, under the names that they have there, and the file that each is in.

    Raises:
        TrainingError: it holds none.
    """
    return _read(_weights_in(folder, "--like", _IN_FOLDERS[1:]), "--like")


def _weights_in(folder: Path, asked: str, names: Sequence[str]) -> Path:
    """Return the file of a folder that has its weights, or says where they are."""
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise TrainingError(f"{asked}: the folder {folder} has none of {', '.join(names)}")
    return found


def _read(path: Path, asked: str) -> tuple[Mapping[object, object], dict[object, str]]:
    """Return the tensors by name, and the file of each."""
    try:
        if path.suffix == ".json":
            return _indexed(path)
        state = _one_file(path)
        return state, dict.fromkeys(state, path.name)
    except OSError as error:
        raise TrainingError(
            f"{asked}: cannot read {path} (work folder {Path.cwd()}): {error.strerror or error}"
        ) from None
    except ValueError as error:
        raise TrainingError(f"{asked}: {path}: {error}") from None


def _indexed(path: Path) -> tuple[dict[object, object], dict[object, str]]:
    """Return the tensors of several files, as an index beside them says which is where, and the file of each."""
    index = json.loads(path.read_text(encoding="utf-8"))
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not (isinstance(places, dict) and all(isinstance(each, str) for each in places.values())):
        raise ValueError("an index must have a weight_map, a mapping of name -> file")
    state: dict[object, object] = {}
    for file in dict.fromkeys(places.values()):
        if file != Path(file).name or file in ("", "..") or file.endswith(".json"):
            raise ValueError(f"its weight_map names {file!r}; it must be a file beside the index")
        held = _one_file(path.with_name(file))
        names = [name for name, each in places.items() if each == file]
        absent = [name for name in names if name not in held]
        if absent:
            raise ValueError(f"{file} does not have {absent[0]!r}, which the index looks for in it")
        state.update((name, held[name]) for name in names)
    return state, places


def _one_file(path: Path) -> Mapping[object, object]:
    with path.open("rb") as file:
        start = file.read(9)
    if start[8:9] == b"{":  # behind the length of its header
        library = safetensors_library(f"reading {path.name}")
        try:
            return cast("Mapping[object, object]", library.load_file(str(path)))
        except Exception as error:
            raise ValueError(f"{path.name} is not a whole safetensors file: {error}") from None
    _require_intact(path, path.name)
    try:
        # Mapped, not read, where torch can: a file may be larger than what is needed of it.
        found = torch.load(
            str(path), map_location="cpu", weights_only=True, mmap=start.startswith(b"PK") or None
        )
    except Exception as error:
        why = str(error).strip().split("\n")[0]
        raise ValueError(
            f"torch cannot load {path.name} without running code that is in it ({type(error).__name__}: {why}); "
            "where you trust it, load it in a program of your own and save its state_dict()"
        ) from None
    state = _state_in(found, path)
    if not any(map(is_note, state.values())):
        return state
    for rank in ranks_of(state.values()):
        _require_intact(path, f"shard-{rank}.pt")
    return cast("Mapping[object, object]", Pieces(path.parent).resolved(state))


def safetensors_library(what: str) -> Any:
    """Return the module ``safetensors.torch``; ``what`` takes it, in the words for those who lack the package.

    Raises:
        TrainingError: it is not installed.
    """
    try:
        return importlib.import_module("safetensors.torch")
    except ImportError:
        raise TrainingError(
            f"{what} takes the package safetensors, which {sys.executable} does not have: pip install safetensors there, or "
            "use a file of torch (.pt)"
        ) from None


def _require_intact(path: Path, name: str) -> None:
    """A checkpoint says what the files beside this one are; one that is not as it was is not to begin with."""
    manifest = read_json(path.with_name(MANIFEST))
    known = manifest.get("parts", {})
    entry = known.get(name) if isinstance(known, dict) else None
    if isinstance(entry, dict) and entry.get("sha256") != sha256(path.parent / name):
        raise ValueError("it differs from its SHA-256 in manifest.json: the checkpoint is damaged")


def _state_in(found: object, path: Path) -> Mapping[object, object]:
    """Return the state_dict itself, or that inside of what a script has saved."""
    for name in _INSIDE:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    if isinstance(found, Mapping) and any(
        isinstance(each, torch.Tensor) or is_note(each) for each in found.values()
    ):
        return found
    held = (
        f"a mapping with {', '.join(map(str, list(found)[:6]))}"
        if isinstance(found, Mapping)
        else type(found).__name__
    )
    raise ValueError(f"{path.name} holds no state_dict, by itself or under {', '.join(_INSIDE)}, but {held}")
