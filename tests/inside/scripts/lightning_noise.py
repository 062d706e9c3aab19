"""A classifier of noise, in the style of Lightning's examples."""

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class Noise(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(16, 2)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.model(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def on_train_end(self):
        there = self.all_gather(torch.tensor(self.global_rank))
        print(f"rank {self.global_rank} of {there.numel()}", flush=True)


if __name__ == "__main__":
    features = torch.randn(256, 16)
    data = DataLoader(TensorDataset(features, (features.sum(1) > 0).long()), batch_size=16)
    trainer = L.Trainer(
        max_epochs=1,
        num_nodes=2,
        devices=2,
        accelerator="cpu",
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Noise(), data)
