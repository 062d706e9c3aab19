"""DistributedDataParallel under torchrun: the same script on one GPU, on a node, and on several nodes."""

import os
import socket

import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from toy import device, network, samples

place = device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
print(f"rank {rank} of {world_size} on {socket.gethostname()}, {place}", flush=True)

model = DistributedDataParallel(network().to(place))
optimizer = optim.AdamW(model.parameters(), lr=0.003)
sampler = DistributedSampler(samples())
for epoch in range(5):
    sampler.set_epoch(epoch)
    for inputs, targets in DataLoader(samples(), batch_size=25, sampler=sampler):
        loss = nn.functional.mse_loss(model(inputs.to(place)), targets.to(place))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
