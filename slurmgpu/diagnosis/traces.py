"""Tracebacks of Python, each with its own exception, however many processes write into one log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, Optional

from .table import lines
from .text import Line, Piece

__all__ = ["Place", "Trace", "is_noise", "is_own_code", "is_progress", "is_quoted", "is_remark", "traces"]

Place = tuple[int, int]
"""A line: the number of its piece, and its own in it."""

_BEGIN = "Traceback (most recent call last)"
_WORKERS = "Original Traceback (most recent call last)"  # of a data-loader worker, in the message of the error it caused
_MOST_LINES = 400
_MOST_ODD = 30  # lines of others between those of one traceback


class Trace(NamedTuple):
    """One traceback, chained ones as one."""

    at: Place
    end: Place
    """The line behind it."""
    rank: Optional[int]
    host: str
    stream: str
    exceptions: tuple[str, ...]
    """Messages of the chain's exceptions, with all their lines; the last one ended it."""
    frame: str
    """The line of the user's own code where it happened; else the last one."""
    innermost: str
    """The last frame, whosever code it is."""
    ignored: bool
    """True if Python went on: of a destructor, or of a thread."""
    by_launcher: bool
    of_thread: bool = False
    """True if a thread ended with it, and its process went on."""

    def evidence(self) -> tuple[str, ...]:
        """Return the few lines that show it."""
        said = [
            line for text in self.exceptions[:1] + self.exceptions[1:][-1:] for line in text.splitlines()[:5]
        ]
        return tuple(filter(None, (self.frame, *said)))


@lru_cache(maxsize=5000)  # many hits in one log are judged by the same lines
def is_noise(text: str) -> bool:
    """Return True if a line says nothing of a cause: progress bars, warnings, a launcher's framing."""
    return lines.NOISE.search(text) is not None


def is_remark(text: str) -> bool:
    """Return whether a program logged this line as information or a warning: it went on, so it is no cause."""
    return lines.REMARK.search(text) is not None


def is_quoted(text: str, at: int) -> bool:
    """Return whether what stands at a place of a line is quoted: behind a quotation mark, or in a line that is cited."""
    return re.search(r"^\s*[>|]|['\"`]", text[:at]) is not None


def is_progress(text: str) -> bool:
    """Return whether a line tells that a training goes on: a step, an epoch, a loss, a progress bar."""
    return lines.PROGRESS.search(text) is not None


def is_own_code(path: str) -> bool:
    """Return True if a file is the user's, and no library's."""
    return lines.LIBRARY_CODE.search(path) is None


def traces(pieces: Sequence[Piece]) -> Iterator[Trace]:
    """Yield every traceback in the logs, in the order of the files."""
    for number, piece in enumerate(pieces):
        taken: set[int] = set()
        for begin in piece.where(_BEGIN.encode()):
            if begin not in taken:
                yield from _trace(piece, number, begin, taken)


def _trace(piece: Piece, number: int, begin: int, taken: set[int]) -> Iterator[Trace]:
    first = piece[begin]
    exceptions: list[str] = []
    frames: list[str] = []
    at: Optional[int] = begin
    end, rank = begin, first.rank
    while at is not None:
        taken.add(at)
        of_rank = lines.OF_RANK.search(piece[at].text)
        if of_rank and exceptions:
            rank = int(of_rank["rank"])
        own, end, says = _one(piece, at, first, taken)
        frames = own or frames
        if says is not None:
            exceptions.append(says)
        if says is not None and "ExceptionGroup: " in says:
            inner, own, end = _of_group(piece, end, first, taken)
            exceptions += reversed(inner)  # the first of them last: it is the one that is told
            frames = own or frames
        # Ray tells the error of a task inside its own, as frames without a headline.
        of_task = (
            says is not None
            and "RayTaskError(" in says
            and end < len(piece)
            and lines.FRAME.match(piece[end].text)
        )
        at = end - 1 if of_task else _chained(piece, end, first)
    if not exceptions:
        return
    above = range(begin - 1, max(-1, begin - 3), -1)
    before = next((piece[i].text for i in above if piece[i].stream == first.stream), "")
    # The line that says so may stand further away, where several processes write.
    of_thread = before.startswith("Exception in thread") or any(
        "in _bootstrap_inner" in one for one in frames
    )
    ignored = before.startswith(("Exception ignored in", "--- Logging error ---", "Error in sitecustomize"))
    yield Trace(
        (number, begin),
        (number, end),
        rank,
        first.host,
        first.stream,
        tuple(exceptions),
        _frame(frames),
        frames[-1] if frames else "",
        ignored or of_thread or lines.IGNORED.search(exceptions[-1]) is not None,
        any(name in frame for frame in frames for name in lines.LAUNCHER_CODE)
        and all(map(lines.OF_CHILD.match, exceptions)),
        of_thread,
    )


def _of_group(piece: Piece, begin: int, first: Line, taken: set[int]) -> tuple[list[str], list[str], int]:
    """Return the exceptions that are drawn below a group's, the frames of the first of them, and the line behind all."""
    inner: list[str] = []
    frames: list[str] = []
    for at in range(begin, min(len(piece), begin + _MOST_LINES)):
        line = piece[at]
        if line.stream != first.stream:
            continue
        taken.add(at)
        if re.match(r"\s+\+-{20,}$", line.text):
            return inner, frames, at + 1
        if lines.FRAME.match(line.text) and not inner:
            frames.append(line.text.strip())
        elif lines.EXCEPTION.match(line.text) and "ExceptionGroup: " not in line.text:
            inner.append(line.text)
    return inner, frames, begin


def _one(piece: Piece, begin: int, first: Line, taken: set[int]) -> tuple[list[str], int, Optional[str]]:
    """Frames, the line behind it, and the exception with its message, of one traceback."""
    frames: list[str] = []
    odd, at = 0, begin + 1
    while at < min(len(piece), begin + _MOST_LINES) and odd < _MOST_ODD:
        line = piece[at]
        if line.stream != first.stream or at in taken:
            odd += line.stream == first.stream
            at += 1
            continue
        if lines.FRAME.match(line.text):
            code = (
                piece[at + 1].text.strip()
                if at + 1 < len(piece) and piece[at + 1].stream == first.stream
                else ""
            )
            code = "" if lines.FRAME.match(code) or code.startswith('File "') else code
            frames.append(f"{line.text.strip()}: {code}" if code else line.text.strip())
        elif _BEGIN in line.text:
            odd += 1  # another process's
        elif line.text[:1] in lines.BOX:
            at += 1
            continue
        elif line.text[:1] not in ("", " ", "\t") and (
            lines.EXCEPTION.match(line.text) or (frames and not odd and lines.ANY_EXCEPTION.match(line.text))
        ):
            taken.add(at)
            return frames, *_message(piece, at, first)
        elif line.text[:1] not in ("", " ", "\t"):
            odd += 1
        at += 1
    return frames, at, None


def _message(piece: Piece, at: int, first: Line) -> tuple[int, str]:
    """Return where an exception's message ends, and its lines."""
    says, end = [piece[at].text], at + 1
    blank = 0
    follows = says[0].rstrip().endswith(" error:")  # TensorFlow's own words are behind blank lines and frames
    for behind in range(at + 1, min(at + 40, len(piece))):
        line = piece[behind]
        if line.stream != first.stream and not (first.stream and not line.text.strip()):
            if not first.stream:
                break
            continue  # another process's
        if not line.text.strip():
            heading = len(says) > 1 and says[-1].endswith(":")  # within the message
            blank += not (follows or heading)
            if blank > 1:
                break
        elif follows and lines.FRAME.match(line.text):
            continue
        elif _ends_message(line.text, blank) or len(says) == (1 if lines.ON_ONE_LINE.match(says[0]) else 12):
            break
        else:
            says.append(line.text)
            end = behind + 1
    return end, "\n".join(says)


def _ends_message(text: str, blank: int) -> bool:
    """Return True if a line is no part of the message before it."""
    if (
        text.startswith(lines.CHAINED)
        or _BEGIN in text
        or lines.FRAME.match(text)
        or lines.OF_ANOTHER_PROCESS.match(text)
        or lines.GROUP_MEMBER.search(text)
    ):
        return True
    return (
        is_noise(text)
        or (blank > 0 and not text.startswith((" ", "\t")))
        or lines.EXCEPTION.match(text) is not None
        or lines.OTHER_OUTPUT.match(text) is not None
        or is_progress(text)
    )


def _chained(piece: Piece, at: int, first: Line) -> Optional[int]:
    """Return where the next traceback of a chain begins."""
    linked = False
    for number in range(max(0, at - 2), min(at + 8, len(piece))):
        line = piece[number]
        if line.stream.strip() != first.stream.strip() and line.text.strip():
            continue
        said_so = line.text.startswith(lines.CHAINED) or _WORKERS in line.text
        linked = (
            linked
            or said_so
            or bool(lines.OF_ANOTHER_PROCESS.match(line.text) or lines.OF_RANK.search(line.text))
        )
        if linked and number >= at - 2 and _BEGIN in line.text:
            return number
    return None


def _frame(frames: Sequence[str]) -> str:
    own = [frame for frame in frames if not lines.LIBRARY_CODE.search(frame)]
    return (own or list(frames) or [""])[-1]
