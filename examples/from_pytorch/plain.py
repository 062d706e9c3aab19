"""Tells three spirals apart."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def spirals(points, seed):
    drawn = torch.Generator().manual_seed(seed)
    arm = torch.randint(3, (points,), generator=drawn)
    radius = torch.rand(points, generator=drawn)
    angle = 5 * radius + 2 * math.pi / 3 * arm
    angle += 0.2 * torch.randn(points, generator=drawn)
    place = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    return TensorDataset(place, arm)


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
train = DataLoader(spirals(3000, seed=1), batch_size=50, shuffle=True)
test = DataLoader(spirals(1000, seed=2), batch_size=50)
layers = [nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)]
model = nn.Sequential(*layers).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

for epoch in range(10):
    model.train()
    for place, arm in train:
        scores = model(place.to(device))
        loss = nn.functional.cross_entropy(scores, arm.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    right = 0
    with torch.no_grad():
        for place, arm in test:
            scores = model(place.to(device))
            right += (scores.argmax(1) == arm.to(device)).sum().item()
    print(f"epoch {epoch + 1}: {right / len(test.dataset):.1%} of the test points")
    torch.save(model.state_dict(), "model.pt")
