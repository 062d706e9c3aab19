"""Where the files of the ranks lie in a checkpoint: in its folder, or of many ranks in folders of some dozens each.

With more than ``FAN`` ranks, ``rank-R.pt`` and ``shard-R.pt`` lie in ``ranks-A-B``, and folders of these, if there are as many,
in folders again. Each has an ``index.json`` with the size and SHA-256 of what is in it, as ``manifest.json`` has of the
indexes in turn: nobody writes or reads a list of all files. The standard library alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from ..formats.checkpoint import INDEX
from ..processes.tree import Tree

__all__ = ["Layout", "layout_for", "layout_of", "own_rank"]

_OWN = re.compile(r"(?:rank|shard)-(\d+)\.pt")


class Layout(NamedTuple):
    """How the files of ``world`` ranks are laid out, ``fan`` ranks to a folder."""

    world: int
    fan: int

    @property
    def spans(self) -> list[int]:
        """How many ranks share a folder, at each level; none where all lie in the checkpoint's own."""
        return Tree(0, self.world, self.fan).spans[:-1]

    def folder(self, rank: int, span: int) -> str:
        """Return the folder that a rank's files lie in or below, of those with so many ranks; ends with ``/``."""
        return "".join(self._name(rank, each) for each in reversed(self.spans) if each >= span)

    def place(self, name: str) -> str:
        """Return where a part lies: a rank's own in the folder of that rank."""
        rank = own_rank(name)
        return name if rank is None or not self.spans else self.folder(rank, self.fan) + name

    def indexes(self, rank: int) -> list[str]:
        """Return the indexes that lead from the manifest to a rank's files, the outermost first."""
        return [self.folder(rank, span) + INDEX for span in reversed(self.spans)]

    def _name(self, rank: int, span: int) -> str:
        first = rank - rank % span
        return f"ranks-{first}-{min(first + span, self.world) - 1}/"


def layout_for(world: int) -> Layout:
    """That of a checkpoint that so many ranks write."""
    return Layout(world, Tree(0, world).fan)


def layout_of(manifest: Mapping[str, Any]) -> Layout:
    """That of a checkpoint; without a word on it all files lie in its own folder."""
    world = manifest.get("world_size") or 1
    return Layout(world, max(2, manifest.get("ranks_per_folder") or world))


def own_rank(name: str) -> Optional[int]:
    """Return the rank whose own a part is by its name."""
    match = _OWN.fullmatch(name)
    return int(match[1]) if match else None
