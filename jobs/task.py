"""A task for slurmgpu's own training loop: learns the sum of ten numbers."""

import torch
from torch import nn
from torch.utils.data import TensorDataset


def samples(count, seed):
    """Ten numbers and their sum, ``count`` times."""
    x = torch.rand(count, 10, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x.sum(1, keepdim=True))


class Sum:
    """What is trained; the loop, the checkpoints and the restart are slurmgpu's."""

    def model(self, cfg):
        """A small network from ten numbers to one."""
        return nn.Sequential(nn.Linear(10, cfg.width), nn.ReLU(), nn.Linear(cfg.width, 1))

    def dataset(self, cfg, split):
        """Training and test samples are different ones."""
        return samples(2000, seed=1) if split == "train" else samples(500, seed=2)

    def loss(self, model, batch):
        """The mean over the batch."""
        inputs, targets = batch
        return nn.functional.mse_loss(model(inputs), targets)

    def evaluate(self, model, batch):
        """Sum and count, so that the figure is exact over any number of ranks."""
        inputs, targets = batch
        return {"error": ((model(inputs) - targets).abs().sum(), len(targets))}
