"""A PyTorch training with DistributedDataParallel, one process per GPU: learns the sum of ten numbers."""

import os
import socket

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(device):
    """Train a small network; each process sees its own share of the samples."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    x = torch.rand(2000, 10)
    dataset = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=50, sampler=sampler)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)

    for epoch in range(5):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)

    if rank == 0:
        torch.save(model.module.state_dict(), "model.pt")


def main():
    """Join the other processes, train with them, and leave."""
    gpus = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpus else "gloo")
    print(
        f"rank {dist.get_rank()} of {dist.get_world_size()} on {socket.gethostname()}, {device}", flush=True
    )
    train(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
