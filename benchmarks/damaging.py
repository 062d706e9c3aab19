"""Checkpoints that are damaged on their disk, for ``soak.py``: between two starts, and bit by bit for both readers."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import torch

from slurmgpu.training.errors import TrainingError
from slurmgpu.training.saving.checkpoint import newest_intact

__all__ = ["DAMAGES", "accepted_flips", "generations", "spoil"]

DAMAGES = ("flipped bit", "cut off", "missing", "zeros", "another save's", "another run's", "exchanged")

MANIFEST = "manifest.json"


def generations(folder: Path) -> list[Path]:
    """The generations that count, newest first."""
    found = [path.parent for path in folder.glob("step-*/manifest.json")]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def spoil(folder: Path, kind: str, dice: random.Random) -> str:
    """Damage a file of the newest generation, its manifest or a part, by chance; its name. There is an older generation."""
    newest, older, *_ = generations(folder)
    path = dice.choice(sorted(newest.iterdir()))
    if kind == "flipped bit":
        path.write_bytes(_flipped(path.read_bytes(), dice))
    elif kind == "cut off":
        path.write_bytes(path.read_bytes()[: dice.randrange(path.stat().st_size)])
    elif kind == "missing":
        # Without its manifest a generation is one that was never finished, which is no damage.
        path = dice.choice(sorted(newest.glob("*.pt")))
        path.unlink()
    elif kind == "zeros":
        path.write_bytes(bytes(path.stat().st_size))
    elif kind == "another run's":
        path = dice.choice(sorted([*newest.glob("shard-*.pt")] or [newest / "model.pt"]))
        torch.save(_of_other_values(torch.load(path, weights_only=True)), path)
    elif kind == "exchanged":
        path, other = dice.sample(sorted([*newest.glob("shard-*.pt")] or newest.glob("rank-*.pt")), 2)
        content = path.read_bytes()
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
    else:
        path = newest / (path.name if (older / path.name).exists() else MANIFEST)
        if (older / path.name).read_bytes() == path.read_bytes():  # a random state may be the same in both
            path = newest / MANIFEST
        shutil.copyfile(older / path.name, path)
    return path.name


def _of_other_values(value: Any) -> Any:
    """The same names and shapes, and other values: what a run with another seed would have written there."""
    if isinstance(value, torch.Tensor):
        return value + 1
    return {name: _of_other_values(each) for name, each in value.items()}


def accepted_flips(folder: Path, count: int, dice: random.Random, scratch: Path) -> list[str]:
    """Flip a bit of the newest generation, so many times, each time in a fresh copy; those that a reader took for whole.

    The readers are that of a training that goes on, and that of ``slurmgpu checkpoint``.
    """
    # Here, as they need more than torch, which the rest of this does without.
    from slurmgpu.runs.checkpoints import checkpoints, damage

    newest = generations(folder)[0]
    accepted = []
    for _ in range(count):
        copy = scratch / newest.name
        shutil.copytree(newest, copy)
        path = dice.choice(sorted(copy.iterdir()))
        path.write_bytes(_flipped(path.read_bytes(), dice))
        (one,) = checkpoints(scratch)
        if one.state == "complete" and not damage(one):
            accepted.append(f"{path.name}: slurmgpu checkpoint")
        try:
            newest_intact(scratch)
        except TrainingError:
            pass  # none is intact
        else:
            accepted.append(f"{path.name}: training")
        for left in scratch.iterdir():
            shutil.rmtree(left)
    return accepted


def _flipped(content: bytes, dice: random.Random) -> bytes:
    place = dice.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << dice.randrange(8)]) + content[place + 1 :]
