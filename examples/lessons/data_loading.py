"""Loading data beside the training: worker processes, and page-locked memory from which a GPU copies by itself.

Each sample takes 2 ms to make, as decoding a small picture does. Without workers the training waits for each of them.
"""

import time

import torch
from torch.utils.data import DataLoader, Dataset
from toy import device, network


class Slow(Dataset):
    """Samples that take their time."""

    def __len__(self):
        """Return how many there are."""
        return 400

    def __getitem__(self, index):
        """Make one."""
        time.sleep(0.002)
        x = torch.rand(10, generator=torch.Generator().manual_seed(index))
        return x, x.sum(0, keepdim=True)


def epoch(workers):
    """Return the seconds of an epoch, the first batch left out, which waits for the workers to start."""
    gpu = place.type == "cuda"
    loader = DataLoader(Slow(), batch_size=20, num_workers=workers, pin_memory=gpu)
    began = None
    for inputs, targets in loader:
        began = began or time.perf_counter()
        # From page-locked memory this process need not wait for the copy: the GPU makes it when its turn comes.
        inputs, targets = inputs.to(place, non_blocking=gpu), targets.to(place, non_blocking=gpu)
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
    return time.perf_counter() - began


if __name__ == "__main__":  # workers may import this file
    place = device()
    model = network().to(place)
    alone = epoch(workers=0)
    print(f"no workers: {alone:.2f} s", flush=True)
    for workers in (1, 2):
        beside = epoch(workers)
        print(
            f"{workers} worker{'s' * (workers > 1)}: {beside:.2f} s, {alone / beside:.1f} times as fast",
            flush=True,
        )
