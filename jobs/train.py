"""A plain PyTorch training in one process: learns the sum of ten numbers."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
print(f"training on {device}", flush=True)
torch.manual_seed(0)
x = torch.rand(2000, 10)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=50, shuffle=True)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)

for epoch in range(5):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)

torch.save(model.state_dict(), "model.pt")
