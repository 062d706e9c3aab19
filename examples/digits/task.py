"""Learns to read handwritten digits of 8x8 pixels."""

from __future__ import annotations

from pathlib import Path

import torch
from prepare import write
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset


class Digits:
    """A small convolutional network on 1,437 images, tested on 360 others."""

    def prepare(self, cfg):
        """Runs once, on one rank, while the others wait."""
        if not Path(cfg.data).exists():
            write(Path(cfg.data))

    def model(self, cfg):
        """From images (N, 1, 8, 8) to scores (N, 10)."""
        return nn.Sequential(
            nn.Conv2d(1, cfg.channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(cfg.channels, cfg.channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(cfg.channels * 16, 10),
        )

    def dataset(self, cfg, split):
        """Pairs of image and label; the split is fixed in the file."""
        return TensorDataset(*torch.load(cfg.data, weights_only=True)[split])

    def schedule(self, optimizer, cfg, total_steps):
        """A warm-up, then down to nothing."""
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=cfg.lr, total_steps=total_steps)

    def loss(self, model, batch):
        """The mean over the batch."""
        images, labels = batch
        return cross_entropy(model(images), labels)

    def evaluate(self, model, batch):
        """Sums and counts, so that the figures are exact over any number of ranks."""
        images, labels = batch
        scores = model(images)
        right = (scores.argmax(1) == labels).sum()
        total = cross_entropy(scores, labels, reduction="sum")
        return {"accuracy": (right, len(labels)), "loss": (total, len(labels))}
