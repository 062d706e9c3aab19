"""Tiny tasks for the tests; SMALL_FAULT="kind:call:rank" makes a rank's n-th training loss fail."""

import os
import random
import signal
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

RANK = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))


def fail_on_demand(call):
    kind, _, where = os.environ.get("SMALL_FAULT", "").partition(":")
    if where == f"{call}:{RANK}":
        if kind == "raise":
            raise ValueError("a mistake in the task")
        os.kill(os.getpid(), getattr(signal, kind))


class Line:
    """A network for y = 2x - 1 and noise; 100 samples to learn from, 37 to test on."""

    def __init__(self):
        self.calls = 0

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def dataset(self, cfg, split):
        generator = torch.Generator().manual_seed(len(split))
        x = torch.randn(100 if split == "train" else 37, 3, generator=generator)
        noise = torch.randn(len(x), 1, generator=generator)
        return TensorDataset(x, 2 * x[:, :1] - 1 + noise / 10, torch.arange(len(x)) % 4)

    def loss(self, model, batch):
        x, y, _ = batch
        if model.training:
            self.calls += 1
            fail_on_demand(self.calls)
        return nn.functional.mse_loss(model(x), y)


class Weighted(Line):
    """Each sample weighs 0 to 3: the number of things counted differs from batch to batch."""

    def loss(self, model, batch):
        x, y, weight = batch
        return ((model(x) - y).square()[:, 0] * weight).sum(), weight.sum()


class Restless(Line):
    """All that a resume must put back: dropout, Python's random numbers, momentum, a schedule."""

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 1))

    def optimizer(self, model, cfg):
        return torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9)

    def schedule(self, optimizer, cfg, total_steps):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_steps)

    def loss(self, model, batch):
        return super().loss(model, batch) * random.uniform(0.5, 1.5)


class OneCycle(Line):
    """A schedule that knows its length."""

    def schedule(self, optimizer, cfg, total_steps):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=total_steps)


class Buffered(Line):
    """BatchNorm: the ranks' statistics differ until they are shared."""

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


class Poisoned(Line):
    """One training step has a loss of NaN."""

    def model(self, cfg):
        self.poisoned = cfg.poisoned
        return super().model(cfg)

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        return loss * float("nan") if model.training and self.calls == self.poisoned else loss


class Slow(Restless):
    """Steps that take long enough to be stopped in between."""

    def loss(self, model, batch):
        if model.training:
            time.sleep(0.1)
        return super().loss(model, batch)


class Tested(Line):
    """Something happens in the second batch of an evaluation."""

    tests = 0

    def evaluate(self, model, batch):
        self.tests += 1
        kind, _, where = os.environ.get("SMALL_TEST_FAULT", "").partition(":")
        if where in (str(self.tests), f"{self.tests}:{RANK}"):
            os.kill(os.getpid(), getattr(signal, kind))
            time.sleep(0.1)
        x, y, _ = batch
        return {"loss": ((model(x) - y).square().sum(), len(y))}


class Early(Line):
    """Gets a signal while it prepares."""

    def prepare(self, cfg):
        os.kill(os.getpid(), signal.SIGTERM)


class Hanging(Line):
    """Rank 1 hangs in its fourth step."""

    def loss(self, model, batch):
        if self.calls == 3 and RANK == 1 and model.training:
            time.sleep(60)
        return super().loss(model, batch)


class Blocks(Line):
    """Names its blocks."""

    def model(self, cfg):
        block = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        return nn.Sequential(nn.Linear(3, 8), block, nn.Linear(8, 1))

    def blocks(self, model):
        return [model[1]]
