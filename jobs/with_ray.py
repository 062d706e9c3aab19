"""Four trials side by side with Ray, one GPU each: which learning rate learns the sum of ten numbers best?"""

import os
import tempfile

import ray
import torch
from torch import nn


@ray.remote
def trial(lr):
    """Train with one learning rate; its last loss."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    x = torch.rand(2000, 10, device=device)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in range(200):
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


gpus = torch.cuda.device_count()
ray.init(
    address="local",
    num_cpus=int(os.environ.get("SLURM_CPUS_PER_TASK", 1)),  # the job's share, not the whole node
    num_gpus=gpus,
    include_dashboard=False,
    _node_ip_address="127.0.0.1",  # nobody outside this node takes part
    _temp_dir=tempfile.mkdtemp(prefix="ray-"),  # others use Ray on this node, too
)
rates = [0.0003, 0.001, 0.003, 0.01]
waiting = [trial.options(num_gpus=1 if gpus else 0).remote(lr) for lr in rates]
for lr, loss in zip(rates, ray.get(waiting), strict=True):
    print(f"lr {lr}: loss {loss:.4f}", flush=True)
ray.shutdown()
