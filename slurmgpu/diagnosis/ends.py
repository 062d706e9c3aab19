"""Reports of launchers on how processes ended: srun, torchrun (and accelerate, which uses it), mpirun."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import NamedTuple, Optional

from .text import Piece
from .traces import Place, is_quoted

__all__ = ["End", "ends", "first_host", "moment_in"]


class End(NamedTuple):
    """One process that ended badly, or several that did so together."""

    at: Place
    by: str
    """``torchrun``, ``srun``, ``mpirun`` or ``deepspeed``."""
    rank: Optional[int]
    """Of srun the task."""
    host: str
    code: Optional[int] = None
    signal: Optional[int] = None
    moment: Optional[datetime] = None
    root: bool = False
    """True if torchrun saw it as the first."""
    together: int = 1
    """Number of processes that ended so; this is the first of them."""
    memory: bool = False
    """True if Slurm says that it was out of memory."""

    @property
    def told_to(self) -> bool:
        """True if somebody else ended it, as launchers do once one process has failed."""
        return self.signal in (signal.SIGTERM, signal.SIGINT) or self.code in (143, 130)

    @property
    def hard(self) -> bool:
        """True if it had no chance to say anything."""
        return self.memory or self.signal in _HARD

    def words(self) -> str:
        """Return its end in words."""
        if self.memory:
            return "out of memory"
        return f"signal {self.signal}" if self.signal else f"exit code {self.code}"


_HARD = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
_SRUN = re.compile(
    r"srun: error: (?P<host>[^:\s]+): tasks? (?P<tasks>[\d,\-\[\]]+): (?P<how>Exited with exit code (?P<code>\d+)|[A-Z][\w ]+)"
)
# srun's words are those of strsignal(3).
_WORDS = {
    "Killed": signal.SIGKILL,
    "Terminated": signal.SIGTERM,
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
    "Floating point exception": signal.SIGFPE,
    "Interrupt": signal.SIGINT,
    "Hangup": signal.SIGHUP,
    "User defined signal 1": signal.SIGUSR1,
    "User defined signal 2": signal.SIGUSR2,
}
_FIELD = re.compile(r"^\s+(?P<name>time|host|rank|exitcode|error_file|traceback)\s*: (?P<value>.*)$")
_MPI = re.compile(
    r"(?:process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on signal (?P<signal>\d+)"
    r"|Process name: \[\[\d+,\d+\],(?P<rank2>\d+)\]|Process name: \[prterun-\S+,(?P<rank3>\d+)\])"
)
_HYDRA = re.compile(r"=\s+RANK (?P<rank>\d+) PID \d+ RUNNING AT (?P<host>\S+)")


def ends(pieces: Sequence[Piece]) -> list[End]:
    """Return what launchers say, in the order of the files."""
    found: list[End] = []
    for number, piece in enumerate(pieces):
        found += _of_srun(piece, number)
        found += _of_torchrun(piece, number)
        found += _of_mpirun(piece, number)
        found += _of_deepspeed(piece, number)
    return sorted(found, key=lambda end: end.at)


def _of_srun(piece: Piece, number: int) -> Iterator[End]:
    # Of --wait, and of --kill-on-bad-exit.
    marks = (b"srun: First task exited ", b"_step_signal: Terminating StepId=")
    given_up = next((at for mark in marks for at in piece.where(mark, 1)), None)
    for at in piece.where(b"srun: error: "):
        match = _SRUN.search(piece[at].text)
        if not match or is_quoted(piece[at].text, match.start()):
            continue
        tasks = _numbers(match["tasks"])
        how = match["how"].partition("(")[0].strip()
        memory = how.lower().startswith("out of memory")
        killed = _WORDS.get(how)
        if not match["code"] and killed is None and not memory:
            continue
        if killed == signal.SIGKILL and given_up is not None and at > given_up:
            killed = signal.SIGTERM  # it did not listen when srun ended it, long after another
        code = int(match["code"]) if match["code"] else None
        yield End(
            (number, at),
            "srun",
            tasks[0] if tasks else None,
            match["host"],
            code,
            killed,
            together=len(tasks) or 1,
            memory=memory,
        )


def _numbers(text: str) -> list[int]:
    """Return the tasks of a list such as ``0-2,5``."""
    found: list[int] = []
    for part in text.strip("[]").split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found += range(
                int(first), min(int(last) if last.isdigit() else int(first), int(first) + 65536) + 1
            )
    return found


def _of_torchrun(piece: Piece, number: int) -> Iterator[End]:
    """Yield the blocks with Failures and Root Cause that ChildFailedError prints, a block for each failed process."""
    roots = list(piece.where(b"Root Cause (first obs"))
    for at in piece.where(b"  exitcode  : ", 2000):
        block: dict[str, str] = {}
        for line in range(max(0, at - 8), min(at + 6, len(piece))):
            match = _FIELD.match(piece[line].text)
            if (
                match
                and (match["name"] != "time" or line < at)
                and (line >= at or match["name"] in ("time", "host", "rank"))
            ):
                block.setdefault(match["name"], match["value"]) if line >= at else block.update(
                    {match["name"]: match["value"]}
                )
        code = re.match(r"(-?\d+)", block.get("exitcode", ""))
        rank = re.match(r"(\d+) \(local_rank", block.get("rank", ""))
        if not code:
            continue
        value = int(code[1])
        # The root cause's block stands behind its headline, with nothing between.
        root = any(0 < at - head <= 9 for head in roots)
        yield End(
            (number, at),
            "torchrun",
            int(rank[1]) if rank else None,
            block.get("host", "").strip(),
            None if value < 0 else value,
            -value if value < 0 else None,
            _local(block.get("time", ""), "%Y-%m-%d_%H:%M:%S"),
            root,
        )


def _of_deepspeed(piece: Piece, number: int) -> Iterator[End]:
    """Yield the process that DeepSpeed's launcher saw ending first, for which it ended the others.

    The command in its line is always that of the node's last process (launch.py): its --local_rank says nothing.
    """
    for at in piece.where(b" exits with return code = ", 1):
        match = re.search(r" exits with return code = (-?)(\d+)", piece[at].text)
        if match:
            status = int(match[2])
            yield End((number, at), "deepspeed", None, "", *((None, status) if match[1] else (status, None)))


def _of_mpirun(piece: Piece, number: int) -> Iterator[End]:
    for at in (*piece.where(b"exited on signal"), *piece.where(b"Process name: [")):
        match = _MPI.search(piece[at].text)
        if not match:
            continue
        rank = match["rank"] or match["rank2"] or match["rank3"]
        near = " ".join(piece[i].text for i in range(at, min(at + 3, len(piece))))
        code = re.search(r"Exit code:\s+(\d+)", near)
        killed = int(match["signal"]) if match["signal"] else None
        yield End(
            (number, at),
            "mpirun",
            int(rank),
            (match["host"] or "").strip(","),
            int(code[1]) if code else None,
            killed,
        )
    for at in piece.where(b" RUNNING AT "):
        match = _HYDRA.search(piece[at].text)
        near = " ".join(piece[i].text for i in range(at, min(at + 4, len(piece))))
        how = re.search(r"KILLED BY SIGNAL: (\d+)|EXIT CODE: (\d+)|EXIT STATUS: (\d+)", near)
        if match and how:
            status = how[2] or how[3]
            killed = int(how[1]) if how[1] else None
            yield End(
                (number, at),
                "mpirun",
                int(match["rank"]),
                match["host"],
                int(status) if status else None,
                killed,
            )


def first_host(pieces: Sequence[Piece], rank: int) -> str:
    """Return the host of a rank by what NCCL or the training wrote before its lines; empty where nothing tells."""
    for piece in pieces:
        for at in piece.where(f"[rank {rank} on ".encode(), 1):
            if piece[at].rank == rank and piece[at].host:
                return piece[at].host
    return ""


_MOMENTS = (
    (re.compile(r"(\d{4}-\d\d-\d\d)[ T_](\d\d:\d\d:\d\d)"), "%Y-%m-%d %H:%M:%S"),
    (re.compile(r"\[?[EWIF](\d{2})(\d{2}) (\d\d:\d\d:\d\d)"), ""),
    (re.compile(r"\[?[EWIF](\d{1,2}?)(\d{2}) (\d\d:\d\d:\d\d)"), ""),
)


def moment_in(text: str, now: datetime) -> Optional[datetime]:
    """The moment that a line begins with or names, of this machine's zone; glog's has no year, so it is the last such day."""
    match = _MOMENTS[0][0].search(text)
    if match:
        return _local(f"{match[1]} {match[2]}", _MOMENTS[0][1])
    for pattern, _ in _MOMENTS[1:]:
        match = pattern.search(text)
        if match:
            found = _local(f"{now.year}-{match[1]}-{match[2]} {match[3]}", "%Y-%m-%d %H:%M:%S")
            if found is not None and (found - now).days > 1:
                found = found.replace(year=now.year - 1)
            return found
    return None


def _local(text: str, form: str) -> Optional[datetime]:
    try:
        return datetime.strptime(text, form).astimezone(timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None
