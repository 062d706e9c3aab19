"""A classifier of noise, in the style of Accelerate's examples; it knows nothing of Slurm."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-2)
    args = parser.parse_args()
    accelerator = Accelerator()
    set_seed(7)
    features = torch.randn(256, 16)
    data = DataLoader(TensorDataset(features, (features.sum(1) > 0).long()), batch_size=16, shuffle=True)
    model = torch.nn.Linear(16, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for _ in range(args.epochs):
        for x, y in data:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    there = accelerator.gather(torch.tensor([accelerator.process_index]))
    print(
        f"rank {accelerator.process_index} of {len(there)}, {accelerator.mixed_precision}, {accelerator.distributed_type}"
    )


if __name__ == "__main__":
    main()
