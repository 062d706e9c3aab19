"""Evaluation: what `eval()` and `no_grad()` each do, and why an average of averages is wrong."""

import torch
from torch import nn
from torch.utils.data import DataLoader
from toy import device, samples

place = device()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 1)).to(place)
batch = samples().tensors[0][:50].to(place)

model.train()
print(f"train(): dropout is on, twice the same batch differs: {not torch.equal(model(batch), model(batch))}")
model.eval()
print(f"eval(): dropout is off, twice the same batch is equal: {torch.equal(model(batch), model(batch))}")
print(f"eval() alone still records for a backward pass: {model(batch).requires_grad}")
with torch.no_grad():
    print(f"under no_grad() it records nothing: {not model(batch).requires_grad}")

# 2,000 samples in batches of 300: the last one has 200, and counts as much as the others in a mean of means.
total, means, count = 0.0, [], 0
with torch.no_grad():
    for inputs, targets in DataLoader(samples(), batch_size=300):
        loss = nn.functional.mse_loss(model(inputs.to(place)), targets.to(place))
        means.append(loss.item())
        total += loss.item() * len(inputs)
        count += len(inputs)
print(f"mean of the batches' means {sum(means) / len(means):.5f}, of all samples {total / count:.5f}")
model.train()  # or the next epoch trains without dropout
print("back to train()", flush=True)
