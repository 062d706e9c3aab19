"""Lists of hosts as Slurm abbreviates them: `n[001-018,20],login1`. No function here runs anything."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator

__all__ = ["abbreviate", "expand"]

_MOST = 200_000
"""More hosts than any cluster has: a list that stands for more is not expanded."""

_TERM = re.compile(r"(?:[^\[\],]+|\[[^\]]*\])+")
_PIECE = re.compile(r"\[([^\]]*)\]|([^\[\]]+)")


def expand(text: str) -> list[str]:
    """Return every host of a list, in its order; what cannot be read is taken as a name."""
    found: list[str] = []
    for term in _TERM.findall(text):
        pieces = [_numbers(inside) if inside else [plain] for inside, plain in _PIECE.findall(term)]
        if len(found) + math.prod(map(len, pieces)) > _MOST:
            return found
        found += ("".join(parts) for parts in itertools.product(*pieces))
    return found


def _numbers(inside: str) -> list[str]:
    """`001-003,7` -> 001 002 003 7, each as wide as its range begins."""
    result: list[str] = []
    for part in inside.split(","):
        low, dash, high = part.partition("-")
        if dash and low.isdigit() and high.isdigit() and 0 <= int(high) - int(low) < _MOST:
            result += (str(number).zfill(len(low)) for number in range(int(low), int(high) + 1))
        else:
            result.append(part)
    return result


def abbreviate(hosts: Iterable[str]) -> str:
    """Return the list of these hosts as Slurm writes it: the last number of their names becomes ranges."""
    families: dict[tuple[str, str], list[str]] = {}
    plain: list[str] = []
    for host in dict.fromkeys(hosts):
        match = re.search(r"(\d{1,18})(\D*)\Z", host)
        if match:
            families.setdefault((host[: match.start()], match[2]), []).append(match[1])
        else:
            plain.append(host)
    return ",".join([*plain, *(_family(*ends, numbers) for ends, numbers in families.items())])


def _family(prefix: str, suffix: str, numbers: list[str]) -> str:
    ranges = list(_ranges(sorted(numbers, key=lambda text: (int(text), text))))
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return f"{prefix}{ranges[0][0]}{suffix}"
    inside = ",".join(low if low == high else f"{low}-{high}" for low, high in ranges)
    return f"{prefix}[{inside}]{suffix}"


def _ranges(numbers: list[str]) -> Iterator[tuple[str, str]]:
    """First and last of each run, in which every number is written as wide as the first, or wider if it has to be."""
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != str(int(last) + 1).zfill(len(first)):
            yield first, last
            first = number
        last = number
    yield first, last
