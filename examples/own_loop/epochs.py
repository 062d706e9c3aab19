"""The same training with a schedule, a validation after each epoch, and the best model kept."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from slurmgpu.training import Run

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.rand(2500, 10)
dataset = TensorDataset(x[:2000], x[:2000].sum(1, keepdim=True))
held_out = x[2000:].to(device)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.05), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)
run = Run(save_every=100)
run.state(model=model, optimizer=optimizer, scheduler=scheduler)

for epoch in run.epochs(20):
    for inputs, targets in run.batches(dataset, batch_size=50):
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if run.should_stop():
            raise SystemExit(75)

    scheduler.step()
    model.eval()
    with torch.no_grad():
        error = nn.functional.mse_loss(model(held_out), held_out.sum(1, keepdim=True)).item()
    model.train()
    if run.save_best(error):
        print(f"epoch {epoch}: {error:.5f}, the best so far")

run.save()
