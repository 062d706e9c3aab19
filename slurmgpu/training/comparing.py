"""Two checkpoints, bit for bit: ``python -m slurmgpu_training.comparing STEP_FOLDER STEP_FOLDER``.

Prints one line of JSON: of each part the tensors and values that differ, and how far apart the numbers are. Files need not
be the same bytes: what was loaded from a checkpoint is pickled otherwise than what was not.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import TrainingError
from .files import read_json, write_json
from .formats.checkpoint import CHECKPOINTS, MANIFEST, step_folder
from .formats.run_files import COMPARE_FILE, COMPARED_FILE
from .saving.checkpoint import Generation, read

__all__ = ["compare", "compare_as_asked"]

_NAMED = 5


def compare(one: Path, other: Path) -> dict[str, Any]:
    """By the name of each part: ``differing`` (the first few names), ``count`` of these, and ``distance``, the root of the
    sum of squares over all differing tensors of numbers.

    Raises:
        TrainingError: a part cannot be read.
    """
    try:
        first, second = (read_json(path / MANIFEST).get("parts", {}) for path in (one, other))
    except (OSError, ValueError) as error:
        raise TrainingError(f"cannot compare {one} and {other}: {error}") from error
    found: dict[str, Any] = {}
    for name in sorted(first.keys() | second.keys()):
        if name not in first or name not in second:
            found[name] = {"differing": ["only one has it"], "count": 1, "distance": None}
            continue
        if first[name] == second[name]:
            found[name] = {"differing": [], "count": 0, "distance": 0.0}
            continue
        differing = list(_differing(read(Generation(one, {}), name), read(Generation(other, {}), name), ()))
        square = sum(apart for _, apart in differing)
        found[name] = {
            "differing": [place for place, _ in differing[:_NAMED]],
            "count": len(differing),
            "distance": math.sqrt(square) if math.isfinite(square) else None,
        }
    return found


def compare_as_asked(run_dir: Path) -> None:
    """Hold a checkpoint that this training has saved against others, and write ``compared.json``: for machines without torch.

    ``compare.json`` in the run directory names its ``step``, and in ``with`` the folders of the others, below the run directory.

    Raises:
        TrainingError: it cannot be read what is asked, or a part.
    """
    asked = read_json(run_dir / COMPARE_FILE)
    try:
        own, others = step_folder(run_dir / CHECKPOINTS, asked["step"]), list(asked["with"])
    except (KeyError, TypeError) as error:
        raise TrainingError(
            f"{run_dir / COMPARE_FILE} does not say what is compared: it needs step and with"
        ) from error
    found = {other: compare(run_dir / other, own) for other in others}
    write_json(run_dir / COMPARED_FILE, {"schema": "slurmgpu.compared/1", "found": found})


def _differing(one: Any, other: Any, place: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    """Yield where two values differ, and the square of their distance."""
    import torch

    where = ".".join(place)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            yield where, math.inf
        elif not torch.equal(_bits(one), _bits(other)):
            yield where, float((one.to_dense().double() - other.to_dense().double()).square().sum())
    elif isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in [*one, *(key for key in other if key not in one)]:
            if key in one and key in other:
                yield from _differing(one[key], other[key], (*place, str(key)))
            else:
                yield ".".join((*place, str(key))), math.inf
    elif isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        for number, (left, right) in enumerate(zip(one, other)):
            yield from _differing(left, right, (*place, str(number)))
    elif isinstance(one, float) and isinstance(other, float):
        if struct.pack("<d", one) != struct.pack("<d", other):
            yield where, (one - other) ** 2
    elif one != other:
        yield where, math.inf


def _bits(tensor: Any) -> Any:
    """Return the bytes of a tensor: a NaN is equal to itself, and 0 is not -0."""
    import torch

    flat = tensor.detach().to_dense().contiguous().reshape(-1)
    if flat.dtype.is_complex:
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view(torch.uint8)


def main(arguments: Sequence[str]) -> int:
    """Compare as the arguments say; the exit code."""
    one, other = arguments
    try:
        print(json.dumps(compare(Path(one), Path(other))))
        return 0
    except TrainingError as error:
        print(error, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
