"""Who hears whom where all ranks have something to say: no rank has more than a few dozen others, however many there are.

Ranks are taken together by ``fan``, these by ``fan`` again, and so on; the first rank of each speaks for them. So of N ranks
none hears more than ``(fan - 1) * ceil(log(N) / log(fan))`` others, and that of rank 0 alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional, TypeVar

__all__ = ["FAN", "Tree"]

T = TypeVar("T")

FAN = 64
"""Ranks that are taken together: with no more than these there is one level, and rank 0 hears each."""


class Tree:
    """The place of one rank among all.

    Args:
        rank: Of ``world`` ranks.
        fan: How many are taken together, at least 2; None: ``FAN``.
    """

    def __init__(self, rank: int, world: int, fan: Optional[int] = None) -> None:
        self.rank, self.world, self.fan = rank, world, fan or FAN

    @property
    def spans(self) -> list[int]:
        """How many ranks are together at each level; at the last one all."""
        found = [self.fan]
        while found[-1] < self.world:
            found.append(found[-1] * self.fan)
        return found

    def heard(self, span: int) -> range:
        """Return the ranks that this one hears at a level, where it is the first of those together."""
        return range(self.rank + span // self.fan, min(self.rank + span, self.world), span // self.fan)

    def pass_up(
        self, own: T, hear: Callable[[int], T], say: Callable[[T], None], join: Callable[[int, T, list[T]], T]
    ) -> Optional[T]:
        """Join what this rank has with what it hears, level by level; the whole on rank 0, None elsewhere, where it is said.

        Args:
            hear: What another rank says.
            say: Says what has been joined, for the rank before it to hear.
            join: From the span of a level, what there is and what was heard.
        """
        for span in self.spans:
            if self.rank % span:
                say(own)
                return None
            own = join(span, own, [hear(rank) for rank in self.heard(span)])
        return own
