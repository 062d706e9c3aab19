"""Images to classify: folders, shards of .tar, or made up; uint8 (3, H, W), with the number of their class."""

from __future__ import annotations

import math
import os
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Optional, cast

import torch
from torch import nn
from torch.nn.functional import pad
from torch.utils.data import Dataset

from ..errors import SettingsError, TrainingError
from ..files import write_whole

__all__ = [
    "KINDS",
    "Normalized",
    "classes_of",
    "dataset",
    "opened",
    "pillow",
    "pixels",
    "prepare",
    "split_folder",
    "uniform",
]

KINDS = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm"}
_SPLITS = {"train": ("train",), "test": ("val", "test", "validation")}
_PATTERNS = 64  # made-up noises, from which each image takes one


class Normalized(nn.Module):
    """Makes of bytes numbers around 0, by ImageNet's means and deviations; on the device, where it costs little."""

    mean: torch.Tensor
    deviation: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", 255 * torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1))
        self.register_buffer("deviation", 255 * torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the same images, as fp32."""
        return (images - self.mean) / self.deviation


def pillow() -> Any:
    """Pillow's module for images.

    Raises:
        TrainingError: it is not installed.
    """
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise TrainingError(
            f"config.data: reading images needs the package pillow, which {sys.executable} does not have: "
            "pip install pillow; without config.data the task makes its images up"
        ) from None
    return Image


def pixels(image: Any) -> torch.Tensor:
    """Return a picture of Pillow's as uint8, (3, H, W), or (H, W) where it has one channel."""
    flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    width, height = image.size
    if image.mode == "RGB":
        return flat.view(height, width, 3).permute(2, 0, 1).contiguous()
    return flat.view(height, width)


class View:
    """Cuts of each image the part that is looked at; what is random comes from torch's generator, seeded by sample."""

    def __init__(self, size: int, augment: str) -> None:
        self.size, self.augment = size, augment

    def __call__(self, image: Any) -> torch.Tensor:
        """Return the part as uint8, (3, size, size)."""
        cut = {"resized": self._resized, "padded": self._padded, "none": self._middle}[self.augment](image)
        return cut.flip(2) if self.augment != "none" and uniform(0, 1) < 0.5 else cut

    def _scaled(self, image: Any, box: tuple[float, float, float, float]) -> torch.Tensor:
        bilinear = 2  # Pillow's number for it
        return pixels(image.resize((self.size, self.size), bilinear, box=box))

    def _resized(self, image: Any) -> torch.Tensor:
        """Return a part of 8 to 100 % of the area, up to a third wider or higher than square (Szegedy et al. 2015)."""
        width, height = image.size
        for _ in range(10):
            area = uniform(0.08, 1) * width * height
            ratio = math.exp(uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = math.sqrt(area * ratio), math.sqrt(area / ratio)
            if w <= width and h <= height:
                left, top = uniform(0, width - w), uniform(0, height - h)
                return self._scaled(image, (left, top, left + w, top + h))
        return self._middle(image)

    def _padded(self, image: Any) -> torch.Tensor:
        """Return the whole, moved by up to 4 pixels each way (He et al. 2015, for CIFAR)."""
        whole = pad(self._scaled(image, (0, 0, *image.size)), (4, 4, 4, 4))
        left, top = (int(each) for each in torch.randint(9, (2,)))
        return whole[:, top : top + self.size, left : left + self.size]

    def _middle(self, image: Any) -> torch.Tensor:
        """Return the middle square; of images larger than 64 pixels seven eighths of it, as 224 of 256."""
        width, height = image.size
        side = min(width, height) * (7 / 8 if self.size > 64 else 1)
        left, top = (width - side) / 2, (height - side) / 2
        return self._scaled(image, (left, top, left + side, top + side))


def uniform(low: float, high: float) -> float:
    """Return a number between two, from torch's generator."""
    return low + (high - low) * float(torch.rand(()))


class Folder(Dataset):  # type: ignore[type-arg]
    """A folder for each class, in the order of their names."""

    def __init__(self, folder: Path, classes: list[str], view: View) -> None:
        self.view = view
        self.files = [
            (path, number)
            for number, name in enumerate(classes)
            for path in sorted((folder / name).rglob("*"))
            if path.suffix.lower() in KINDS
        ]
        if not self.files:
            raise TrainingError(
                f"config.data: the folders in {folder} have no images ({', '.join(sorted(KINDS))})"
            )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, number = self.files[index]
        return self.view(opened(path, str(path))), number


class Shards(Dataset):  # type: ignore[type-arg]
    """Shards of .tar as WebDataset has them, KEY.jpg beside KEY.cls, read at any place by an index made once."""

    def __init__(self, folder: Path, index: Path, view: View) -> None:
        made = torch.load(index, weights_only=True)  # by `prepare`, which has looked at the shards
        self.view, self.table = view, made["table"]
        self.paths = [folder / name for name, _ in made["shards"]]
        self._opened: dict[int, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        shard, start, size, number = self.table[index].tolist()
        if shard not in self._opened:
            self._opened[shard] = os.open(self.paths[shard], os.O_RDONLY)
        # At a place of its own: processes that share the file do not move each other.
        content = os.pread(self._opened[shard], size, start)
        return self.view(opened(BytesIO(content), f"{self.paths[shard]}, byte {start}")), number


def opened(source: Any, name: str) -> Any:
    """Return a picture of Pillow's, in three colours."""
    try:
        return pillow().open(source).convert("RGB")
    except OSError as error:
        raise TrainingError(f"config.data: {name} is no image that can be read: {error}") from error


def _state(folder: Path) -> list[tuple[str, int]]:
    return [(path.name, path.stat().st_size) for path in sorted(folder.glob("*.tar"))]


def _write_index(folder: Path, index: Path) -> None:
    """Note where each image is: shard, first byte, bytes and class."""
    table = []
    for number, path in enumerate(sorted(folder.glob("*.tar"))):
        found: dict[str, tuple[int, int]] = {}
        classes: dict[str, int] = {}
        with tarfile.open(path, "r:") as shard:
            for member in shard:
                key, _, kind = member.name.rpartition("/")[2].partition(".")
                key = f"{member.name.rpartition('/')[0]}/{key}"
                if f".{kind.lower()}" in KINDS:
                    found[key] = member.offset_data, member.size
                elif kind == "cls":
                    content = shard.extractfile(member)
                    classes[key] = _class_of(content.read() if content else b"", path, member.name)
        without = sorted(found.keys() - classes.keys())
        if without:
            raise TrainingError(
                f"config.data: {path} has no {without[0].lstrip('/')}.cls beside the image ({len(without)} such images): "
                "a .cls holds the number of the class"
            )
        table += [[number, *place, classes[key]] for key, place in found.items()]
    if not table:
        raise TrainingError(
            f"config.data: the shards in {folder} have no images ({', '.join(sorted(KINDS))})"
        )
    index.parent.mkdir(parents=True, exist_ok=True)
    made = {"shards": _state(folder), "table": torch.tensor(table)}
    write_whole(index, lambda file: torch.save(made, cast("IO[bytes]", file)))


def _class_of(content: bytes, path: Path, name: str) -> int:
    try:
        return int(content)
    except ValueError:
        raise TrainingError(
            f"config.data: {name} in {path} holds {content[:20]!r}; it must hold the number of the class"
        ) from None


class Synthetic(Dataset):  # type: ignore[type-arg]
    """A coarse pattern for each class, under noise; the same for a number in each epoch and on each rank."""

    def __init__(self, count: int, classes: int, size: int, first: int) -> None:
        self._count, self._first, self._size = count, first, size
        drawn = torch.Generator().manual_seed(7)
        self._patterns = torch.randint(64, 192, (classes, 3, 4, 4), generator=drawn, dtype=torch.uint8)
        self._noise = torch.randint(64, (_PATTERNS, 3, size, size), generator=drawn, dtype=torch.uint8)
        self._places = torch.arange(size) * 4 // size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        number = (self._first + index) % len(self._patterns)
        pattern = self._patterns[number][:, self._places][:, :, self._places]
        return pattern + self._noise[(self._first + index) * 31 % _PATTERNS], number


def prepare(options: Any) -> None:
    """Make the index of each split's shards, unless it is made; anew for other shards."""
    if not options.data:
        return
    pillow()
    for split in _SPLITS:
        folder = split_folder(options, split)
        if folder is not None and _state(folder) and not _is_made(folder, _index(options, folder)):
            _write_index(folder, _index(options, folder))


def _is_made(folder: Path, index: Path) -> bool:
    return index.is_file() and torch.load(index, weights_only=True)["shards"] == _state(folder)


def split_folder(options: Any, split: str) -> Optional[Path]:
    """Return the folder of a split, where there is one."""
    folders = [Path(options.data, name) for name in _SPLITS[split]]
    return next((folder for folder in folders if folder.is_dir()), None)


def _index(options: Any, folder: Path) -> Path:
    return Path(options.index or folder.parent) / f"{folder.name}.index.pt"


def classes_of(options: Any, usual: int) -> int:
    """Return how many classes there are: as asked, as there are folders, or as usual."""
    if options.classes is not None:
        return int(options.classes)
    folder = split_folder(options, "train") if options.data else None
    return len(_folders(folder)) or usual if folder is not None else usual


def _folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def dataset(options: Any, split: str, size: int, classes: int, augment: str) -> Optional[Dataset]:  # type: ignore[type-arg]
    """Return the images of a split; None where there is no folder for the test.

    Raises:
        TrainingError: no folder to train on, no images, or classes that do not fit.
    """
    if not options.data:
        count = options.samples if split == "train" else max(1, options.samples // 10)
        return Synthetic(count, classes, size, 0 if split == "train" else options.samples)
    pillow()  # missing, it is to be said once, and not by a worker
    folder = split_folder(options, split)
    if folder is None and split == "test":
        return None
    if folder is None:
        raise TrainingError(f"config.data: {Path(options.data).resolve()} has no folder 'train'")
    view = View(size, augment if split == "train" else "none")
    if _state(folder):
        shards = Shards(folder, _index(options, folder), view)
        _refuse(int(shards.table[:, 3].max()), classes, folder)
        return shards
    train = split_folder(options, "train")
    assert train is not None  # it is read first
    names = _folders(train)
    unknown = sorted(set(_folders(folder)) - set(names))
    if unknown:
        raise TrainingError(f"config.data: {folder} has the class {unknown[0]!r}, and {train} has not")
    if not names:
        raise TrainingError(f"config.data: {folder} must have a folder for each class, or .tar shards")
    _refuse(len(names) - 1, classes, folder)
    return Folder(folder, names, view)


def _refuse(largest: int, classes: int, folder: Path) -> None:
    if largest >= classes:
        raise SettingsError(
            f"config.classes is {classes}, and {folder} has a class number {largest}; set config.classes: {largest + 1}"
        )
