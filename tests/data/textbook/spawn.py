"""DistributedDataParallel, a process for each GPU started by mp.spawn; where they meet comes from the environment."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def train(rank, world_size, epochs):
    dist.init_process_group("nccl", init_method="env://", rank=rank, world_size=world_size)
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank) if gpu else torch.device("cpu")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 20), torch.randn(64, 1))
    sampler = DistributedSampler(data, num_replicas=world_size, rank=rank)
    model = DistributedDataParallel(nn.Linear(20, 1).to(device), device_ids=[rank] if gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in DataLoader(data, batch_size=8, sampler=sampler):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
    threads = os.environ.get("OMP_NUM_THREADS")
    print(f"rank {rank} of {world_size} trained {epochs} epochs, {threads} threads", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    world_size = torch.cuda.device_count()
    mp.spawn(train, args=(world_size, 2), nprocs=world_size, join=True)
