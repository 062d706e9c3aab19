"""The seven networks of Shi et al. (2016, arXiv 1608.07249), and the made-up data that they are timed on.

Layers, activations and sizes are those of the code that was measured for the paper with Torch
(https://github.com/hclhkbu/dlbench); ResNet-50 and ResNet-56 are those of He et al. (2015), as everywhere here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from ..tasks.lstm import Lstm, Size
from ..tasks.resnet import ResNet

__all__ = ["NETWORKS", "Network"]

_WORDS, _TOKENS = 10_000, 32


class Network(NamedTuple):
    """A network, how many samples it takes at a time, and what a batch of these looks like."""

    batch: int
    build: Callable[[], nn.Module]
    inputs: Callable[[int], torch.Tensor]
    """From the number of samples N to a batch (N, ...)."""
    targets: Callable[[int], torch.Tensor]
    """To its classes: (N,), or (N, T) for a class at each of T places."""


def _pixels(*shape: int) -> Callable[[int], torch.Tensor]:
    return lambda samples: torch.randn(samples, *shape)


def _classes(number: int, *shape: int) -> Callable[[int], torch.Tensor]:
    return lambda samples: torch.randint(number, (samples, *shape))


def _fully_connected(*sizes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for number in range(1, len(sizes)):
        layers += [nn.Linear(sizes[number - 1], sizes[number]), nn.Sigmoid()]
    return nn.Sequential(*layers[:-1])


def _alexnet() -> nn.Module:
    """Without local normalization and dropout, and with all filters on one device."""
    return nn.Sequential(
        nn.Conv2d(3, 96, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(96, 256, 5, 1, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(256, 384, 3, 1, 1), nn.ReLU(),
        nn.Conv2d(384, 384, 3, 1, 1), nn.ReLU(),
        nn.Conv2d(384, 256, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Flatten(),
        nn.Linear(256 * 36, 4096), nn.ReLU(),
        nn.Linear(4096, 4096), nn.ReLU(),
        nn.Linear(4096, 1000),
    )  # fmt: skip


def _alexnet_for_cifar() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, 1, 2), nn.MaxPool2d(3, 2), nn.ReLU(),
        nn.Conv2d(32, 32, 5, 1, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(32, 64, 5, 1, 2), nn.ReLU(), nn.AvgPool2d(3, 2),
        nn.Flatten(),
        nn.Linear(64 * 9, 10),
    )  # fmt: skip


def _lstm() -> nn.Module:
    return Lstm(Size(256, 0.1, 0.0, layers=2, context=_TOKENS, vocabulary=_WORDS))


NETWORKS = {
    "FCN-S": Network(
        64, lambda: _fully_connected(26752, 2048, 2048, 2048, 26752), _pixels(26752), _classes(26752)
    ),
    "AlexNet-S": Network(16, _alexnet, _pixels(3, 224, 224), _classes(1000)),
    "ResNet-50": Network(16, lambda: ResNet(50, 1000), _pixels(3, 224, 224), _classes(1000)),
    "FCN-R": Network(1024, lambda: _fully_connected(784, 2048, 4096, 1024, 10), _pixels(784), _classes(10)),
    "AlexNet-R": Network(1024, _alexnet_for_cifar, _pixels(3, 32, 32), _classes(10)),
    "ResNet-56": Network(128, lambda: ResNet(56, 10), _pixels(3, 32, 32), _classes(10)),
    "LSTM": Network(128, _lstm, _classes(_WORDS, _TOKENS), _classes(_WORDS, _TOKENS)),
}
"""By the paper's names, in the order of its table; S: made-up data, R: real data, of which the sizes are kept."""
