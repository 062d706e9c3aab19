"""Automatic mixed precision: float16 with a gradient scaler on a GPU, bfloat16 without one on the CPU.

float16 loses gradients below 6e-8: the scaler multiplies the loss, so that they survive, and leaves steps out whose
gradients are not finite. bfloat16 has float32's range and needs no scaler; GPUs have it from Ampere on.
"""

import time

import torch
from torch import nn, optim
from torch.utils.data import DataLoader
from toy import device, network, samples

place = device()
kind = torch.float16 if place.type == "cuda" else torch.bfloat16


def train(mixed):
    """Train anew; the last loss, and the seconds that it took."""
    model = network(width=512).to(place)
    optimizer = optim.AdamW(model.parameters(), lr=0.003)
    scaler = torch.amp.GradScaler(place.type, enabled=mixed and kind is torch.float16)
    began = time.perf_counter()
    for _ in range(5):
        for inputs, targets in DataLoader(samples(), batch_size=100):
            with torch.autocast(place.type, dtype=kind, enabled=mixed):
                loss = nn.functional.mse_loss(model(inputs.to(place)), targets.to(place))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return loss.item(), time.perf_counter() - began


train(mixed=False)  # the first run pays for what is set up once
for mixed in (False, True):
    loss, seconds = train(mixed)
    print(f"{kind if mixed else torch.float32}: loss {loss:.4f} in {seconds:.2f} s on {place}", flush=True)
