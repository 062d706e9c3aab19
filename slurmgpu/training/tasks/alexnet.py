"""AlexNet (Krizhevsky et al. 2012), in the form for one GPU of 2014: no split in two, no local normalization."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .classification import Classification

__all__ = ["AlexNet", "Task"]


class AlexNet(nn.Module):
    """From images (N, 3, H, W), 63 pixels or more, to scores (N, classes)."""

    def __init__(self, classes: int, dropout: float) -> None:
        super().__init__()
        self.filters = nn.Sequential(
            nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, 1, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, 1, 1), nn.ReLU(),
            nn.Conv2d(384, 256, 3, 1, 1), nn.ReLU(),
            nn.Conv2d(256, 256, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.pool = nn.AdaptiveAvgPool2d(6)
        self.layers = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(256 * 36, 4096), nn.ReLU(),
            nn.Dropout(dropout), nn.Linear(4096, 4096), nn.ReLU(),
            nn.Linear(4096, classes),
        )  # fmt: skip
        # Spread by what comes in: without local normalization, the paper's 0.01 everywhere lets nothing through.
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        nn.init.normal_(self.layers[-1].weight, std=0.01)  # type: ignore[arg-type]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a score for each class."""
        return self.layers(self.pool(self.filters(images)).flatten(1))  # type: ignore[no-any-return]


class Task(Classification):
    """The class of each image, by AlexNet."""

    name = "alexnet"

    def network(self, chosen: Any, classes: int) -> nn.Module:
        """AlexNet with so many classes."""
        return AlexNet(classes, chosen.dropout)
