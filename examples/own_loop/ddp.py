"""The same training on any number of GPUs: one process on each, with DistributedDataParallel."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from slurmgpu.training import Run

device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
torch.manual_seed(0)
x = torch.rand(2000, 10)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.05), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
torch.manual_seed(dist.get_rank())
run = Run(save_every=100)
run.state(model=model, optimizer=optimizer)
parallel = DistributedDataParallel(model)

for inputs, targets in run.batches(dataset, batch_size=40, epochs=20):
    loss = nn.functional.mse_loss(parallel(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if run.should_stop():
        raise SystemExit(75)

run.save()
if dist.get_rank() == 0:
    print(f"done: {run.step} steps")
dist.destroy_process_group()
