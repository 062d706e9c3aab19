"""One writer per checkpoint folder: a lock that a requeued job takes over from a dead one.

The lock is the folder ``checkpoints/lock``, since making a folder is exclusive on every file system, NFS
included, where file locks are not to be relied on. Its ``owner.json`` says who has it, and its time of change is
the heartbeat. An owner is dead when its process is gone (seen on the same machine only), when it is an earlier
start of this same Slurm job, or when its heart has not beaten for a while.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Optional, Union

from ..errors import TakenOver, TrainingError
from ..files import patiently, read_json, write_json

__all__ = ["Hold", "Lock"]

_Record = dict[str, Union[str, float]]  # of an owner, as JSON holds it
_OWNER = "owner.json"
BEAT = 15.0  # seconds between two heartbeats
_SILENT = 4 * BEAT  # an owner that is silent for so long is dead


class Hold:
    """The view of any rank on the lock: whether the run that got it, as ``token``, still has it."""

    def __init__(self, folder: Path, token: str) -> None:
        self._path = folder / "lock"
        self.token = token

    def check(self) -> None:
        """Raise unless the lock is still this run's.

        Raises:
            TakenOver: another run has it, or has had it.
            OSError: who has it cannot be read; nothing may be written then, either.
        """
        try:
            owner = patiently(self._owner_there)
        except FileNotFoundError:
            owner = {}
        if owner.get("token") == self.token:
            return
        # Nobody takes a lock away but to have it: without an owner another run has come, and gone again.
        whom = (
            _describe(owner) if owner else f"another run, which is gone ({self._path / _OWNER} is not there)"
        )
        raise TakenOver(f"the checkpoints were taken over by {whom}: nothing more is written")

    def _read(self) -> _Record:
        return read_json(self._path / _OWNER)

    def _owner_there(self) -> _Record:
        """Return who has the lock; FileNotFoundError: not written yet, or by a process that died in between."""
        path = self._path / _OWNER
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError):
            owner = json.loads(path.read_bytes())
            if owner and isinstance(owner, dict):
                return owner
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


class Lock(Hold):
    """The right to write into a folder; ``say`` gets sentences for people."""

    def __init__(self, folder: Path, environment: Mapping[str, str], say: Callable[[str], None]) -> None:
        super().__init__(folder, secrets.token_hex(8))
        self._say = say
        self._owner: _Record = {
            "token": self.token,
            "host": socket.gethostname(),
            "machine": _machine(),
            "pid": os.getpid(),
            "started": _start_of(os.getpid()),
            "job_id": _job(environment),
            "restart": int(environment.get("SLURM_RESTART_COUNT") or 0),
            "time": time.time(),
        }
        self._closed = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="lock", daemon=True)

    def acquire(self) -> None:
        """Get the lock, from a dead owner if need be.

        Raises:
            TrainingError: another run has it, and is alive.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        while not self._try():
            pass
        self._heart.start()

    def _try(self) -> bool:
        """One attempt; False: things have changed meanwhile, look again."""
        with contextlib.suppress(FileExistsError):  # or what follows would have this error as its cause
            self._path.mkdir()
            try:
                write_json(self._path / _OWNER, self._owner)
            except BaseException:  # a disk that is full: nobody is to wait for an owner who never comes
                shutil.rmtree(self._path, ignore_errors=True)
                raise
            return True
        return self._take_over()

    def _take_over(self) -> bool:
        owner = self._read()
        dead = self._verdict(owner)
        if dead is None:
            return False
        # Only one of several that see the same dead owner may follow it.
        claim = self._path / f"after-{owner.get('token', 'nobody')}"
        try:
            claim.mkdir()
        except FileNotFoundError:
            return False
        except FileExistsError:
            # Its heart is the claim's time: whoever made it has had the time to finish, or died.
            if self._silent(claim):
                _remove(claim)
            return False
        try:
            if self._read().get("token") != owner.get("token"):
                return False  # another has followed already, and given the claim free
            write_json(self._path / _OWNER, self._owner)
        finally:
            _remove(claim)
        self._say(f"note: took the checkpoints over from {_describe(owner)}: {dead}")
        return True

    def _verdict(self, owner: _Record) -> Optional[str]:
        """Return why the owner is dead; None when the lock has changed; an error when it is alive."""
        own = self._owner
        if own["machine"] and owner.get("machine") == own["machine"]:
            if _start_of(int(owner["pid"])) != owner["started"]:
                return "its process is gone"
            raise self._taken(owner)
        same = owner.get("job_id") and owner.get("job_id") == own["job_id"]
        if same and int(owner.get("restart", 0)) < int(own["restart"]):
            return "it is an earlier start of this job"
        self._say(f"note: checkpoints are locked by {_describe(owner)}; waiting to see whether it is alive")
        if not self._silent(self._path / _OWNER):
            if self._read().get("token") == owner.get("token"):
                raise self._taken(owner)
            return None
        return f"no sign of life for {_SILENT:.0f} s"

    def _silent(self, path: Path) -> bool:
        """Watch a while whether the file or folder stays as it is (by its own clock, not by ours)."""
        before = _changed(path)
        end = time.monotonic() + _SILENT
        while time.monotonic() < end:
            time.sleep(min(BEAT / 10, 1.0))
            if _changed(path) != before:
                return False
        return True

    def _taken(self, owner: _Record) -> TrainingError:
        return TrainingError(
            f"{self._path.parent} is being written by {_describe(owner)}, which is alive: two runs cannot share "
            "a run directory; wait for it or cancel it, or use another run directory"
        )

    def _beat(self) -> None:
        while not self._closed.wait(BEAT):
            try:
                if self._read().get("token") == self.token:
                    os.utime(self._path / _OWNER)
            except OSError:
                continue  # a file system that hiccups: the next beat may come through

    def release(self) -> None:
        """Give the lock back."""
        self._closed.set()
        if self._read().get("token") == self.token:
            shutil.rmtree(self._path, ignore_errors=True)


def _remove(claim: Path) -> None:
    with contextlib.suppress(OSError):  # another took it for that of a dead one
        claim.rmdir()


def _job(environment: Mapping[str, str]) -> str:
    array = environment.get("SLURM_ARRAY_JOB_ID")
    task = environment.get("SLURM_ARRAY_TASK_ID", "")
    return f"{array}_{task}" if array else environment.get("SLURM_JOB_ID", "")


def _machine() -> str:
    """This boot of this machine, and its PID namespace, outside of which ids mean nothing; empty without /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = os.readlink("/proc/self/ns/pid")  # noqa: PTH115  # no file, only a text in angle brackets
    except OSError:
        return ""
    return f"{socket.gethostname()} {boot} {space}"


def _start_of(pid: int) -> str:
    """When a process started, in the kernel's ticks; empty when there is none (or it is a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _changed(path: Path) -> int:
    """Return the time of change in ns; opened anew, so that NFS asks its server. -1: not there."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return -1
    try:
        return os.fstat(descriptor).st_mtime_ns
    finally:
        os.close(descriptor)


def _describe(owner: _Record) -> str:
    if not owner:
        return "an unknown process"
    job = f"job {owner['job_id']}, " if owner.get("job_id") else ""
    return f"{job}process {owner.get('pid')} on {owner.get('host')}"
