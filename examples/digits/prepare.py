"""Writes digits.pt, the 8x8 handwritten digits that ship inside scikit-learn (real data, no download).

Once, where scikit-learn is; training needs only torch and this file: ``python prepare.py [FILE]``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

TEST_SAMPLES = 360  # of 1,797


def write(path: Path) -> None:
    """Write images (N, 1, 8, 8), 0 to 1, and labels (N) of both splits; whole or not at all."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SystemExit(
            f"{path} does not exist, and scikit-learn, which it is made from, is not installed here: "
            f"run `pip install scikit-learn`, then `python {Path(__file__).resolve()} {path.resolve()}`"
        ) from None
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels.tolist()).view(-1, 1, 8, 8) / 16
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    parts = {"test": order[:TEST_SAMPLES], "train": order[TEST_SAMPLES:]}
    answers = torch.tensor(labels.tolist())
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    torch.save({split: (images[chosen], answers[chosen]) for split, chosen in parts.items()}, temporary)
    temporary.replace(path)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("digits.pt")
    write(target)
    print(f"wrote {target}")
