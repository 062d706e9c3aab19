"""Memory: what a training keeps, part by part, and how recomputing activations trades time for it."""

import torch
from torch import nn, optim
from torch.utils.checkpoint import checkpoint
from toy import device

place = device()
torch.manual_seed(0)
blocks = nn.ModuleList(
    nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(8)
).to(place)
optimizer = optim.AdamW(blocks.parameters(), lr=1e-3)


def mib(tensors):
    """Return the size of tensors in MiB."""
    return sum(one.numel() * one.element_size() for one in tensors) / 2**20


def step(recompute):
    """Do one step; return the MiB that the forward pass keeps for the backward pass, parameters left out."""
    own = {one.untyped_storage().data_ptr() for one in blocks.parameters()}
    kept = {}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    x = torch.rand(1024, 256, device=place)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
    held = mib(kept.values())
    x.mean().backward()
    optimizer.step()
    return held


plain = step(recompute=False)
print(f"parameters {mib(blocks.parameters()):.1f} MiB")
print(f"gradients {mib(one.grad for one in blocks.parameters()):.1f} MiB: as much again")
averages = [value for state in optimizer.state.values() for value in state.values() if value.dim()]
print(f"AdamW's two averages {mib(averages):.1f} MiB: twice as much")
print(f"activations of 1,024 samples {plain:.1f} MiB: these grow with the batch")
optimizer.zero_grad()
print(f"activations with recomputing {step(recompute=True):.1f} MiB, for one more forward pass", flush=True)
if place.type == "cuda":
    print(f"the most at any moment {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB", flush=True)
