"""Horovod: the processes of an MPI program, each with a GPU, and an optimizer that averages the gradients."""

import horovod.torch as hvd
from torch import nn, optim
from torch.utils.data import DataLoader, DistributedSampler
from toy import device, network, samples

hvd.init()
place = device(hvd.local_rank())
print(f"rank {hvd.rank()} of {hvd.size()}, {place}", flush=True)

model = network().to(place)
optimizer = optim.AdamW(model.parameters(), lr=0.003)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
sampler = DistributedSampler(samples(), num_replicas=hvd.size(), rank=hvd.rank())
for epoch in range(5):
    sampler.set_epoch(epoch)
    for inputs, targets in DataLoader(samples(), batch_size=25, sampler=sampler):
        loss = nn.functional.mse_loss(model(inputs.to(place)), targets.to(place))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if hvd.rank() == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
