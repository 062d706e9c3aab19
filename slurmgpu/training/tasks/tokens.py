"""Token files, memory-mapped, and windows over them; made from text where there are none.

Read are ``.bin`` of uint16 or uint32 (with or without the head of 1,024 bytes that llm.c writes) and ``.npy`` of
integers. A file belongs to the training if its name has the word ``train``, and to the test if it has ``val``,
``valid``, ``validation`` or ``test``: ``train.bin``, ``fineweb_val_000000.bin``.
"""

from __future__ import annotations

import ast
import bisect
import glob
import json
import mmap
import re
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Optional

import torch

from ..errors import SettingsError, TrainingError
from ..files import write_whole

__all__ = ["END", "Synthetic", "Windows", "dataset", "prepare"]

END = {"bytes": 0, "gpt2": 50256}
"""The token between two texts, by tokenizer."""

_WORDS = {"train": {"train"}, "test": {"val", "valid", "validation", "test"}}
_LLM_C = 20240520  # the first number in a file of llm.c, whose head is 256 numbers of 4 bytes
_WIDTHS = {"uint16": 2, "uint32": 4}
_KINDS = {"u2": ("int16", 2), "i2": ("int16", 2), "u4": ("int32", 4), "i4": ("int32", 4), "i8": ("int64", 8)}
_LOOKED_AT = 1 << 20  # tokens of each file that are compared with the vocabulary
_NOISE = 0.1  # share of a synthetic text that cannot be foretold


class TokenFile:
    """The tokens of one file; mapped when first read, in whichever process that is."""

    def __init__(self, path: Path, width: str) -> None:
        self.path = path
        self._kind, self._size, self._offset = _layout(path, width)
        self.count = (path.stat().st_size - self._offset) // self._size
        self._mapped: Optional[torch.Tensor] = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Return the tokens from ``start`` up to ``stop``, as int64."""
        if self._mapped is None:
            with self.path.open("rb") as file:
                # Private pages that may be written: torch warns of others.
                pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            kind = getattr(torch, self._kind)
            self._mapped = torch.frombuffer(pages, dtype=kind, count=self.count, offset=self._offset)
        # torch has unsigned types from 2.3 on only; the bits are the same.
        mask = (1 << 8 * self._size) - 1 if self._size < 8 else -1
        return self._mapped[start:stop].long() & mask


def _layout(path: Path, width: str) -> tuple[str, int, int]:
    """Type and size of a number in the file, and where the first one is."""
    with path.open("rb") as file:
        head = file.read(1024)
        if path.suffix == ".npy":
            return _npy(path, head)
    llm_c = len(head) == 1024 and struct.unpack_from("<i", head)[0] == _LLM_C
    return f"int{8 * _WIDTHS[width]}", _WIDTHS[width], 1024 if llm_c else 0


def _npy(path: Path, head: bytes) -> tuple[str, int, int]:
    """Return the same of a file of numpy's, whose head is a text (numpy's manual, the NPY format)."""
    start, form = (10, "<H") if head[6:7] == b"\x01" else (12, "<I")
    try:
        (length,) = struct.unpack_from(form, head, 8)
        about = ast.literal_eval(head[start : start + length].decode("latin-1").strip())
        kind, size = _KINDS[about["descr"].lstrip("<|=")]
        if len(about["shape"]) == 1:
            return kind, size, start + length
    except (KeyError, SyntaxError, ValueError, struct.error):
        pass
    raise TrainingError(
        f"config.data: {path} must be a .npy of one dimension and of 2, 4 or 8-byte integers, little-endian"
    )


class Windows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Pieces of token files, side by side: ``context`` tokens (T,), and the token after each of them (T,)."""

    def __init__(self, files: list[TokenFile], context: int) -> None:
        self.files, self.context = files, context
        self._ends: list[int] = []
        total = 0
        for file in files:
            total += max(0, file.count - 1) // context
            self._ends.append(total)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        number = bisect.bisect_right(self._ends, index)
        start = (index - (self._ends[number - 1] if number else 0)) * self.context
        piece = self.files[number].read(start, start + self.context + 1)
        return piece[:-1], piece[1:]


class Synthetic(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Texts without a file: each token is its forerunner plus 7, but for a tenth of them."""

    def __init__(self, count: int, context: int, vocabulary: int, first_seed: int) -> None:
        self._count, self._context, self._vocabulary, self._seed = count, context, vocabulary, first_seed

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.Generator().manual_seed(self._seed + index)
        length = self._context + 1
        start = torch.randint(self._vocabulary, (1,), generator=drawn)
        text = (start + 7 * torch.arange(length)) % self._vocabulary
        noise = torch.randint(self._vocabulary, (length,), generator=drawn)
        text = torch.where(torch.rand(length, generator=drawn) < _NOISE, noise, text)
        return text[:-1], text[1:]


def dataset(options: Any, split: str, context: int, vocabulary: int) -> Optional[torch.utils.data.Dataset]:  # type: ignore[type-arg]
    """Return the windows of a split; None where no file is for the test.

    Raises:
        TrainingError: no files to train on, too few tokens, or tokens that the vocabulary does not have.
    """
    if not options.data:
        count = options.samples if split == "train" else max(1, options.samples // 10)
        return Synthetic(count, context, vocabulary, 0 if split == "train" else 1 << 40)
    folder = Path(options.data)
    files = [TokenFile(path, options.width) for path in _files(folder, split)]
    if not files and split == "test":
        return None
    if not files:
        raise TrainingError(
            f"config.data: {folder.resolve()} has no .bin or .npy whose name has the word 'train'; "
            "config.text makes them from texts"
        )
    windows = Windows(files, context)
    if not len(windows):
        raise TrainingError(
            f"config.data: the files for {split} have {sum(each.count for each in files)} tokens, fewer than "
            f"a window of {context} and one more; give more, or lower config.context"
        )
    for file in files:
        largest = int(file.read(0, _LOOKED_AT).max()) if file.count else 0
        if largest >= vocabulary:
            raise SettingsError(
                f"config.vocabulary is {vocabulary}, and {file.path} has the token {largest}; "
                f"raise it, or set config.width (now {options.width}), if the numbers in the file are of another size"
            )
    return windows


def _files(folder: Path, split: str) -> list[Path]:
    found = [path for pattern in ("*.bin", "*.npy") for path in folder.glob(pattern)]
    return sorted(path for path in found if _WORDS[split] & set(re.split(r"[\W_]+", path.stem.lower())))


def prepare(options: Any) -> None:
    """Make ``train.bin`` and ``test.bin`` from the texts that ``config.text`` names, unless they are made.

    Raises:
        SettingsError: no folder to put them in, no such texts, or files there that were not made so.
    """
    if not options.text:
        return
    if not options.data:
        raise SettingsError("config.text needs config.data, the folder for the token files made from it")
    folder, note = Path(options.data), Path(options.data, "made.json")
    made = {name: getattr(options, name) for name in ("text", "tokenizer", "test_share", "width")}
    if note.is_file() and json.loads(note.read_text(encoding="utf-8")) == made:
        return
    if not note.is_file() and _files(folder, "train"):
        raise SettingsError(
            f"config.data: {folder} has token files that were not made from config.text; leave that out to use them, "
            "or name another folder"
        )
    paths = sorted(path for path in map(Path, glob.glob(options.text, recursive=True)) if path.is_file())  # noqa: PTH207
    if not paths:
        raise SettingsError(f"config.text: no file is named like {options.text!r} (work folder {Path.cwd()})")
    folder.mkdir(parents=True, exist_ok=True)
    tokens = array("H" if options.width == "uint16" else "I")
    for piece in _tokens(paths, options.tokenizer):
        tokens.extend(piece)
    if sys.byteorder == "big":
        tokens.byteswap()
    learned = len(tokens) - int(len(tokens) * options.test_share)
    for name, part in (("train", tokens[:learned]), ("test", tokens[learned:])):
        if part:
            _write(folder / f"{name}.bin", part)
    write_whole(note, lambda file: file.write(json.dumps(made).encode()))


def _write(path: Path, tokens: array[int]) -> None:
    write_whole(path, lambda file: file.write(tokens.tobytes()))


def _tokens(paths: Iterable[Path], tokenizer: str) -> Iterator[Iterable[int]]:
    """Yield the tokens of each text, and the one that ends it."""
    if tokenizer == "gpt2":
        try:
            import tiktoken
        except ModuleNotFoundError:
            raise TrainingError(
                f"config.tokenizer: gpt2 needs the package tiktoken, which {sys.executable} does not have: "
                "pip install tiktoken, or make the token files elsewhere and leave out config.text"
            ) from None
        encode = tiktoken.get_encoding("gpt2").encode_ordinary
    for path in paths:
        if tokenizer == "gpt2":
            yield encode(path.read_text(encoding="utf-8", errors="replace"))
        else:
            yield path.read_bytes()
        yield [END[tokenizer]]
