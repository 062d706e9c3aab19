"""A plain PyTorch training: learns the sum of ten numbers."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from slurmgpu.training import Run

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.rand(2000, 10)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.05), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
run = Run(save_every=100)
run.state(model=model, optimizer=optimizer)

for inputs, targets in run.batches(dataset, batch_size=50, epochs=20):
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if run.should_stop():
        raise SystemExit(75)

run.save()
