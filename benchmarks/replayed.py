"""The training whose bits ``replay.py`` flips: ``REPLAY_FLIP=KIND:STEP:RANK:PLACE:BIT`` flips one in that step.

KIND is gradient, activation, weight or batch. Without the variable it is a plain training.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

RANK = int(os.environ.get("RANK", "0"))


def flipped(tensor: torch.Tensor, place: int, bit: int) -> torch.Tensor:
    """A copy with one bit flipped."""
    copy = tensor.detach().clone().contiguous()
    whole = copy.view(-1).view(torch.int32)
    mask = 1 << bit if bit < 31 else -(1 << 31)
    whole[place % len(whole)] ^= mask
    return copy


class Flipped:
    """A small network with dropout."""

    def model(self, cfg: Any) -> nn.Module:
        self.calls = 0
        words = (os.environ.get("REPLAY_FLIP") or "none:0:0:0:0").split(":")
        self.kind = words[0]
        self.step, rank, self.place, self.bit = map(int, words[1:])
        self.here = rank == RANK
        model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 1))
        if self.here and self.kind == "gradient":
            model[0].weight.register_hook(self.hook)
        if self.here and self.kind == "activation":
            model[0].register_forward_hook(lambda _module, _inputs, output: self.hook(output))
        return model

    def hook(self, value: torch.Tensor) -> torch.Tensor:
        if self.calls != self.step:
            return value
        # The value alone is wrong, the graph behind it stays.
        return (
            value + (flipped(value, self.place, self.bit) - value.detach())
            if value.requires_grad
            else flipped(value, self.place, self.bit)
        )

    def dataset(self, cfg: Any, split: str) -> Any:
        if split == "test":
            return None
        x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
        return TensorDataset(x, x.sum(1))

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        self.calls += 1
        if self.here and self.calls == self.step:
            if self.kind == "batch":
                x = flipped(x, self.place, self.bit)
            if self.kind == "weight":
                weight = next(model.parameters())
                weight.data.copy_(flipped(weight, self.place, self.bit))
        return nn.functional.mse_loss(model(x)[:, 0], y)
