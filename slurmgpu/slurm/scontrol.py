"""What `scontrol show` says of a cluster: its configuration, partitions, nodes, reservations, licences.

The commands and the keys read here are the same from 20.11 to 26.05, unless a comment says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = [
    "CONFIG", "LICENSES", "NODES", "NODES_IN_DETAIL", "PARTITIONS", "RESERVATIONS", "configuration", "records",
]  # fmt: skip

CONFIG = ("scontrol", "show", "config")
# -a: hidden partitions, too; some of them may be the user's.
PARTITIONS = ("scontrol", "-a", "-o", "show", "partition")
# One call whatever the number of nodes: 0.6 kB for each. sinfo asks the controller the same, and has no
# MemSpecLimit and no specialised CPUs.
NODES = ("scontrol", "-a", "-o", "show", "node")
# -d: GresUsed, too.
NODES_IN_DETAIL = ("scontrol", "-d", "-a", "-o", "show", "node")
RESERVATIONS = ("scontrol", "-o", "show", "reservation")
LICENSES = ("scontrol", "-o", "show", "licenses")

_SETTING = re.compile(r"^(\w+(?:\[\d+\])?)\s*= ?(.*)$", re.MULTILINE)


def configuration(text: str) -> dict[str, str]:
    """Read `scontrol show config`: the settings of slurm.conf by name."""
    return {name: value.strip() for name, value in _SETTING.findall(text)}


_FIRST_KEYS = ("PartitionName", "NodeName", "ReservationName", "LicenseName")
_PAIR = re.compile(r"(?:^| )([A-Z]\w*)=(\S*)")


def records(text: str, keys: Iterable[str] = ()) -> list[dict[str, str]]:
    """Read one record a line, `Key=value Key=value ...`; with `keys` only those, which saves time with many nodes.

    Values with a blank (a reason, a comment) are cut at it: none of them is of use here. They come last in a
    line, and the first of two equal keys counts.
    """
    wanted = "|".join(map(re.escape, keys))
    pattern = re.compile(rf"(?:^| )({wanted})=(\S*)") if wanted else _PAIR
    found: list[dict[str, str]] = []
    for line in text.split("\n"):
        if line.startswith(_FIRST_KEYS):
            record: dict[str, str] = {}
            for key, value in pattern.findall(line):
                record.setdefault(key, value)
            if record.get(line.partition("=")[0]):
                found.append(record)
    return found
