"""The table of `slurmgpu cluster list`: a profile a line, in 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from slurmgpu.models.cluster import Cluster

__all__ = ["Row", "listed", "matches"]

_WIDTH = 80
# A slice of a GPU (MIG), which is no type of its own to whoever looks for a cluster.
_SLICE = re.compile(r"(?:\A|[_-])\d+g\.\d+gb")


class Row(NamedTuple):
    """A profile in the list."""

    name: str
    cluster: Cluster
    path: Path
    whose: str | None
    """Whose it is, when it does not ship with slurmgpu: yours, the lab's, ..."""
    chosen: bool

    @property
    def site(self) -> str:
        """The site, shortly: what the description says before the machine's name; and whether the machine is no more."""
        retired = self.cluster.retired
        text = (self.cluster.description or "").partition(", ")[0]
        return ": ".join(filter(None, [self.whose, f"ended {retired.date}" if retired else None, text]))

    @property
    def gpus(self) -> list[str]:
        """The types of GPU, slices left out."""
        groups = [group for partition in self.cluster.partitions.values() for group in partition.nodes]
        stated = [list(one.gpus) if isinstance(one.gpus, dict) else [one.gpu_type] for one in groups]
        names = [*self.cluster.gpu_types, *(name for names in stated for name in names if name)]
        return [name for name in dict.fromkeys(names) if not _SLICE.search(name)]

    @property
    def date(self) -> str:
        """When its source was read."""
        return str(self.cluster.source.date) if self.cluster.source else "no source"

    def data(self) -> dict[str, object]:
        """As JSON has it."""
        return {
            "name": self.name,
            "description": self.cluster.description,
            "slurm_name": self.cluster.slurm_name,
            "based_on": self.cluster.based_on,
            "gpus": self.gpus,
            "source": self.cluster.source.model_dump(mode="json") if self.cluster.source else None,
            "retired": self.cluster.retired.model_dump(mode="json") if self.cluster.retired else None,
            "path": str(self.path),
            "shipped": self.whose is None,
            "chosen": self.chosen,
        }


def matches(row: Row, words: Sequence[str]) -> bool:
    """Whether each word is found in the name, the description or a type of GPU; case does not count."""
    text = " ".join([row.name, row.site, row.cluster.description or "", *row.gpus]).lower()
    return all(word.lower() in text for word in words)


def listed(rows: Sequence[Row]) -> Iterator[str]:
    """The table's lines; what does not fit is cut off, the name never."""
    name = max((len(row.name) for row in rows), default=0)
    date = max((len(row.date) for row in rows), default=0)
    left = max(_WIDTH - len("* ") - name - date - 3 * len("  "), 20)
    gpus = left * 2 // 5
    site = left - gpus
    yield click.style(f"  {'NAME':<{name}}  {'SITE':<{site}}  {'GPUS':<{gpus}}  SOURCE", bold=True)
    for row in rows:
        star = click.style("*", fg="green", bold=True) if row.chosen else " "
        shown = click.style(f"{row.name:<{name}}", fg="green" if row.chosen else "cyan")
        types = _fitting(row.gpus, gpus)
        dated = click.style(row.date, dim=True)
        yield f"{star} {shown}  {_cut(row.site, site):<{site}}  {types:<{gpus}}  {dated}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def _fitting(names: Sequence[str], width: int) -> str:
    """As many names as fit, and how many more there are."""
    text = ", ".join(names)
    shown = len(names)
    while len(text) > width and shown > 1:
        shown -= 1
        text = f"{', '.join(names[:shown])}, +{len(names) - shown}"
    return _cut(text or "?", width)
