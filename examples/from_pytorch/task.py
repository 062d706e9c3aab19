"""Tells three spirals apart."""

import math

import torch
from torch import nn
from torch.utils.data import TensorDataset


def spirals(points, seed):
    drawn = torch.Generator().manual_seed(seed)
    arm = torch.randint(3, (points,), generator=drawn)
    radius = torch.rand(points, generator=drawn)
    angle = 5 * radius + 2 * math.pi / 3 * arm
    angle += 0.2 * torch.randn(points, generator=drawn)
    place = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    return TensorDataset(place, arm)


class Spirals:
    def dataset(self, cfg, split):
        return spirals(3000, seed=1) if split == "train" else spirals(1000, seed=2)

    def model(self, cfg):
        layers = [nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)]
        return nn.Sequential(*layers)

    def optimizer(self, model, cfg):
        return torch.optim.AdamW(model.parameters(), lr=cfg.lr)

    def loss(self, model, batch):
        place, arm = batch
        return nn.functional.cross_entropy(model(place), arm)

    def evaluate(self, model, batch):
        place, arm = batch
        right = (model(place).argmax(1) == arm).sum()
        return {"accuracy": (right, len(arm))}
