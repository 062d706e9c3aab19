"""Classifies images."""

import torch
from images import Images, resnet
from torch.nn.functional import cross_entropy


class ImageNet:
    def model(self, cfg):
        return resnet(cfg.width, cfg.classes)

    def dataset(self, cfg, split):
        train = split == "train"
        return Images(cfg.samples if train else cfg.samples // 5, cfg.classes, cfg.size, train)

    def optimizer(self, model, cfg):
        matrices = [each for each in model.parameters() if each.dim() > 1]
        others = [each for each in model.parameters() if each.dim() < 2]
        groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.SGD(groups, lr=cfg.lr, momentum=0.9, weight_decay=cfg.weight_decay)

    def loss(self, model, batch):
        images, labels = batch
        return cross_entropy(model(images), labels, label_smoothing=0.1)

    def evaluate(self, model, batch):
        images, labels = batch
        scores = model(images)
        found = scores.topk(min(5, scores.shape[1]), 1).indices == labels[:, None]
        loss = cross_entropy(scores.float(), labels, reduction="sum")
        sums = {"top1": found[:, 0].sum(), "top5": found.sum(), "loss": loss}
        return {name: (value, len(labels)) for name, value in sums.items()}
