"""FCN (Long et al. 2015) on a ResNet whose last stages keep their pixels: the class of each pixel."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import nn
from torch.nn.functional import cross_entropy, interpolate

from ..settings import Config
from . import images, options, scenes
from .counting import forward_and_backward
from .resnet import ResNet

__all__ = ["Fcn", "Task"]

_AUXILIARY = 0.4  # the weight of the loss of the stage before the last (Zhao et al. 2017)


def _head(inputs: int, classes: int) -> nn.Sequential:
    middle = inputs // 4
    return nn.Sequential(
        nn.Conv2d(inputs, middle, 3, padding=1, bias=False),
        nn.BatchNorm2d(middle),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Conv2d(middle, classes, 1),
    )


class Fcn(nn.Module):
    """From images (N, 3, H, W) to scores (N, classes, H, W); in training also those of the stage before the last."""

    def __init__(self, depth: int, classes: int) -> None:
        super().__init__()
        self.body = ResNet(depth, 1, dilated=True)
        inputs = self.body.scores.in_features
        self.body.scores = nn.Identity()  # type: ignore[assignment]
        self.head, self.auxiliary = _head(inputs, classes), _head(inputs // 2, classes)

    def forward(self, x: torch.Tensor) -> Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Return a score for each class at each pixel."""
        *_, before, last = self.body.features(x)
        scores = self._as_large(self.head(last), x)
        return (scores, self._as_large(self.auxiliary(before), x)) if self.training else scores

    def _as_large(self, scores: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return interpolate(scores, size=x.shape[-2:], mode="bilinear", align_corners=False)


class Task:
    """The class of each pixel; those of class 255 do not count."""

    def __init__(self) -> None:
        self.normalized = images.Normalized()

    def model(self, cfg: Config) -> nn.Module:
        """Return an FCN of so many layers and classes."""
        chosen = options(cfg, "fcn")
        return Fcn(chosen.depth, chosen.classes)

    def dataset(self, cfg: Config, split: str) -> Optional[object]:
        """Images and masks, as bytes."""
        return scenes.dataset(options(cfg, "fcn"), split)

    def optimizer(self, model: nn.Module, cfg: Config) -> torch.optim.Optimizer:
        """SGD with momentum."""
        trained = [each for each in model.parameters() if each.requires_grad]
        return torch.optim.SGD(trained, lr=cfg.lr, momentum=0.9, weight_decay=cfg.weight_decay)

    def flops(self, cfg: Config) -> float:
        """Of an image, by the sizes of all layers but those of the stage before the last's own scores."""
        chosen = options(cfg, "fcn")
        with torch.device("meta"):
            network = Fcn(chosen.depth, chosen.classes)
        return forward_and_backward(network, 3, chosen.image, chosen.image)

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum over all pixels that count, and how many these are."""
        pictures, classes = batch
        scores, before = model(self.normalized(pictures))
        return _loss(scores, classes) + _AUXILIARY * _loss(before, classes), (classes != scenes.IGNORED).sum()

    def evaluate(self, model: nn.Module, batch: list[torch.Tensor]) -> dict[str, Any]:
        """Loss and share of right pixels; for each image and class where found and true agree, and where either is."""
        pictures, classes = batch
        scores = model(self.normalized(pictures))
        counted = classes != scenes.IGNORED
        found = scores.argmax(1)
        number, right = counted.sum(), (found == classes) & counted
        kinds = scores.shape[1]
        both = _counts(found, right, kinds)
        either = _counts(found, counted, kinds) + _counts(classes, counted, kinds) - both
        return {
            "loss": (_loss(scores, classes), number),
            "accuracy": (right.sum(), number),
            "both": both,
            "either": either,
        }

    def finish(self, outputs: dict[str, torch.Tensor]) -> dict[str, float]:
        """Return the mean over the classes of intersection over union, of all images together."""
        both, either = outputs["both"].sum(0), outputs["either"].sum(0)
        return {"mean_iou": float((both[either > 0] / either[either > 0]).mean())}


def _loss(scores: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return cross_entropy(scores, classes.long(), ignore_index=scenes.IGNORED, reduction="sum")


def _counts(classes: torch.Tensor, counted: torch.Tensor, kinds: int) -> torch.Tensor:
    """Return how many pixels each class has in each image, (N, kinds)."""
    return torch.stack([((classes == kind) & counted).flatten(1).sum(1) for kind in range(kinds)], 1)
