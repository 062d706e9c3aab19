"""A training with DeepSpeed, ZeRO stage 1: learns the sum of ten numbers."""

import deepspeed
import torch
from torch import nn
from torch.utils.data import TensorDataset

CONFIG = {
    "train_micro_batch_size_per_gpu": 50,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
}


def main():
    """Train with all processes that DeepSpeed finds."""
    deepspeed.init_distributed()
    torch.manual_seed(0)
    x = torch.rand(2000, 10)
    dataset = TensorDataset(x, x.sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    engine, _, loader, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), training_data=dataset, config=CONFIG
    )
    print(f"rank {engine.global_rank} of {engine.world_size} on {engine.device}", flush=True)

    for epoch in range(5):
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(engine(inputs.to(engine.device)), targets.to(engine.device))
            engine.backward(loss)
            engine.step()
        if engine.global_rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)

    engine.save_checkpoint("checkpoints")
    engine.destroy()


if __name__ == "__main__":
    main()
