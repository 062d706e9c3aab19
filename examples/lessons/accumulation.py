"""Gradient accumulation: four small batches make one step, as one large batch would that does not fit.

Under DistributedDataParallel the first three backward passes stay local (``no_sync``): the gradients are averaged over
the processes once a step, not four times.
"""

import contextlib
import os

import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from toy import device, network, samples

ACCUMULATE = 4

place = device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
model = DistributedDataParallel(network().to(place))
optimizer = optim.AdamW(model.parameters(), lr=0.003)
sampler = DistributedSampler(samples(), shuffle=False)
batches = DataLoader(samples(), batch_size=25, sampler=sampler)
steps = 0
for _ in range(5):
    for number, (inputs, targets) in enumerate(batches, 1):
        due = number % ACCUMULATE == 0
        with contextlib.nullcontext() if due else model.no_sync():
            loss = nn.functional.mse_loss(model(inputs.to(place)), targets.to(place))
            (loss / ACCUMULATE).backward()
        if due:
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
if dist.get_rank() == 0:
    batch = 25 * ACCUMULATE * dist.get_world_size()
    print(f"{steps} steps of {batch} samples: loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
