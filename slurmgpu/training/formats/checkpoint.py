"""A checkpoint on disk: ``checkpoints/step-N/`` with parts and a manifest, and what counts as intact, as the end, as the best.

``manifest.json`` has the size and SHA-256 of each part, and its own SHA-256 as its last entry.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

__all__ = [
    "AVERAGE",
    "CHECKPOINTS",
    "CHECKPOINT_SCHEMA",
    "MANIFEST",
    "is_finished",
    "is_of_metric",
    "is_spent",
    "is_used_up",
    "read_manifest",
    "require_content",
    "require_manifest",
    "require_size",
    "sealed",
    "sha256",
    "step_folder",
    "step_of",
]

CHECKPOINTS = "checkpoints"
MANIFEST = "manifest.json"
AVERAGE = "average.pt"
"""The part with the average of the weights (ema)."""
CHECKPOINT_SCHEMA = "slurmgpu.checkpoint/2"
_UNSEALED_SCHEMA = "slurmgpu.checkpoint/1"
"""Of earlier versions: without a checksum of the manifest."""
_SEAL = ',\n "sha256": '
_NUMBERS = {"step": 0, "samples": 0, "world_size": 1}
"""Numbers that each manifest has, with their least values."""


def step_folder(folder: Path, step: int) -> Path:
    """Return where the checkpoint of a step lies among a run's checkpoints."""
    return folder / f"step-{step}"


def step_of(path: Path) -> Optional[int]:
    """Return the step whose checkpoint a folder is by its name."""
    match = re.fullmatch(r"step-(\d+)", path.name, re.ASCII)
    return int(match[1]) if match else None


def sealed(manifest: Mapping[str, object]) -> bytes:
    """Return the text of a manifest, whose last entry is the SHA-256 of the text before it."""
    return _with_seal(json.dumps(manifest, indent=1)[: -len("\n}")].encode())


def _with_seal(body: bytes) -> bytes:
    return body + f'{_SEAL}"{hashlib.sha256(body).hexdigest()}"\n}}'.encode()


def read_manifest(text: bytes, step: Optional[int]) -> dict[str, Any]:
    """Return what a manifest says, without its schema and seal; ``step``: that of its folder, where the name has one.

    Raises:
        ValueError: it is not as it was written, or lacks what each manifest has.
    """
    try:
        manifest = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{MANIFEST} cannot be read: {error}") from None
    require_manifest(manifest, text, step)
    return {name: value for name, value in manifest.items() if name not in ("schema", "sha256")}


def require_manifest(manifest: Any, text: bytes, step: Optional[int]) -> None:
    """Raise ValueError where a manifest, read from this text, is not as it was written, or lacks what each has."""
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if schema not in (CHECKPOINT_SCHEMA, _UNSEALED_SCHEMA):
        raise ValueError(f"{MANIFEST} is not of schema {CHECKPOINT_SCHEMA}")
    if schema == CHECKPOINT_SCHEMA and text != _with_seal(text.rpartition(_SEAL.encode())[0]):
        raise ValueError(f"{MANIFEST} differs from its SHA-256")
    if "ranks_per_folder" in manifest:
        raise ValueError(
            "its ranks' files lie in folders, as earlier versions wrote those of more than 64 ranks, and this version reads "
            "none: export it with the version that wrote it (checkpoint export), and begin from that file (pretrained)"
        )
    for name, least in _NUMBERS.items():
        value = manifest.get(name)
        if type(value) is not int or value < least:
            raise ValueError(f"{MANIFEST}: {name} is {value!r}")
    if step not in (None, manifest["step"]):
        raise ValueError(f"{MANIFEST} is of step {manifest['step']}")
    try:
        whole = all(entry["bytes"] >= 0 and entry["sha256"] for entry in manifest["parts"].values())
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"{MANIFEST} is incomplete") from None
    if not whole:
        raise ValueError(f"{MANIFEST} says nothing of a part")


def require_size(path: Path, name: str, entry: Mapping[str, Any]) -> None:
    """Raise ValueError where a part is not there in full length, and OSError where that is unclear."""
    try:
        found = (path / name).stat()
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{name} is missing") from None
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{name} is missing")
    _require_bytes(found.st_size, entry["bytes"], name)


def _require_bytes(size: int, known: int, name: str) -> None:
    if size != known:
        raise ValueError(f"{name} has {size} bytes instead of {known}")


def require_content(path: Path, name: str, entry: Mapping[str, Any]) -> None:
    """Read a part through, block by block, and raise ValueError where it is not as it was written."""
    if sha256(path / name) != entry["sha256"]:
        raise ValueError(f"{name} differs from its SHA-256")


def sha256(path: Path) -> str:
    """Return a file's SHA-256, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def is_finished(manifest: Mapping[str, Any], settings: Mapping[str, Any], limit: Optional[int]) -> bool:
    """Return whether a checkpoint is the end of what the settings ask for, with its evaluation.

    ``limit``: the last step, where there is one.
    """
    at_limit = limit is not None and manifest["step"] >= limit
    early = is_spent(manifest.get("early_stop"), settings.get("early_stop"))
    used_up = is_used_up(manifest.get("samples"), manifest.get("dataset_samples"), settings)
    return bool(manifest.get("complete") and (at_limit or early or used_up))


def is_used_up(samples: Optional[int], dataset_samples: Optional[int], settings: Mapping[str, Any]) -> bool:
    """Return whether the epochs have no step left at this position; ``drop_last`` leaves a rest that is none."""
    epochs = settings.get("epochs") or (1 if settings.get("max_steps") is None else None)
    if samples is None or dataset_samples is None or epochs is None:  # a stream, or steps alone are counted
        return False
    room = settings["batch_size"] if settings.get("drop_last") else 1
    return bool(samples + room > epochs * dataset_samples)


def is_spent(saved: Optional[Mapping[str, Any]], wanted: Optional[Mapping[str, Any]]) -> bool:
    """Return whether the evaluations since the best one, as a manifest has them, use up the patience of the settings."""
    return is_of_metric(saved, wanted) and saved["since"] >= wanted["patience"]  # type: ignore[index]


def is_of_metric(saved: Optional[Mapping[str, Any]], wanted: Optional[Mapping[str, Any]]) -> bool:
    """Return whether what a manifest has of the best evaluation is of the metric that the settings name."""
    return bool(saved and wanted) and all(saved[name] == wanted[name] for name in ("metric", "mode"))  # type: ignore[index]
