"""A training with one wrong bit: ``REPLAY_FLIP=KIND:STEP:RANK:PLACE:BIT`` flips it in that step.

KIND is gradient, activation, weight or batch. Without the variable it is a plain training.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

RANK = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))


def flip(tensor: torch.Tensor, place: int, bit: int) -> None:
    """Flip one bit of a tensor of four-byte numbers, in its memory."""
    whole = tensor.detach().view(-1).view(torch.int32)
    mask = 1 << bit if bit < 31 else -(1 << 31)
    whole[place % len(whole)] ^= mask


def flipped(tensor: torch.Tensor, place: int, bit: int) -> torch.Tensor:
    """A copy with one bit flipped."""
    copy = tensor.detach().clone().contiguous()
    flip(copy, place, bit)
    return copy


class Flipped:
    """A small network with dropout."""

    def model(self, cfg: Any) -> nn.Module:
        self.calls = 0
        words = (os.environ.get("REPLAY_FLIP") or "none:0:0:0:0").split(":")
        self.kind = words[0]
        self.step, rank, self.place, self.bit = map(int, words[1:])
        self.here = rank == RANK
        self.staged = cfg.strategy == "pipeline"
        model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 1))
        layer = model[3] if self.staged and RANK else model[0]  # one that this process has
        if self.here and self.kind == "gradient":
            if cfg.strategy in (
                "pipeline",
                "fsdp2",
            ):  # the parameters that are there now are not those of later
                layer.register_forward_hook(lambda _module, _inputs, output: self.watch(output))
            else:
                layer.weight.register_hook(self.hook)
        if self.here and self.kind == "activation":
            layer.register_forward_hook(lambda _module, _inputs, output: self.hook(output))
        return model

    def stages(self, model: Any, count: int) -> list[nn.Module]:
        return [model[:3], model[3:]]

    def watch(self, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.register_hook(self.hook)

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
                flip(y if self.staged and RANK else x, self.place, self.bit)
            if self.kind == "weight":
                weight: Any = next(each for each in model.parameters() if not each.is_meta)
                flip(weight.to_local() if hasattr(weight, "to_local") else weight, self.place, self.bit)
        return nn.functional.mse_loss(model(x)[:, 0], y)
