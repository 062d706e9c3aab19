"""A training loop of one's own that can be stopped at any time and goes on: learns the sum of ten numbers."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from slurmgpu.training import Run

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.rand(2000, 10)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
run = Run(save_every=100)  # at most 100 steps are lost when the node dies
run.state(model=model, optimizer=optimizer)  # goes on from the newest checkpoint
print(f"from step {run.step} on {device}", flush=True)

for inputs, targets in run.batches(dataset, batch_size=50, epochs=5):
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if run.should_stop():  # the time limit is near, or Slurm wants the node back
        raise SystemExit(75)  # "start me again"

print(f"done at step {run.step}", flush=True)
run.save()
