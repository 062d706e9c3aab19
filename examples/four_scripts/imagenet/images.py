"""What both scripts share: made-up images, their augmentation, and a small ResNet."""

import torch
from torch import nn
from torch.nn.functional import pad


class Images(torch.utils.data.Dataset):
    """Noise with a coloured square, whose colour is the class; in its place an ImageFolder would do."""

    def __init__(self, count, classes, size, train):
        self.count, self.size, self.train = count, size, train
        self.first = 0 if train else 1_000_000
        self.colours = torch.rand(classes, 3, 1, 1, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        drawn = torch.Generator().manual_seed(self.first + index)
        label = int(torch.randint(len(self.colours), (), generator=drawn))
        image = torch.rand(3, self.size, self.size, generator=drawn)
        top, left = torch.randint(self.size // 2, (2,), generator=drawn).tolist()
        image[:, top : top + self.size // 2, left : left + self.size // 2] = self.colours[label]
        return (augmented(image) if self.train else image), label


def augmented(image):
    """A random part of the padded image, mirrored at random."""
    size, margin = image.shape[-1], 2
    top, left = torch.randint(2 * margin + 1, (2,)).tolist()
    image = pad(image, (margin,) * 4)[:, top : top + size, left : left + size]
    return image.flip(2) if torch.rand(()) < 0.5 else image


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet(width, classes):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        Block(width, width, 1),
        Block(width, 2 * width, 2),
        Block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, classes),
    )
