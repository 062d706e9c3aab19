"""DistributedDataParallel in processes that torchrun starts."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

local_rank = int(os.environ["LOCAL_RANK"])
gpu = torch.cuda.is_available()
dist.init_process_group("nccl")
device = torch.device("cuda", local_rank) if gpu else torch.device("cpu")
model = DistributedDataParallel(nn.Linear(10, 5).to(device), device_ids=[local_rank] if gpu else None)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(20, 10, device=device)).sum().backward()
    optimizer.step()
print(f"rank {dist.get_rank()} of {dist.get_world_size()} trained", flush=True)
dist.destroy_process_group()
