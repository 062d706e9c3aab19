"""Findings of the table's rows in the logs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Optional

from .ends import End, ends, first_host
from .facts import Facts
from .row import Row
from .table import GENERIC, NEVER_OF_PYTHON, ROWS, SETUP
from .text import Piece, read
from .traces import Place, Trace, is_noise, is_own_code, is_progress, is_quoted, is_remark, traces

__all__ = ["Found", "Reading", "last_lines", "read_logs"]

_MOST = 200  # hits of a row that are looked at, in each piece
_THOROUGH = (
    512 << 10
)  # bytes at a piece's end in which all rows are looked for: each costs as much as all of them
_LAST = 20  # lines that matter, among which one counts that says little by itself
_GAP_OF_ONE, _GAP_OF_MANY = 0, 80  # lines that matter between tracebacks of one end: of one process, of many
_AFTER = 25  # lines that matter behind a traceback after which its program has gone on
_NEAR_END = 4  # lines that matter behind a message that is a certain cause
_NEAR = 400  # lines before an exception in which its details stand
_ASSERTION = re.compile(r"([\w./-]+\.cuh?:\d+): .*Assertion `+(?P<assertion>[^`']+)['`]")
_OF_LIBRARY = "a library raised it: the traceback shows which, and the line above it what it was given; look the message up there"


class Found(NamedTuple):
    """A row that fits somewhere in the logs."""

    row: Row
    values: Mapping[str, Optional[str]]
    at: Place
    rank: Optional[int]
    host: str
    evidence: tuple[str, ...]
    trace: bool
    """True if a process ended with it, as an exception that nobody caught."""
    final: bool = True
    """Of an exception: whether its program did not go on afterwards; of a line: whether it stands where it counts."""
    frame: str = ""

    @property
    def specific(self) -> bool:
        """True if it says more than that there was an exception."""
        return self.row.id not in (GENERIC, "assertion")

    @property
    def is_guess(self) -> bool:
        """True if a process only lost the connection to one that it had started."""
        return self.row.id == "loader-exited" and not self.values.get("pid")


_OF_PYTHON = re.compile(
    r"(?:\w+\.)*(?:Assertion|Attribute|Index|Key|Lookup|Name|NotImplemented|Syntax|Type|Unicode\w*|Value)Error\b"
)


def _only_mentions(text: str, row: Row) -> bool:
    """Return True if an exception cannot be what a row is about: a ValueError may quote any words, and no system raises it."""
    raised_elsewhere = row.role in ("consequence", "waiting") or row.id in NEVER_OF_PYTHON
    return raised_elsewhere and _OF_PYTHON.match(text) is not None


def read_logs(paths: Iterable[str], facts: Facts, seconds: float) -> list[Piece]:
    """Return what matters of some logs; of one that holds earlier starts of the job, this start's part."""
    pieces = read(paths, seconds)
    return _of_last_start(pieces) if facts.restarts else pieces


_STARTED_AGAIN = (
    b"; requeueing, restart ",
    b"DUE TO PREEMPTION ***",
    b"DUE TO NODE FAILURE",
    b"DUE TO JOB REQUEUE",
    b"; preempted: Slurm starts it again",
)


def _of_last_start(pieces: Sequence[Piece]) -> list[Piece]:
    """Without what stands before the last line that ends a start, unless next to nothing comes after it."""
    kept: list[Piece] = []
    cut: dict[str, tuple[int, int]] = {}
    for number, piece in enumerate(pieces):
        hits = [at for sign in _STARTED_AGAIN for at in piece.where(sign)]
        hits = [at for at in hits if any(piece[i].text.strip() and not is_noise(piece[i].text) for i in range(at + 1, len(piece)))
                or not piece.ends]  # fmt: skip
        if hits:
            cut[piece.path] = (number, max(hits))
    for number, piece in enumerate(pieces):
        first, line = cut.get(piece.path, (0, -1))
        if number < first:
            continue
        if number == first and line >= 0:
            rest = b"\n".join(piece.data.split(b"\n")[line + 1 :])
            piece = Piece(piece.path, rest, rank=piece.rank, ends=piece.ends)
        kept.append(piece)
    return kept


class Reading:
    """All that was found, by what it may be."""

    def __init__(self, pieces: Sequence[Piece], facts: Facts) -> None:
        self.pieces = pieces
        self._facts = facts
        self._is_launched = bool(ends(pieces)) or any(
            piece[at].rank is not None
            for piece in pieces
            for sign in (b"[rank", b"[1,")
            for at in piece.where(sign, 3)
        )
        self._traces = list(traces(pieces))
        found = [*self._of_traces(), *self._of_lines()]
        dead = (self._of_trace(one, True) for one in self._traces if one.of_thread)
        self.threads = [one for one in dead if one is not None]
        """Threads that ended with an error, while their processes went on."""
        self.handled = [one for one in found if one.trace and self.went_on(one.at)]
        """Exceptions after which the training made progress."""
        found = [one for one in found if one.row.role == "job" or not self.went_on(one.at)]
        found.sort(key=lambda one: one.at)
        causes = [one for one in found if one.row.role == "cause"]
        # That a worker is gone may be the end of all of them: it counts where nothing else does.
        self.setup = [one for one in found if one.row.id in SETUP]
        causes = [one for one in causes if one.trace or one.final]
        self.causes = [one for one in causes if not one.is_guess] or causes
        self.symptoms = [one for one in found if one.row.role == "symptom" and (one.trace or one.final)]
        self.job = [one for one in found if one.row.role == "job" and not self._is_of_another_job(one)]
        self.stops = [one for one in found if one.row.role == "stop"]
        self.host = [one for one in found if one.row.role == "host"]
        self.waiting = [one for one in found if one.row.role == "waiting"]
        self.lost = [one for one in found if one.row.role == "consequence"]

    def _is_of_another_job(self, found: Found) -> bool:
        """Return whether a line of Slurm's is about another job, whose log this one prints."""
        number = (found.values.get("id") or "").partition(".")[0]
        return number.isdecimal() and self._facts.job_id.isdecimal() and number != self._facts.job_id

    def line(self, at: Place) -> str:
        """Return the text of a line."""
        piece = self.pieces[at[0]]
        return piece[at[1]].text if at[1] < len(piece) else ""

    def host_of(self, rank: Optional[int]) -> str:
        """Return the host of a rank, where the logs name it."""
        return first_host(self.pieces, rank) if rank is not None else ""

    def went_on(self, at: Place) -> bool:
        """Return whether the training made progress after this line, so that it was got over."""
        piece, line, count = self.pieces[at[0]], self.pieces[at[0]][at[1]], 0
        # Where nothing tells whose a line is, the others may still write the steps that they have begun.
        others = (
            0 if line.rank is not None or line.stream else self._facts.processes or self._facts.tasks or 4
        )
        for behind in range(at[1] + 1, min(len(piece), at[1] + 400)):
            # A rank's lines may come with several prefixes, and rank 0's without any.
            other = piece[behind]
            same = other.stream == line.stream or (line.rank is not None and other.rank == line.rank)
            if (same or (line.rank == 0 and not other.stream)) and is_progress(piece[behind].text):
                count += 1
                if count > 2 + 2 * others:
                    return True
        return False

    def output_between(self, one: Place, other: Place, *, progress: bool = False) -> int:
        """Return how many lines between two of a log a program wrote outside tracebacks; ``progress``: that tell of progress."""
        if one[0] != other[0]:
            return 0
        inside = self.inside_traces(one[0])
        texts = (
            self.pieces[one[0]][at].text
            for at in range(one[1] + 1, min(other[1], one[1] + 4000))
            if at not in inside
        )
        return sum(
            is_progress(text) if progress else bool(text.strip()) and not is_noise(text) for text in texts
        )

    def open_traces(self, until: Place) -> list[Trace]:
        """Return the tracebacks before a line of its log after which no progress was made."""
        piece, inside = self.pieces[until[0]], self.inside_traces(until[0])
        lines = (at for at in range(until[1] - 1, -1, -1) if at not in inside and is_progress(piece[at].text))
        last = (until[0], next(lines, -1))
        before = (one for one in self._traces if one.at < until and last <= one.end)
        return [one for one in before if not one.ignored and not one.by_launcher]

    def after_last_tolerated(self, ended: Sequence[End]) -> Place:
        """Return where the last step was tolerated: srun reported its end, and the script went on to another end.

        Such are an error that a program raises later, and an end with the job's own, other exit code.
        """
        by_srun = [end for end in ended if end.by == "srun" and not end.told_to]
        errors = [one.at for one in self.causes if one.trace and one.row.role == "cause"]
        code = self._facts.exit_code
        for end in reversed(by_srun):
            ends_of_job = [other.at for other in by_srun if code and other.code == code != end.code]
            later = [at for at in (*errors, *ends_of_job) if at > end.at and at[0] == end.at[0]]
            if later and self.output_between(end.at, max(later)) > 1:  # the furthest has the most before it
                return end.at
        return (-1, -1)

    def forget(self, until: Place) -> None:
        """Drop what was found up to a line."""
        for name in ("causes", "symptoms", "host", "waiting", "lost", "setup"):
            setattr(self, name, [one for one in getattr(self, name) if one.at > until])

    def lines_after(self, found: Found) -> int:
        """Return how many lines that matter its process wrote behind a message or a traceback."""
        number, at = next(
            (one.end for one in self._traces if one.at == found.at), (found.at[0], found.at[1] + 1)
        )
        return self._matter(number, at, len(self.pieces[number]), self.pieces[number][found.at[1]].stream)

    def is_near_end(self, at: Place) -> bool:
        """Return whether next to nothing that matters stands behind a line."""
        piece = self.pieces[at[0]]
        return self._matter(at[0], at[1] + 1, len(piece), piece[at[1]].stream) <= _NEAR_END

    def _of_traces(self) -> list[Found]:
        """One for each process whose traceback is known to be its own, and those at the end of what has no rank."""
        everything = [one for one in self._traces if not one.ignored]
        own: dict[Optional[int], list[Trace]] = {}
        for one in everything:
            own.setdefault(one.rank, []).append(one)
        chosen: list[Found] = []
        for rank, theirs in own.items():
            ending = self._ending(theirs, many=rank is None and self._many())
            found = (self._of_trace(one, rank is not None) for one in ending)
            chosen += [one for one in found if one is not None]
        return chosen

    def _many(self) -> bool:
        """Return True if lines without a rank may be of several processes."""
        count = self._facts.processes or self._facts.tasks
        return count > 1 if count else self._is_launched

    def _ending(self, theirs: Sequence[Trace], *, many: bool) -> list[Trace]:
        """Return the tracebacks at the end of a process, or of several at once: the last one, and those just before it."""
        ending: list[Trace] = []
        for one in reversed(theirs):
            if one.by_launcher:
                ending.append(one)  # it comes after those that it speaks of, however far away
                continue
            later = next((each for each in reversed(ending) if not each.by_launcher), None)
            if later is not None and self._between(one, later) > (_GAP_OF_MANY if many else _GAP_OF_ONE):
                break
            ending.append(one)
        return ending[::-1]

    def _between(self, one: Trace, later: Trace) -> int:
        if one.end[0] != later.at[0]:
            return 0 if self.pieces[one.end[0]].path != self.pieces[later.at[0]].path else _GAP_OF_MANY + 1
        return self._matter(one.end[0], one.end[1], later.at[1], one.stream)

    def _matter(self, number: int, begin: int, end: int, stream: str) -> int:
        """Return how many lines of a process between two of its own say something that is no noise."""
        piece, count = self.pieces[number], 0
        for at in range(begin, min(end, begin + 4000)):
            line = piece[at]
            if line.stream == stream and line.text.strip() and not line.text.startswith((" ", "\t")):
                count += not is_noise(line.text)
        return count

    def _of_trace(self, trace: Trace, ranked: bool) -> Optional[Found]:
        tried = [row for row in ROWS if row.where in ("exception", "any")]
        rows = [row for row in ROWS if row.id == "launcher"] if trace.by_launcher else tried
        said = trace.exceptions[-1:] if trace.by_launcher else trace.exceptions
        own = is_own_code(trace.innermost)  # a line of the user's may quote any words
        # Of a chain the first one that is known; else the last, which ended the process, by where it arose.
        known = [
            (text, row, match)
            for text in (*said, *([] if own else [f"{said[-1]}\n{trace.innermost}"]))
            for row in rows
            if row.id != GENERIC and (match := row.match(text)) and not _only_mentions(text, row)
        ]
        # Another process that is gone is often how a cause, such as a worker's end, is noticed.
        known.sort(key=lambda one: (one[1].role in ("symptom", "consequence"), one[1].id != "wandb"))
        if known and known[0][1].id == "process-failed" and known[0][0] != said[-1]:
            known = []  # the error of that process is told inside
        if not known:
            if trace.by_launcher:
                return None
            last = next(row for row in rows if row.id == GENERIC)
            inner = next((one for one in said[-2::-1] if "Caught " not in one), "") if not own else ""
            text = f"{said[-1].strip()}; behind it: {inner}".replace("\n", " ") if inner else said[-1]
            if re.match(r"[^\n]*:\s*\n", text):  # its first line is a heading
                text = " ".join(text.split())
            match = last.match(text)
            if match is None or text.startswith("SystemExit"):
                return None
            known = [(text, last if own else last._replace(fix=_OF_LIBRARY), match)]
        text, row, match = known[0]
        return Found(
            row,
            {**match.groupdict(), **self._details(row, trace)},
            trace.at,
            trace.rank,
            trace.host,
            trace.evidence(),
            True,
            ranked or self._final(trace),
            trace.frame,
        )

    def _final(self, trace: Trace) -> bool:
        """Return True if next to nothing that matters comes after a traceback of an unknown process."""
        piece = self.pieces[trace.end[0]]
        if not piece.ends and self.pieces[trace.end[0]].path == self.pieces[-1].path:
            return self._many()
        return self._matter(trace.end[0], trace.end[1], len(piece), trace.stream) <= (
            _AFTER * 10 if self._many() else _AFTER
        )

    def _details(self, row: Row, trace: Trace) -> dict[str, Optional[str]]:
        """Return what stands before an exception, and not in it."""
        piece = self.pieces[trace.at[0]]
        if row.id != "device-assert":
            return self._detail_nearby(row, piece, trace.at[1])
        for at in piece.where(b"Assertion `"):
            match = _ASSERTION.search(piece[at].text)
            if match and at < trace.at[1] + _NEAR:
                return {"assertion": match["assertion"]}
        return {}

    def _of_lines(self) -> list[Found]:
        rows = [row for row in ROWS if row.where in ("line", "any", "last")]
        found: list[Found] = []
        for number, piece in enumerate(self.pieces):
            taken: set[int] = set()
            inside = self.inside_traces(number)
            for row in rows:
                for sign in row.literals:
                    if sign:
                        found += self._of_sign(row, sign, number, piece, taken, inside)
        return found

    def inside_traces(self, number: int) -> set[int]:
        """Return the lines of a piece that belong to tracebacks."""
        return {
            at for trace in self._traces if trace.at[0] == number for at in range(trace.at[1], trace.end[1])
        }

    def _of_sign(
        self, row: Row, sign: bytes, number: int, piece: Piece, taken: set[int], inside: set[int]
    ) -> list[Found]:
        found = []
        for at in piece.where(sign, _MOST, _THOROUGH):
            if at in taken or at in inside:
                continue
            line = piece[at]
            match = None if is_remark(line.text) else row.match(line.text)
            if match and row.role in ("job", "host") and is_quoted(line.text, match.start()):
                continue
            counts = not row.must_be_last or self._among_last(number, at)
            if match is None or not (counts or row.id in SETUP):
                continue  # a program may say so, and go on
            taken.add(at)
            values = {**match.groupdict(), **self._detail_nearby(row, piece, at)}
            rank = line.rank
            if rank is None and (values.get("rank") or "").isdigit():
                rank = int(values["rank"] or 0)
            host = line.host or values.get("host") or ""
            found.append(Found(row, values, (number, at), rank, host, (line.text,), False, counts))
        return found

    def _detail_nearby(self, row: Row, piece: Piece, at: int) -> dict[str, Optional[str]]:
        most, pattern = row.nearby
        below = range(at + 1, min(at + 1 + most, len(piece)))
        found = (
            re.match(pattern, piece[place].text)
            for place in below or range(at - 1, max(-1, at - 1 + most), -1)
        )
        return next((match.groupdict() for match in found if match), {})

    def _among_last(self, number: int, at: int) -> bool:
        piece = self.pieces[number]
        if not piece.ends:
            return False
        return self._matter(number, at + 1, len(piece), piece[at].stream) < _LAST * (4 if self._many() else 1)


_OWN = ("slurmgpu: first cause: ", "slurmgpu: fix: ")
"""The end of the script's words on the same logs."""


def last_lines(pieces: Sequence[Piece], most: int, *, outside: bool = False) -> list[str]:
    """Return the last lines that matter, of all logs together: the newest file's last, progress bars and framing left out.

    ``outside``: only what programs say beside tracebacks, and no launcher.
    """
    for several in (pieces[-1:], pieces):
        lines: list[str] = []
        for piece in reversed(several):
            framing = {
                at
                for one in traces([piece])
                if one.by_launcher or outside
                for at in range(one.at[1], one.end[1] + 3 * one.by_launcher)
            }
            at = len(piece) - 1
            while at >= 0 and len(lines) < most and at > len(piece) - 5000:
                text = piece[at].text.rstrip()
                told = not outside and text.startswith(("srun: error", "slurmstepd: error", "slurmgpu: "))
                left_out = not text.strip() or at in framing or text.startswith(_OWN)
                if not left_out and (told or not is_noise(text)):
                    lines.append(text)
                at -= 1
        if len(lines) >= most:
            break
    return lines[::-1]
