"""DataParallel shows its work: one process cuts each batch into a piece for each GPU.

With two GPUs each forward pass sees half of the batch; without GPUs the module gets all of it. DataParallel copies the
model to the GPUs in every step, which is why DistributedDataParallel is faster on a single node, too.
"""

import torch
from torch import nn
from toy import device


class Dummy(nn.Module):
    """One layer that says what it is given."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, batch):
        """Say the size of this piece, and where it is."""
        print(f"  inside: {tuple(batch.shape)} on {batch.device}", flush=True)
        return self.layer(batch)


place = device()
model = nn.DataParallel(Dummy().to(place))
print(f"GPUs: {torch.cuda.device_count()}", flush=True)
for batch in torch.utils.data.DataLoader(torch.rand(100, 5), batch_size=30):
    output = model(batch.to(place))
    print(f"outside: {tuple(batch.shape)} in, {tuple(output.shape)} out", flush=True)
