"""A regression of noise on four workers, in the style of Ray Train's examples."""

import os

import ray
import torch
from ray import train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model


def loop(config):
    model = prepare_model(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for _ in range(8):
        loss = model(torch.randn(4, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    one = torch.ones(1)
    torch.distributed.all_reduce(one)
    context = train.get_context()
    print(f"rank {context.get_world_rank()} of {int(one)}", flush=True)


if __name__ == "__main__":
    ray.init()
    print(f"{len(ray.nodes())} nodes", flush=True)
    print(f"{os.environ['RAY_AUTH_MODE']} mode, {len(os.environ['RAY_AUTH_TOKEN'])} letters")
    TorchTrainer(loop, train_loop_config={"lr": 0.01}, scaling_config=ScalingConfig(num_workers=4)).fit()
