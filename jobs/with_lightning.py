"""A training with Lightning: learns the sum of ten numbers."""

import os

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Sum(lightning.LightningModule):
    """A small network from ten numbers to one."""

    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))

    def on_train_start(self):
        """Say who takes part."""
        print(f"rank {self.global_rank} of {self.trainer.world_size} on {self.device}", flush=True)

    def training_step(self, batch, batch_idx):
        """The loss of one batch."""
        inputs, targets = batch
        return nn.functional.mse_loss(self.model(inputs), targets)

    def configure_optimizers(self):
        """The optimizer of all parameters."""
        return torch.optim.AdamW(self.parameters(), lr=0.003)


def main():
    """Train on all GPUs of the job."""
    lightning.seed_everything(0)
    x = torch.rand(2000, 10)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=50, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=5,
        # One task per GPU: Slurm says how many there are, and Lightning checks it.
        devices=int(os.environ.get("SLURM_NTASKS_PER_NODE", 1)),
        num_nodes=int(os.environ.get("SLURM_NNODES", 1)),
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(Sum(), loader)


if __name__ == "__main__":
    main()
