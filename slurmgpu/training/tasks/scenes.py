"""Images with the class of each pixel: ``images`` beside ``masks``, or made up; uint8 (3, H, W) and (H, W)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import torch
from torch.utils.data import Dataset

from ..errors import SettingsError, TrainingError
from . import images

__all__ = ["IGNORED", "dataset"]

IGNORED = 255
"""The class of pixels that do not count."""

_CELLS = 4  # of a made-up image, in each direction; each has a class


class Folder(Dataset):  # type: ignore[type-arg]
    """``images/NAME.jpg`` with ``masks/NAME.png``, whose values are the numbers of the classes."""

    def __init__(self, folder: Path, classes: int, size: int, varied: bool) -> None:
        self.classes, self.size, self.varied = classes, size, varied
        found = sorted(path for path in (folder / "images").glob("*") if path.suffix.lower() in images.KINDS)
        self.files = [(path, folder / "masks" / f"{path.stem}.png") for path in found]
        if not found:
            raise TrainingError(
                f"config.data: {folder / 'images'} has no images ({', '.join(sorted(images.KINDS))})"
            )
        missing = [mask for _, mask in self.files if not mask.is_file()]
        if missing:
            raise TrainingError(
                f"config.data: {missing[0]} is missing ({len(missing)} such masks): each image needs one, with the number "
                "of a class for each pixel"
            )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        path, place = self.files[index]
        image = images.opened(path, str(path))
        mask = _mask(place, image.size)
        box = self._box(*image.size)
        shape = (self.size, self.size)
        picture = images.pixels(image.resize(shape, 2, box=box))  # bilinear
        classes = images.pixels(mask.resize(shape, 0, box=box))  # the nearest: classes have no means
        largest = int(classes.where(classes != IGNORED, 0).max())
        if largest >= self.classes:
            raise SettingsError(
                f"config.classes is {self.classes}, and {place} has a class number {largest}; set config.classes: "
                f"{largest + 1} or more"
            )
        if self.varied and images.uniform(0, 1) < 0.5:
            return picture.flip(2), classes.flip(1)
        return picture, classes

    def _box(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Return a square of half to all of the shorter side, anywhere; for the test the one in the middle."""
        side = min(width, height) * (images.uniform(0.5, 1) if self.varied else 1.0)
        across, down = (images.uniform(0, 1), images.uniform(0, 1)) if self.varied else (0.5, 0.5)
        left, top = across * (width - side), down * (height - side)
        return left, top, left + side, top + side


def _mask(place: Path, size: tuple[int, int]) -> Any:
    try:
        with images.pillow().open(place) as mask:
            mask.load()
    except OSError as error:
        raise TrainingError(f"config.data: {place} is no image that can be read: {error}") from error
    if mask.mode not in ("L", "P") or mask.size != size:
        raise TrainingError(
            f"config.data: {place} is {mask.size[0]} x {mask.size[1]}, mode {mask.mode}; it must be as large as its "
            f"image, {size[0]} x {size[1]}, and have one number for each pixel (mode L or P)"
        )
    return mask


class Synthetic(Dataset):  # type: ignore[type-arg]
    """Cells of a colour for each class, under noise; the same for a number in each epoch and on each rank."""

    def __init__(self, count: int, classes: int, size: int, first: int) -> None:
        self._count, self._classes, self._size, self._first = count, classes, size, first
        drawn = torch.Generator().manual_seed(7)
        self._colours = torch.randint(64, 192, (classes, 3), generator=drawn, dtype=torch.uint8)
        self._places = torch.arange(size) * _CELLS // size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.Generator().manual_seed(self._first + index)
        cells = torch.randint(self._classes, (_CELLS, _CELLS), generator=drawn)
        classes = cells[self._places][:, self._places]
        noise = torch.randint(64, (3, self._size, self._size), generator=drawn, dtype=torch.uint8)
        return self._colours[classes].permute(2, 0, 1) + noise, classes.to(torch.uint8)


def dataset(options: Any, split: str) -> Optional[Dataset]:  # type: ignore[type-arg]
    """Return the images of a split with their masks; None where there is no folder for the test."""
    if not options.data:
        count = options.samples if split == "train" else max(1, options.samples // 10)
        return Synthetic(count, options.classes, options.image, 0 if split == "train" else options.samples)
    images.pillow()  # missing, it is to be said once, and not by a worker
    folder = images.split_folder(options, split)
    if folder is None and split == "test":
        return None
    if folder is None:
        raise TrainingError(f"config.data: {Path(options.data).resolve()} has no folder 'train'")
    return Folder(folder, options.classes, options.image, split == "train")
