"""One trial of a grid search: the index of the array task chooses learning rate and width."""

import itertools
import json
import os
from pathlib import Path

import torch
from torch import nn

GRID = list(itertools.product([0.001, 0.003, 0.01], [16, 32, 64]))

trial = int(os.environ["SLURM_ARRAY_TASK_ID"])
lr, width = GRID[trial]
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.rand(2000, 10, device=device)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=lr)

for _ in range(200):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

result = {"trial": trial, "lr": lr, "width": width, "loss": loss.item()}
print(result, flush=True)
Path("trials").mkdir(exist_ok=True)
Path(f"trials/{trial}.json").write_text(json.dumps(result) + "\n")
