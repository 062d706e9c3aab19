"""DataParallel: one process trains on all GPUs of a node, which it hands a piece of each batch.

With two GPUs each forward pass sees half of the batch; without GPUs the module gets all of it. DataParallel copies the
model to the GPUs in every step, which is why DistributedDataParallel is faster on a single node, too.
"""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader
from toy import device, network, samples


class Telling(nn.Module):
    """The network, which says in the first step what it is given."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, batch):
        """Say the size of this piece, and where it is."""
        if step == 0:
            print(f"  inside: {tuple(batch.shape)} on {batch.device}", flush=True)
        return self.inner(batch)


place = device()
model = nn.DataParallel(Telling().to(place))
optimizer = optim.AdamW(model.parameters(), lr=0.003)
step = 0
print(f"GPUs: {torch.cuda.device_count()}", flush=True)
for epoch in range(5):
    total = 0.0
    for inputs, targets in DataLoader(samples(), batch_size=50, shuffle=True):
        outputs = model(inputs.to(place))
        if step == 0:
            print(f"outside: {tuple(inputs.shape)} in, {tuple(outputs.shape)} out", flush=True)
        loss = nn.functional.mse_loss(outputs, targets.to(place))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(inputs)
        step += 1
    print(f"epoch {epoch}: loss {total / 2000:.4f} on {place}", flush=True)
torch.save(model.module.state_dict(), "data_parallel.pt")  # of .module: it loads without DataParallel, too
