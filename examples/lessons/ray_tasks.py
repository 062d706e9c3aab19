"""Ray: many trainings, each a task of its own, on whatever GPUs of the nodes are free."""

import socket

import ray
import torch
from torch import nn, optim
from torch.utils.data import DataLoader
from toy import device, network, samples


def train(rate):
    """One training; in a task, CUDA_VISIBLE_DEVICES is the GPU that Ray has given it."""
    torch.set_num_threads(1)
    place = device()
    model = network().to(place)
    optimizer = optim.AdamW(model.parameters(), lr=rate)
    for _ in range(5):
        for inputs, targets in DataLoader(samples(), batch_size=25):
            loss = nn.functional.mse_loss(model(inputs.to(place)), targets.to(place))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return rate, loss.item(), socket.gethostname()


ray.init()  # the cluster that the job has started
gpus = ray.cluster_resources().get("GPU", 0)
print(f"{len(ray.nodes())} nodes, {gpus:.0f} GPUs", flush=True)
task = ray.remote(num_gpus=1 if gpus else 0)(train)
waiting = [task.remote(rate) for rate in (0.0003, 0.001, 0.003, 0.01)]
while waiting:
    (done,), waiting = ray.wait(waiting)
    rate, loss, host = ray.get(done)
    print(f"rate {rate}: loss {loss:.4f} on {host}", flush=True)
