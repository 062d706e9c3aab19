"""Forward pass, backward pass and update of one of the seven networks, timed apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ..fitting.memory import ran_out
from ..precision import Precision
from .networks import NETWORKS, Network
from .timing import Pace, spread, timed

__all__ = ["step_times"]

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
