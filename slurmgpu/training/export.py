"""A checkpoint's weights as one plain state_dict: ``python -m slurmgpu_training.export STEP_FOLDER FILE PART [LIKE]``.

With ``LIKE``, a folder of Hugging Face's, FILE is a new folder such as that one.

Prints one line of JSON about what it wrote. Whether the checkpoint is intact has been seen to before.
"""

from __future__ import annotations

import json
import math
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

from .errors import TrainingError
from .files import read_json, sync_folder, write_whole
from .formats.checkpoint import AVERAGE
from .names import plain_names, with_versions

__all__ = ["export", "export_like"]

"""The part of a checkpoint with the average of the weights, where there is one."""


def export(folder: Path, target: Path, part: str = "model") -> dict[str, int]:
    """Write a part of the generation in ``folder`` to a file, whole or not at all; tensors, values, bytes, and whether it is
    an average.

    A file named ``.safetensors`` is of that format; any other is torch's. Sharded tensors are put together.

    Raises:
        TrainingError: there is no such part, ``load_state_dict`` would not take it, or the package safetensors is missing.
    """
    import torch

    from .saving.pieces import Pieces
    from .weights.folder import write_safetensors

    named = target.suffix == ".safetensors"
    found = _find(folder, part)
    state = Pieces(folder).resolved(_by_name(found, folder, part) if named else found)
    # A name that nobody can tell beforehand, and lay a link there: the folder may be one that others write into.
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        if named:
            write_safetensors(temporary, state)
        else:
            write_whole(temporary, lambda file: torch.save(state, cast("IO[bytes]", file)))
        size = temporary.stat().st_size
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(target.parent)
    sizes = list(_sizes(state))
    return {
        "tensors": len(sizes), "values": sum(sizes), "bytes": size, "averaged": averaged(folder, part),
    }  # fmt: skip


def export_like(folder: Path, target: Path, part: str, like: Path) -> dict[str, Any]:
    """Write a part of the generation in ``folder`` as a folder of Hugging Face's, as ``like`` is one; what ``export`` returns,
    and ``files``, ``added`` and ``left_out``: names that the checkpoint or ``like`` alone has.

    The names are those of ``like``, as ``pretrained_rename`` in the run's ``train.json`` has them.

    Raises:
        TrainingError: there is no such part, or it does not fit ``like``.
    """
    from .saving.pieces import Pieces
    from .weights.folder import write_like

    state = _by_name(_find(folder, part), folder, part)
    rename = read_json(folder.parent.parent / "train.json").get("pretrained_rename") or {}
    written = write_like(like, target, state, Pieces(folder), cast("Mapping[str, str]", rename))
    return {**written._asdict(), "averaged": averaged(folder, part)}


def _sizes(value: object) -> Iterator[int]:
    """Yield the number of values in each tensor, however deep it lies."""
    from .saving.pieces import is_note

    if is_note(value):
        yield math.prod(cast("Any", value)["shape"])
        return
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _sizes(each)
    elif hasattr(value, "numel"):
        yield value.numel()


def _by_name(state: Mapping[object, object], folder: Path, part: str) -> Mapping[object, object]:
    """Return a state that a safetensors file can hold: tensors by name, and nothing else."""
    from .saving.pieces import is_note

    others = [name for name, each in state.items() if not (is_note(each) or hasattr(each, "numel"))]
    if others:
        raise TrainingError(
            f"{folder.name}: {part} has {others[0]!r}, which is no tensor, and a safetensors file holds tensors alone: "
            "export it to a file named otherwise, such as .pt"
        )
    return state


def _find(folder: Path, part: str) -> Mapping[object, object]:
    """Return the files of a state: a task's model has its own, everything else is in one with others, by name."""
    own_loop = folder / "state.pt"
    if part in ("model", "raw") and not own_loop.exists():
        return plain_names(_weights(folder, part), wrapped=False)
    saved = _load(own_loop if own_loop.exists() else folder / "training.pt")
    if part not in saved:
        names = [*([] if own_loop.exists() else ["model", "raw"]), *saved]
        raise TrainingError(f"{folder.name} has no part {part!r}; it has {', '.join(map(str, names))}")
    # A loop of the user's own may have saved DDP's names; a task's model is saved without its wrapper.
    return plain_names(_mapping(saved[part], folder, part), wrapped=own_loop.exists())


def _weights(folder: Path, part: str) -> Mapping[object, object]:
    """Return a task's model, with the average of its weights where there is one, unless it is to be ``raw``."""
    model = _mapping(_load(folder / "model.pt"), folder, part)
    if part == "raw" or not averaged(folder, part):
        return model
    average = _load(folder / AVERAGE)
    if not average.keys() <= model.keys():
        names = ", ".join(sorted(map(str, average.keys() - model.keys()))[:4])
        raise TrainingError(f"the model's state_dict has no {names}, which are averaged: export the part raw")
    return with_versions({**model, **average}, model)


def averaged(folder: Path, part: str) -> bool:
    """Return True if what is exported is the average of the weights (``ema``)."""
    return part == "model" and (folder / AVERAGE).exists()


def _mapping(state: object, folder: Path, part: str) -> Mapping[object, object]:
    if not isinstance(state, Mapping):
        raise TrainingError(
            f"{folder.name} has nothing under {part!r}: this training had none, or it is not a state_dict"
        )
    return state


def _load(path: Path) -> Mapping[object, object]:
    import torch

    try:
        # Mapped, not read: a model that is larger than the memory here can be exported, too.
        found = torch.load(str(path), map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError:
        raise TrainingError(
            f"{path} is not there; it may have been removed: list the checkpoints again"
        ) from None
    except Exception as error:
        raise TrainingError(f"cannot load {path}: {error}") from error
    return cast("Mapping[object, object]", found)


def main(arguments: Sequence[str]) -> int:
    """Export as the arguments say; the exit code."""
    folder, target, part, *like = arguments
    try:
        if like:
            print(json.dumps(export_like(Path(folder), Path(target), part, Path(like[0]))))
        else:
            print(json.dumps(export(Path(folder), Path(target), part)))
        return 0
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        print(f"{sys.executable} has no torch", file=sys.stderr)
    except OSError as error:
        print(f"{target} cannot be written: {error.strerror}", file=sys.stderr)
    except TrainingError as error:
        print(error, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
