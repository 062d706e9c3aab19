"""A plain PyTorch training: learns the sum of ten numbers."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.rand(2000, 10)
dataset = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.05), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)

for _ in range(20):
    for inputs, targets in DataLoader(dataset, batch_size=50, shuffle=True):
        loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

print(f"loss {loss.item():.4f}")
