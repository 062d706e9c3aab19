"""A training with Hugging Face Accelerate: learns the sum of ten numbers."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    """Train with all processes that Accelerate finds."""
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    rank, world_size = accelerator.process_index, accelerator.num_processes
    print(f"rank {rank} of {world_size} on {accelerator.device}", flush=True)

    torch.manual_seed(0)
    x = torch.rand(2000, 10)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=50, shuffle=True)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for epoch in range(5):
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)

    accelerator.wait_for_everyone()
    accelerator.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
    accelerator.end_training()


if __name__ == "__main__":
    main()
