"""What the lessons share: a small problem to learn, and a device to learn it on."""

import torch
from torch import nn


def samples(count=2000):
    """Rows of ten numbers, and their sums."""
    x = torch.rand(count, 10, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


def network(width=64):
    """Two layers, with the same first weights everywhere."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, 1))


def device(local_rank=0):
    """A GPU of one's own where there are GPUs, else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
