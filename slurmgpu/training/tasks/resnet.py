"""ResNet (He et al. 2015): 18 to 101 layers for ImageNet; 20, 56 and 110 for CIFAR's images of 32 x 32."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad, relu

from .classification import Classification

__all__ = ["LAYERS", "ResNet", "Task"]

LAYERS = {
    18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3),
    20: (3, 3, 3), 56: (9, 9, 9), 110: (18, 18, 18),
}  # fmt: skip


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1, dilation: int = 1) -> nn.Conv2d:
    padding = dilation * (size // 2)
    return nn.Conv2d(inputs, outputs, size, stride, padding, dilation, bias=False)


class Shifted(nn.Module):
    """A shortcut without parameters, as CIFAR's networks have it: every second pixel, and zeros for new channels."""

    def __init__(self, more: int, stride: int) -> None:
        super().__init__()
        self.more, self.stride = more, stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the same with fewer pixels and more channels."""
        return pad(
            x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more // 2, self.more - self.more // 2)
        )


class Block(nn.Module):
    """Layers whose outcome is added to what came in; ``wide`` ones have three, of which one is 3 x 3."""

    def __init__(
        self, inputs: int, width: int, stride: int, wide: bool, shifted: bool, dilation: int
    ) -> None:
        super().__init__()
        outputs = 4 * width if wide else width
        if wide:  # the stride is in the middle, as in the later implementations (v1.5)
            parts = [
                _convolution(inputs, width, 1),
                _convolution(width, width, 3, stride, dilation),
                _convolution(width, outputs, 1),
            ]
        else:
            parts = [
                _convolution(inputs, width, 3, stride, dilation),
                _convolution(width, width, 3, 1, dilation),
            ]
        self.convolutions = nn.ModuleList(parts)
        self.norms = nn.ModuleList(nn.BatchNorm2d(part.out_channels) for part in parts)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs or stride > 1:
            joined = nn.Sequential(_convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
            self.shortcut = Shifted(outputs - inputs, stride) if shifted else joined

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's outcome, added to what came in."""
        y = x
        for number, (convolution, norm) in enumerate(zip(self.convolutions, self.norms)):
            y = norm(convolution(relu(y) if number else y))
        return relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """From images (N, 3, H, W) to scores (N, classes); ``dilated``: the last two stages keep their pixels."""

    def __init__(self, depth: int, classes: int, *, dilated: bool = False) -> None:
        super().__init__()
        self.small = len(LAYERS[depth]) == 3
        width, stem = (16, (3, 1)) if self.small else (64, (7, 2))
        self.stem = _convolution(3, width, *stem)
        self.norm = nn.BatchNorm2d(width)
        self.pool = nn.Identity() if self.small else nn.MaxPool2d(3, 2, 1)
        self.stages = nn.ModuleList()
        inputs, dilation, wide = width, 1, depth in (50, 101)
        for stage, count in enumerate(LAYERS[depth]):
            stride = 1 if stage == 0 else 2
            before = dilation
            if dilated and stage > 1:
                stride, dilation = 1, 2 * dilation
            blocks = []
            for number in range(count):
                first = number == 0
                spread = before if first else dilation
                blocks.append(Block(inputs, width, stride if first else 1, wide, self.small, spread))
                inputs = 4 * width if wide else width
            self.stages.append(nn.Sequential(*blocks))
            width *= 2
        self.scores = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return what each stage finds."""
        x = self.pool(relu(self.norm(self.stem(x))))
        found = []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        return found

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a score for each class."""
        return self.scores(self.features(x)[-1].mean((2, 3)))  # type: ignore[no-any-return]


class Task(Classification):
    """The class of each image, by a ResNet."""

    name = "resnet"

    def network(self, chosen: Any, classes: int) -> nn.Module:
        """Return a ResNet of so many layers."""
        return ResNet(chosen.depth, classes)

    def usual(self, chosen: Any) -> tuple[int, int, str]:
        """CIFAR's for the small ones, and else ImageNet's."""
        return (32, 10, "padded") if len(LAYERS[chosen.depth]) == 3 else (224, 1000, "resized")

    def blocks(self, model: ResNet) -> list[nn.Module]:
        """Return what ``activation_checkpointing`` computes again."""
        return [block for stage in model.stages for block in stage]  # type: ignore[attr-defined]
