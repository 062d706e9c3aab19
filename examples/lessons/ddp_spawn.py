"""DistributedDataParallel, its processes started by the script itself: one node, and a process for each GPU.

The script reads how many GPUs Slurm gave it, starts as many processes, and names the meeting point. `torchrun` (the next
lesson) does all three, and works on several nodes, too.
"""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from toy import device, network, samples


def train(rank, world_size):
    """What each process does."""
    place = device(rank)
    backend = "nccl" if place.type == "cuda" else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=world_size)
    model = DistributedDataParallel(network().to(place))
    optimizer = optim.AdamW(model.parameters(), lr=0.003)
    sampler = DistributedSampler(samples())
    for epoch in range(5):
        sampler.set_epoch(epoch)  # else every epoch has the same order
        for inputs, targets in DataLoader(samples(), batch_size=25, sampler=sampler):
            loss = nn.functional.mse_loss(model(inputs.to(place)), targets.to(place))
            optimizer.zero_grad()
            loss.backward()  # averages the gradients over all processes
            optimizer.step()
        dist.all_reduce(loss := loss.detach())
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item() / world_size:.4f}, processes {world_size}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    gpus = torch.cuda.device_count() or int(os.environ.get("SLURM_GPUS_ON_NODE", 2))
    os.environ["MASTER_ADDR"] = "localhost"
    # Two jobs on one node must not meet: a port of the job's own.
    os.environ["MASTER_PORT"] = str(20000 + int(os.environ.get("SLURM_JOB_ID", os.getpid())) % 20000)
    mp.spawn(train, (gpus,), nprocs=gpus)
