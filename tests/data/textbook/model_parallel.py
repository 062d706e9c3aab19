"""A model whose halves are on two GPUs, driven by one process."""

import torch
from torch import nn

FIRST, SECOND = ("cuda:0", "cuda:1") if torch.cuda.device_count() > 1 else ("cpu", "cpu")


class Split(nn.Module):
    def __init__(self):
        super().__init__()
        self.bottom = nn.Linear(10, 10).to(FIRST)
        self.top = nn.Linear(10, 5).to(SECOND)

    def forward(self, batch):
        return self.top(torch.relu(self.bottom(batch.to(FIRST))).to(SECOND))


model = Split()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(3):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(torch.randn(20, 10)), torch.randn(20, 5).to(SECOND)).backward()
    optimizer.step()
print("one process trained both halves")
