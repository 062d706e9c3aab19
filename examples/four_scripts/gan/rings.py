"""What both scripts share: made-up images of rings, a generator, a discriminator, and a picture of images."""

import torch
from torch import nn

SIZE, NOISE = 16, 16


class Rings(torch.utils.data.Dataset):
    """Images (1, 16, 16) in -1 to 1 with a bright ring each, somewhere and of some radius."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        drawn = torch.Generator().manual_seed(index)
        x, y, radius = torch.rand(3, generator=drawn).tolist()
        place = torch.arange(SIZE) - SIZE / 2 + 0.5
        distance = ((place - 4 * x + 2) ** 2 + (place[:, None] - 4 * y + 2) ** 2).sqrt()
        return (2 * torch.exp(-((distance - 3 - 2 * radius) ** 2)) - 1)[None]


def generator(width):
    return nn.Sequential(
        nn.Unflatten(1, (NOISE, 1, 1)),
        nn.ConvTranspose2d(NOISE, 2 * width, 4),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(width, 1, 4, 2, 1),
        nn.Tanh(),
    )


def discriminator(width):
    return nn.Sequential(
        nn.Conv2d(1, width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 1, 4),
        nn.Flatten(0),
    )


def write_picture(path, images):
    """Writes images side by side as a .pgm, which most viewers open."""
    row = torch.cat(list(images[:, 0]), 1)
    pixels = ((row + 1) * 127.5).clamp(0, 255).byte()
    head = f"P5 {row.shape[1]} {row.shape[0]} 255\n".encode()
    path.write_bytes(head + bytes(pixels.flatten().tolist()))
