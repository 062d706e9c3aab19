"""The same training as a loop of one's own."""

import os

import torch
from task import network, numbers, product

from slurmgpu.training import Run

torch.manual_seed(0)
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 8, 0.5)
run = Run(save_every=5)
run.state(model=model, optimizer=optimizer, scheduler=scheduler)
for batch in run.batches(numbers(), batch_size=8, epochs=2):
    product(model, batch).backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    if run.step == int(os.environ.get("END_AT", "-1")):
        os._exit(9)
    if run.should_stop():
        raise SystemExit(75)
run.save()
