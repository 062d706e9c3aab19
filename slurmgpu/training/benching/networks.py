"""The seven networks of Shi et al. (2016, arXiv 1608.07249), and the times of the parts of their steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ..fitting.memory import ran_out
from ..precision import Precision
from ..tasks.lstm import Lstm, Size
from ..tasks.resnet import ResNet
from .timing import Pace, spread, timed

__all__ = ["NETWORKS", "Network", "step_times"]


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

_PARTS = ("forward", "backward", "update")


class _Step:
    """One step in three parts; the update is SGD's, without momentum."""

    def __init__(self, network: Network, samples: int, device: torch.device, precision: Precision) -> None:
        torch.manual_seed(0)
        self.model = network.build().to(device)
        self.inputs = network.inputs(samples).to(device)
        self.targets = network.targets(samples).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.precision = precision
        self.loss: Any = None

    def forward(self) -> None:
        with self.precision.autocast():
            scores = self.model(self.inputs)
            self.loss = cross_entropy(scores.flatten(0, -2), self.targets.flatten())

    def backward(self) -> None:
        scaler = self.precision.scaler
        (self.loss if scaler is None else scaler.scale(self.loss)).backward()
        self.loss = None

    def update(self) -> None:
        scaler = self.precision.scaler
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        self.optimizer.zero_grad(set_to_none=True)


def step_times(name: str, device: torch.device, precision: str, tf32: bool, pace: Pace) -> dict[str, object]:
    """Return the seconds that each part of a step of this network takes (median, least, most), or why there are none."""
    network = NETWORKS[name]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True  # the sizes never change
    found: dict[str, object] = {"batch": network.batch}
    try:
        step = _Step(network, network.batch, device, Precision(precision, device, 65536.0))
        found["parameters"] = _count(step.model)
        rounds = timed((step.forward, step.backward, step.update), device, pace)
    except Exception as error:
        if not ran_out(error):
            raise
        return {**found, "why": "out of memory"}
    for number, part in enumerate(_PARTS):
        found[part] = spread([laps[number] for laps in rounds])._asdict()
    found["step"] = spread([sum(laps) for laps in rounds])._asdict()
    found["rounds"] = len(rounds)
    if device.type == "cuda":
        found["peak_bytes"] = torch.cuda.max_memory_allocated(device)
    return found


def _count(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())
