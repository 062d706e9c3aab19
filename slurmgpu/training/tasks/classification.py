"""The common parts of networks that classify images: their data, loss, measures and optimizer."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ..settings import Config
from . import images, options
from .counting import forward_and_backward

__all__ = ["Classification"]


class Classification:
    """Images of one class each; a network's own task says how it is built, and what is usual for it."""

    name = ""

    def __init__(self) -> None:
        self.normalized = images.Normalized()
        self._smoothing = 0.0

    def network(self, chosen: Any, classes: int) -> nn.Module:
        """From images (N, 3, H, W) to scores (N, classes)."""
        raise NotImplementedError

    def usual(self, chosen: Any) -> tuple[int, int, str]:
        """Pixels, classes and augmentation as published."""
        return 224, 1000, "resized"

    def prepare(self, cfg: Config) -> None:
        """Make the index of shards, where there are some."""
        images.prepare(options(cfg, self.name))

    def model(self, cfg: Config) -> nn.Module:
        """Return the network with a score for each class."""
        chosen = options(cfg, self.name)
        self._smoothing = chosen.label_smoothing
        return self.network(chosen, images.classes_of(chosen, self.usual(chosen)[1]))

    def dataset(self, cfg: Config, split: str) -> Optional[object]:
        """Images as bytes, and their class."""
        chosen = options(cfg, self.name)
        size, classes, augment = self.usual(chosen)
        augment = augment if chosen.augment == "auto" else chosen.augment
        return images.dataset(
            chosen, split, chosen.image or size, images.classes_of(chosen, classes), augment
        )

    def optimizer(self, model: nn.Module, cfg: Config) -> torch.optim.Optimizer:
        """SGD with momentum, and weight decay for matrices and filters alone."""
        trained = [each for each in model.parameters() if each.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": [each for each in trained if each.dim() > 1]},
            {"params": [each for each in trained if each.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.SGD(groups, lr=cfg.lr, momentum=0.9, weight_decay=cfg.weight_decay)

    def flops(self, cfg: Config) -> float:
        """Of an image, by the sizes of all layers."""
        chosen = options(cfg, self.name)
        size, classes, _ = self.usual(chosen)
        with torch.device("meta"):
            network = self.network(chosen, images.classes_of(chosen, classes))
        size = chosen.image or size
        return forward_and_backward(network, 3, size, size)

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the mean over the batch."""
        pictures, labels = batch
        return cross_entropy(model(self.normalized(pictures)), labels, label_smoothing=self._smoothing)

    def evaluate(self, model: nn.Module, batch: list[torch.Tensor]) -> dict[str, tuple[torch.Tensor, float]]:
        """Return how many are right, first and among the first five; sums are exact over any number of ranks."""
        pictures, labels = batch
        scores = model(self.normalized(pictures))
        first = scores.topk(min(5, scores.shape[1]), 1).indices == labels[:, None]
        total = cross_entropy(scores, labels, reduction="sum")
        found = {"accuracy": first[:, 0].sum(), "accuracy_top5": first.sum(), "loss": total}
        return {name: (value, len(labels)) for name, value in found.items()}
