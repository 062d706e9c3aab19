"""The trainings that ``soak.py`` disturbs: a plain one, and one for each thing that has a state of its own."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import torch
from torch import nn

SAMPLES = 200


class Data(torch.utils.data.Dataset[Any]):
    """Samples of six numbers and their sum, a little different at each look."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        made = torch.Generator().manual_seed(index)
        x = torch.randn(6, generator=made)
        return x + 0.1 * torch.rand(6) + random.random() / 10, x.sum(), index


class Plain:
    """Dropout, random augmentation, random weights of losses, a schedule; writes down which samples it has seen."""

    def model(self, cfg: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 1))

    def dataset(self, cfg: Any, split: str) -> Any:
        return Data() if split == "train" else None

    def optimizer(self, model: nn.Module, cfg: Any) -> Any:
        self.trace = os.open(os.environ["SOAK_TRACE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    def schedule(self, optimizer: torch.optim.Optimizer, cfg: Any, total_steps: int) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_steps)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y, index = batch
        if not model.training:
            return nn.functional.mse_loss(model(x)[:, 0], y)
        time.sleep(float(os.environ["SOAK_PAUSE"]) / int(os.environ["SOAK_ACCUMULATE"]))
        loss = nn.functional.mse_loss(model(x)[:, 0], y) * random.uniform(0.5, 1.5)
        os.write(self.trace, (" ".join(map(str, index.tolist())) + "\n").encode())
        return loss


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("Plain", {}),
}
"""The class and the settings of each kind."""
