"""Monitoring: how fast it is, what it waits for, and lines that are in the log when one looks.

`slurmgpu logs -f JOB` shows such lines as they come, and `slurmgpu report JOB` what the GPUs did. On a GPU steps are queued: the
share is then the most that it can have waited, since it may still work while this process asks for data.
"""

import time

import torch
from torch import nn, optim
from torch.utils.data import DataLoader
from toy import device, network, samples

place = device()
model = network().to(place)
optimizer = optim.AdamW(model.parameters(), lr=0.003)
steps, waited, began = 0, 0.0, time.perf_counter()
for epoch in range(3):
    total, asked = torch.zeros((), device=place), time.perf_counter()
    for inputs, targets in DataLoader(samples(), batch_size=50, shuffle=True):
        waited += time.perf_counter() - asked  # for data, which no GPU speeds up
        loss = nn.functional.mse_loss(model(inputs.to(place)), targets.to(place))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(inputs)  # .item() here would wait for the GPU in every step
        steps, asked = steps + 1, time.perf_counter()
    mean = total.item() / 2000  # waits for the GPU, so that the clock below is right
    taken = time.perf_counter() - began
    rate, share = steps * 50 / taken, 100 * waited / taken
    # flush: into a file Python writes some KiB at a time, and a log looks still for minutes.
    print(
        f"epoch {epoch} loss {mean:.4f} {rate:.0f} samples/s, {share:.0f} % of it waiting for data",
        flush=True,
    )
