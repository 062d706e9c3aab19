"""DistributedDataParallel where not every parameter takes part in every step.

A head that a step does not use gets no gradient, and the others wait for it: DDP ends with an error in the next step. With
``find_unused_parameters=True`` it looks after each forward pass which parameters take part, which costs time in every step.
"""

import os

import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from toy import device, network, samples


class TwoHeads(nn.Module):
    """A trunk with two heads, of which a step uses one."""

    def __init__(self):
        super().__init__()
        self.trunk = network()[:2]
        self.heads = nn.ModuleList([nn.Linear(64, 1), nn.Linear(64, 1)])

    def forward(self, batch, head):
        """Through one head alone."""
        return self.heads[head](self.trunk(batch))


def train(find):
    """A few steps, the heads in turn; the last loss."""
    model = DistributedDataParallel(TwoHeads().to(place), find_unused_parameters=find)
    optimizer = optim.AdamW(model.parameters(), lr=0.003)
    batches = DataLoader(samples(), batch_size=25, sampler=DistributedSampler(samples()))
    for step, (inputs, targets) in enumerate(batches):
        loss = nn.functional.mse_loss(model(inputs.to(place), step % 2), targets.to(place))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


place = device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
try:
    train(find=False)
except RuntimeError as error:
    said = str(error).partition(". ")[0]
    print(f"rank {dist.get_rank()}, without find_unused_parameters: {said}", flush=True)
print(f"rank {dist.get_rank()}, with it: loss {train(find=True):.4f}", flush=True)
dist.destroy_process_group()
