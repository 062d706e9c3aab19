"""A regression of noise with a worker for each GPU, in the style of Ray Train's examples."""

import os

import ray
import torch
from ray import train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model


def loop(config):
    model = prepare_model(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    loader = torch.utils.data.DataLoader(torch.randn(64, 16), batch_size=4)
    for batch in prepare_data_loader(loader):
        loss = model(batch).pow(2).mean()
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
    print(f"{os.environ.get('RAY_AUTH_MODE')} mode, {len(os.environ.get('RAY_AUTH_TOKEN', ''))} letters")
    workers = ScalingConfig(num_workers=int(ray.cluster_resources()["GPU"]), use_gpu=True)
    TorchTrainer(loop, train_loop_config={"lr": 0.01}, scaling_config=workers).fit()
