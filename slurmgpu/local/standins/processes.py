"""Processes below this one: listing, signalling, ending and reaping them.

torchrun starts its workers in sessions of their own, so a process group does not hold a job together. On
Linux a subreaper does: whoever loses its parent becomes a child of this process, and nothing can leave the
tree. Elsewhere the tree is what ``ps`` shows, which is the best there is.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = [
    "Wakeups",
    "become_subreaper",
    "descendants",
    "die_with_parent",
    "exit_code",
    "kill_all",
    "kill_below",
    "processes_to_ask",
    "reap",
    "send",
]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def become_subreaper() -> None:
    """Make every orphan below this process its child (Linux, prctl(2))."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signum: int, parent: int) -> None:
    """Get ``signum`` when the parent ends, at once if it has ended already (Linux, prctl(2))."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        os.kill(os.getpid(), signum)


def _table() -> Iterator[tuple[int, int]]:
    """Yield (pid, parent) of every process that is not a zombie."""
    if not sys.platform.startswith("linux"):
        listing = subprocess.run(
            ["ps", "-axo", "pid=,ppid=,stat="], capture_output=True, text=True, check=False
        )
        for line in listing.stdout.splitlines():
            pid, parent, state = line.split(None, 2)
            if not state.startswith("Z"):
                yield int(pid), int(parent)
        return
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{name}/stat").read_bytes()
                # The name of the command may hold blanks and parentheses: what follows the last one counts.
                state, parent = stat.rpartition(b")")[2].split()[:2]
                if state not in (b"Z", b"X"):
                    yield int(name), int(parent)


def _children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for pid, parent in _table():
        children.setdefault(parent, []).append(pid)
    return children


def descendants(root: int) -> list[int]:
    """Return the living processes below ``root``, parents first."""
    children = _children()
    found = list(children.get(root, ()))
    for pid in found:  # grows while it is walked
        found.extend(children.get(pid, ()))
    return found


def _is_srun(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"srun" in words[:5] and any(word.endswith(b"standins/__main__.py") for word in words[:5])


def processes_to_ask(root: int) -> list[int]:
    """Return the processes below ``root`` to which Slurm would send a cancelled job's TERM.

    Of a step these are only the tasks: a launcher passes the signal on and must not get it twice, and a data loader's
    workers must live while their trainer saves. The stand-in for srun ends when its tasks do.
    """
    children = _children()
    found: list[int] = []

    def visit(pid: int) -> None:
        for child in children.get(pid, ()):
            if _is_srun(child):
                found.extend(children.get(child, ()))
            else:
                found.append(child)
                visit(child)

    visit(root)
    return found


def send(signum: int, pids: Iterable[int]) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def reap() -> Iterator[tuple[int, int]]:
    """Collect every child that has ended: yields (pid, wait status)."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def exit_code(status: int) -> int:
    """Turn a wait status into a shell's exit code: 128 + signal for a process that was killed."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)


def kill_below(known: Iterable[int] = ()) -> bool:
    """Kill every process below this one, and without a subreaper the ``known`` ones; return whether there was any."""
    left = descendants(os.getpid())
    send(signal.SIGKILL, left if sys.platform.startswith("linux") else {*left, *known})
    return bool(left)


def kill_all(limit: float = 10.0) -> None:
    """Kill and reap what is below this process until nothing is left, for ``limit`` seconds at most.

    In a loop, because a process may start another one meanwhile; limited, because one that waits for a dead file server
    cannot be killed.
    """
    deadline = time.monotonic() + limit
    while kill_below() and time.monotonic() < deadline:
        time.sleep(0.01)
        for _ in reap():
            pass


class Wakeups:
    """Waits for signals without losing one that comes a moment too early (a self-pipe)."""

    def __init__(self, signals: Iterable[int]) -> None:
        self.fd, write_end = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for signum in (*signals, signal.SIGCHLD):
            signal.signal(signum, lambda _signum, _frame: None)

    def wait(self, timeout: float | None, others: Iterable[int] = ()) -> tuple[list[int], list[int]]:
        """Wait up to ``timeout`` seconds; return the signals that came and the other descriptors to read."""
        ready, _, _ = select.select([self.fd, *others], [], [], timeout)
        signals: list[int] = []
        if self.fd in ready:
            ready.remove(self.fd)
            with contextlib.suppress(BlockingIOError):
                signals = [signum for signum in os.read(self.fd, 4096) if signum != signal.SIGCHLD]
        return signals, ready
