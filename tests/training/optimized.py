"""Tiny tasks with optimizers, schedules and states of their own."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from small import Line, Restless  # noqa: F401


class Fused(Line):
    """An optimizer that leaves out a step on the device, as the scaler tells it."""

    def optimizer(self, model, cfg):
        return torch.optim.AdamW(model.parameters(), lr=cfg.lr, fused=True)


class Grouped(Line):
    """The last layer learns ten times as fast, and the first layer's bias not at all."""

    def parameter_groups(self, model, cfg):
        return [
            {"params": [model[0].weight]},
            {"params": model[2].parameters(), "lr": 10 * cfg.lr, "weight_decay": 0.0},
        ]
