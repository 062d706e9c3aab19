"""Foretells properties of molecules."""

from molecules import Batch, GraphNet, Molecules, loss_sum, roc_auc


class Properties:
    def model(self, cfg):
        return GraphNet(cfg.layers, cfg.width)

    def dataset(self, cfg, split):
        return Molecules(cfg.samples, True) if split == "train" else Molecules(cfg.samples // 5, False)

    def collate(self, samples):
        return Batch(samples)

    def loss(self, model, batch):
        return loss_sum(model(batch), batch.targets)

    def evaluate(self, model, batch):
        scores = model(batch).float()
        return {"loss": loss_sum(scores, batch.targets), "scores": scores, "targets": batch.targets}

    def finish(self, outputs):
        return {"roc_auc": roc_auc(outputs["scores"], outputs["targets"])}
