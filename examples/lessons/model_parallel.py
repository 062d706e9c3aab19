"""Model parallel: a network too large for one GPU has its halves on two, and the activations travel between them.

While one GPU computes, the other waits. Pipelines cut the batch into pieces so that both have work.
"""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader
from toy import network, samples

two = torch.cuda.device_count() >= 2
first, second = (torch.device("cuda:0"), torch.device("cuda:1")) if two else (torch.device("cpu"),) * 2


class Halves(nn.Module):
    """The first layer on one device, the rest on another."""

    def __init__(self, whole):
        super().__init__()
        self.bottom, self.top = whole[:2].to(first), whole[2:].to(second)

    def forward(self, batch):
        """Autograd takes the gradients back the same way."""
        return self.top(self.bottom(batch.to(first)).to(second))


model = Halves(network())
for name, parameter in model.named_parameters():
    print(f"{name} on {parameter.device}", flush=True)
optimizer = optim.AdamW(model.parameters(), lr=0.003)
for epoch in range(5):
    for inputs, targets in DataLoader(samples(), batch_size=50, shuffle=True):
        loss = nn.functional.mse_loss(model(inputs), targets.to(second))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
