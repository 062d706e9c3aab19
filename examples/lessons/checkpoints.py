"""Checkpoints: all that a training needs to go on as if nothing had happened, written so that no half file remains.

One training runs through; another one stops half-way, and a third goes on from its checkpoint. `slurmgpu.training` does all
of this, the batches within an epoch and a GPU's random state included.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn, optim
from torch.utils.data import DataLoader
from toy import device, network, samples

place = device()


def train(file, until):
    """Train up to an epoch, from the checkpoint if there is one; return the last loss."""
    model = network().to(place)
    optimizer = optim.AdamW(model.parameters(), lr=0.003)
    epoch, loss = 0, None
    if file.exists():
        saved = torch.load(file, map_location=place, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])  # its averages: without them the next steps differ
        torch.set_rng_state(saved["random"].cpu())  # the order of the next epoch's samples
        epoch = saved["epoch"]
        print(f"going on behind epoch {epoch}", flush=True)
    while epoch < until:
        for inputs, targets in DataLoader(samples(), batch_size=50, shuffle=True):
            loss = nn.functional.mse_loss(model(inputs.to(place)), targets.to(place))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        epoch += 1
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        part = file.with_suffix(".part")
        torch.save({**state, "random": torch.get_rng_state()}, part)
        part.replace(file)  # at once: whoever is killed before it leaves the older file whole
    return loss.item()


with tempfile.TemporaryDirectory() as folder:
    whole = train(Path(folder, "whole.pt"), until=4)
    train(Path(folder, "parted.pt"), until=2)
    parted = train(Path(folder, "parted.pt"), until=4)
print(
    f"loss {whole:.6f} in one go, {parted:.6f} in two: {'equal' if whole == parted else 'DIFFERENT'}",
    flush=True,
)
