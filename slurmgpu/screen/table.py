"""The table of jobs: which lines, in which order, and which columns a terminal has room for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from slurmgpu.models.run import JobStatus
from slurmgpu.monitoring.arrays import Among, Line
from slurmgpu.monitoring.arrays import lines as lines_of
from slurmgpu.monitoring.table import in_order
from slurmgpu.screen.text import COLOURS, cell, doing, sought

__all__ = ["MOST", "SORTS", "How", "Rows", "key_of", "rows_of", "shown"]

MOST = 500
"""Lines of the table; of more, a filter finds the rest."""

SORTS = ("job", "-job", "state,-job", "name,job", "-gpus,-job", "-elapsed")
"""The orders that `s` goes through, as ``status --sort`` has them."""

_DOING = "PROGRESS OR REASON"
_LEAST_DOING = 28
_KEYS = ("job", "name", "user", "state", "partition", "gpus", "elapsed", "when")
_MOST_WIDE = {"name": 24, "gpus": 14, "user": 12, "partition": 14, "job": 20}
# On a narrow terminal, the first goes first; what is left is never left out.
_LEFT_OUT = ("when", "partition", "elapsed", "user", "gpus")


class How(NamedTuple):
    """How the jobs are to be shown."""

    each_task: bool = False
    sort: str = "-job"
    words: str = ""
    """Each of its words has to be found in a job: in its id, name, user, state, partition, account or nodes."""


class Rows(NamedTuple):
    """The columns and the cells under them, as wide as they fit."""

    titles: tuple[tuple[str, int], ...]
    """Each with its width in cells."""
    cells: list[tuple[Text, ...]]


def shown(jobs: Sequence[JobStatus], how: How, now: datetime, since: datetime | None = None) -> list[Line]:
    """The lines that are wanted, in order; of jobs that ended before `since` some may be missing."""
    words = how.words.lower().split()
    found = [job for job in jobs if all(word in sought(job) for word in words)] if words else jobs
    among = Among(since, bool(words))
    return lines_of(in_order(found, how.sort, now), each_task=how.each_task, among=among)


def key_of(line: Line) -> str:
    """What a line is known by from look to look."""
    return f"{line.job.cluster} {line.job.job_id}"


def rows_of(lines: Sequence[Line], now: datetime, width: int, *, doubtful: bool = False) -> Rows:
    """The lines as cells; with `doubtful` each state has a question mark, since it may have changed."""
    lines = lines[:MOST]
    texts = {key: [cell(key, line, now) or "-" for line in lines] for key in _KEYS}
    if doubtful:
        texts["state"] = [f"{state}?" for state in texts["state"]]
    keys = [key for key in _KEYS if key != "user" or len(set(texts["user"])) > 1]
    widths = {
        key: min(max([cell_len(text) for text in texts[key]] + [len(key)]), _MOST_WIDE.get(key, 40))
        for key in keys
    }
    for key in _LEFT_OUT:
        if sum(widths.values()) + 2 * len(widths) + _LEAST_DOING <= width:
            break
        widths.pop(key, None)
    if sum(widths.values()) + 2 * len(widths) + _LEAST_DOING > width:
        widths["name"] = min(widths["name"], 12)
    left = max(8, width - sum(widths.values()) - 2 * len(widths))
    cells = [
        (
            *(
                _cut(texts[key][number], widths[key], _style(line) if key == "state" else "")
                for key in widths
            ),
            _cut(doing(line) or "-", left),
        )
        for number, line in enumerate(lines)
    ]
    titles = [(key.upper(), wide + 2) for key, wide in widths.items()]
    return Rows((*titles, (_DOING, left)), cells)


def _style(line: Line) -> str:
    return COLOURS.get(line.job.state, "red")


def _cut(text: str, width: int, style: str = "") -> Text:
    made = Text(text, style=style, no_wrap=True)
    made.truncate(width, overflow="ellipsis")
    return made
