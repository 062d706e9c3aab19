"""Train in one process on the data that prepare.py has made."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
data = torch.load("data.pt", weights_only=True)
print(f"training on {len(data['x'])} samples on {device}", flush=True)
torch.manual_seed(0)
loader = DataLoader(TensorDataset(data["x"], data["y"]), batch_size=50, shuffle=True)
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
