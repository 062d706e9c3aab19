"""Answers of Slurm that the processes of one user share on one machine: one asks, the others take what it was told.

A folder of the user's own (mode 0700, node-local where there is one) holds the newest answer to each question, the newest
failure, and a lock: ten watchers cost the controller what one does. An answer counts as long as whoever wants it says, by a
clock that nobody can set; one from before a submission or a cancellation of the user's own counts no more. What cannot be
read, is of another start of the machine, or not whole, is as if it were not there, and without a folder everybody asks.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import stat
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import NamedTuple

from slurmgpu.slurm.text import SEPARATOR, Answer, meaning_of

__all__ = ["FLOOR", "Shelf", "changes", "note_change", "only_reads", "own_folder", "shelf_here"]

SCHEMA = "slurmgpu.answer/1"
FLOOR = 2.0
"""Seconds within which nobody asks the same again, unless the settings say more."""

_READING = frozenset({"squeue", "sacct", "sstat", "sinfo", "sprio", "sshare"})
# A command of ours that does not answer is ended after 60 s; who holds the lock longer has lost something else.
_LONGEST_TURN = 75.0
_LOOK = 0.05
_LARGEST = 32 * 2**20
_KEPT_SECONDS, _MOST_FILES = 7 * 86400.0, 300
# What, besides its words, decides what a command answers.
_ASKED_BY = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "TZ")
# The start of an accounting question moves with the clock; the question is the same.
_SINCE = "--starttime="


def _now() -> float:
    """Seconds since the machine started, for all its processes, asleep or not: no change of its time moves it."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


class _Kept(NamedTuple):
    """An answer as a file holds it."""

    answer: Answer
    asked: float | None
    """When it was asked for, by `_now`; None in another start of the machine."""
    took: float
    wall: float
    """The same by the clock on the wall, seconds since 1970, which may have been set since."""

    def age(self) -> float:
        """Seconds since it was asked for: by the wall's clock where the machine has been started since."""
        return max(0.0, time.time() - self.wall if self.asked is None else _now() - self.asked)


@dataclass
class Shelf:
    """Where a process looks for answers before it asks, and what it takes."""

    folder: Path | None
    """None: nothing is shared."""
    floor: float = FLOOR
    """The least seconds between two questions."""
    good_for: float = FLOOR
    """The age, in seconds, up to which an answer will do; never less than the floor."""
    after: float = 0.0
    """Only what was asked for after this moment counts (`only_from_now`)."""
    kept_only: bool = False
    """Ask nobody: the newest answers that there are, however old."""
    ages: list[float] = field(default_factory=list)
    """Age of each answer that was handed out, in seconds; 0.0 for one that was asked for."""
    heard: dict[str, float] = field(default_factory=dict)
    """When the newest answer of each command was complete, on the clock of `after`."""

    def only_from_now(self) -> None:
        """Take no answer to what was asked before this moment."""
        self.after = _now()

    def only_since(self, command: str) -> None:
        """Take no answer to what was asked before the one of this command was complete."""
        self.after = max(self.after, self.heard.get(command, 0.0))

    def answer(self, argv: Sequence[str], env: Mapping[str, str], ask: Callable[[], Answer]) -> Answer | None:
        """Return the newest answer that will do, or else a new one, which the others may take then.

        None with ``kept_only`` where there never was one.
        """
        if self.folder is None:
            if self.kept_only:
                return None
            answer = ask()
            self._note(argv[0], 0.0, _now())
            return answer
        came = _now()
        place = self.folder / _name_of(argv, env)
        if self.kept_only:
            kept = _read(place.with_suffix(".answer"))
            return self._taken(kept) if kept else None
        kept = self._found(place, argv, came)
        if kept is not None:
            return self._taken(kept)
        with _turn(place.with_suffix(".lock")):
            kept = self._found(place, argv, came)
            if kept is not None:
                return self._taken(kept)
            began, wall = _now(), time.time()
            answer = ask()
            took = _now() - began
            self._note(argv[0], 0.0, began + took)
            _keep(place, _Kept(replace(answer, argv=tuple(argv)), began, took, wall))
            return answer

    def _taken(self, kept: _Kept) -> Answer:
        self._note(kept.answer.argv[0], kept.age(), (kept.asked or 0.0) + kept.took)
        return kept.answer

    def _note(self, command: str, age: float, complete: float) -> None:
        self.ages.append(age)
        self.heard[command] = complete

    def _found(self, place: Path, argv: Sequence[str], came: float) -> _Kept | None:
        """Return what will do of what there is, for one who came at a moment (and may have waited since)."""
        wanted = tuple(argv)
        kept = _read(place.with_suffix(".answer"))
        if kept and kept.asked is not None and kept.answer.argv == wanted:
            after = max(self.after, _changed(place.parent))
            young = came - kept.asked < max(self.good_for, self.floor)
            if young and after <= kept.asked <= _now():
                return kept
        # Who waited while another was told nothing has been told nothing, too, and asks again at the next look.
        kept = _read(place.with_suffix(".failure"))
        if kept is None or kept.asked is None or kept.asked > _now() or kept.answer.argv != wanted:
            return None
        return kept if kept.asked + kept.took >= max(came - self.floor, self.after) else None


def shelf_here(floor: float = FLOOR, env: Mapping[str, str] | None = None) -> Shelf:
    """Return the shelf of this user on this machine, for one look at what is so now."""
    return Shelf(own_folder(os.environ if env is None else env), floor, floor)


def own_folder(environ: Mapping[str, str]) -> Path | None:
    """Return a folder that this user alone may enter, made where it is missing; None where there can be none.

    In the folder that the system makes for a user's session, else in the machine's temporary folder, else in the user's
    cache, which machines may share: there each has its own.
    """
    me = os.geteuid()
    cache = environ.get("XDG_CACHE_HOME") or (
        os.path.join(environ["HOME"], ".cache") if environ.get("HOME") else ""  # noqa: PTH118
    )
    places = (
        (environ.get("XDG_RUNTIME_DIR") or f"/run/user/{me}", "slurmgpu"),
        (environ.get("TMPDIR") or "/tmp", f"slurmgpu-{me}"),
        (cache and f"{cache}/slurmgpu", f"answers-{os.uname().nodename.partition('.')[0]}"),
    )
    for above, name in places:
        folder = Path(above, name)
        if above.startswith("/") and _is_own(folder, above, me):
            return folder
    return None


def _is_own(folder: Path, above: str, me: int) -> bool:
    try:
        if not folder.is_dir():
            if above.endswith("/slurmgpu"):
                Path(above).mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)  # another may have made it this moment
        there = folder.lstat()
    except OSError:
        return False
    # A folder of this name may have been laid into /tmp by somebody else, or lead elsewhere.
    return stat.S_ISDIR(there.st_mode) and there.st_uid == me and not there.st_mode & 0o077


def only_reads(argv: Sequence[str]) -> bool:
    """Return True if the answer to a command may be shared: it shows, and nothing is different after it."""
    shows = argv[0] in {"scontrol", "sacctmgr"} and "show" in argv
    return shows or argv[0] in _READING


def changes(argv: Sequence[str]) -> bool:
    """Return True if what Slurm said before such a command may be old after it."""
    if argv[0] == "scontrol":
        return not {"show", "ping"} & set(argv[1:3])
    return argv[0] == "scancel" or (argv[0] == "sbatch" and "--test-only" not in argv)


def note_change(env: Mapping[str, str] | None = None) -> None:
    """Whoever shares answers takes none of before this moment: something has been asked of Slurm that changes them."""
    folder = own_folder(os.environ if env is None else env)
    if folder is not None:
        _write(folder / "changed", json.dumps({"boot": _boot(), "at": _now()}).encode())


def _changed(folder: Path) -> float:
    try:
        told = json.loads((folder / "changed").read_bytes()[:200])
        return float(told["at"]) if told["boot"] == _boot() and told["at"] <= _now() else 0.0
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def _name_of(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Return the name of a question's files: the words, the cluster that is asked, by which program."""
    words = [_span(word) for word in argv]
    conf = env.get("SLURM_CONF") or "/etc/slurm/slurm.conf"
    try:
        there = Path(conf).stat()
        which = [there.st_ino, there.st_mtime_ns]
    except OSError:
        which = []
    program = shutil.which(argv[0], path=env.get("PATH"))
    told = [words, program, which, [env.get(name) for name in _ASKED_BY], os.geteuid()]
    digest = hashlib.sha256(json.dumps(told).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{argv[0]}-{digest[:24]}"


def _span(word: str) -> str:
    word = word.replace(SEPARATOR, "\x1f")
    if not word.startswith(_SINCE):
        return word
    try:
        began = datetime.fromisoformat(word.removeprefix(_SINCE)).timestamp()
    except ValueError:
        return word
    return f"{_SINCE}-{round((time.time() - began) / 3600)}h"


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Be the one who asks; others wait, but not for one that has been stopped or has lost itself."""
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield  # a full disk, a folder that is gone: asking is all that is left
        return
    try:
        until = _now() + _LONGEST_TURN
        while not _locked(number) and _now() < until and not _is_stopped(number):
            time.sleep(_LOOK)
        yield
    finally:
        os.close(number)


def _locked(number: int) -> bool:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # no locks on this file system
    with suppress(OSError):
        os.ftruncate(number, 0)
        os.pwrite(number, str(os.getpid()).encode(), 0)
    return True


def _is_stopped(number: int) -> bool:
    """Return True if who holds the lock has been stopped (Ctrl-Z) in the middle of asking."""
    try:
        holder = int(os.pread(number, 20, 0))
        return Path(f"/proc/{holder}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, ValueError, IndexError):
        return False


def _keep(place: Path, kept: _Kept) -> None:
    answer = kept.answer
    suffix = ".answer" if meaning_of(answer) == "answered" else ".failure"
    out, err = (text.encode("utf-8", "surrogateescape") for text in (answer.stdout, answer.stderr))
    body = zlib.compress(out + err, 1)
    if len(body) > _LARGEST:
        return
    head = {
        "schema": SCHEMA,
        "boot": _boot(),
        "asked": kept.asked,
        "took": kept.took,
        "wall": kept.wall,
        "argv": answer.argv,
        "rc": answer.rc,
        "separator": SEPARATOR,
        "stdout": len(out),
        "length": len(body),
        "sum": zlib.crc32(body),
    }
    _write(place.with_suffix(suffix), json.dumps(head).encode() + b"\n" + body)
    if suffix == ".answer":
        with suppress(OSError):
            place.with_suffix(".failure").unlink(missing_ok=True)
    _sweep(place.parent)


def _write(path: Path, content: bytes) -> None:
    """Write a file that is whole or not there; what cannot be written is not shared."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}-{_now():.6f}")
    try:
        number = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(number, "wb") as file:
            file.write(content)
        unfinished.replace(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def _read(path: Path) -> _Kept | None:
    try:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(number, "rb") as file:
            there = os.fstat(file.fileno())
            if (
                there.st_uid != os.geteuid()
                or not stat.S_ISREG(there.st_mode)
                or there.st_size > 2 * _LARGEST
            ):
                return None
            head, _, body = file.read().partition(b"\n")
        told = json.loads(head)
        if told["schema"] != SCHEMA or told["length"] != len(body) or told["sum"] != zlib.crc32(body):
            return None
        out, at = zlib.decompress(body), int(told["stdout"])
        separator = str(told["separator"])
        texts = (part.decode("utf-8", "surrogateescape") for part in (out[:at], out[at:]))
        stdout, stderr = (text.replace(separator, SEPARATOR) for text in texts)
        argv = tuple(str(word).replace(separator, SEPARATOR) for word in told["argv"])
        rc = None if told["rc"] is None else int(told["rc"])
        asked = float(told["asked"]) if told["boot"] == _boot() else None
        return _Kept(Answer(argv, rc, stdout, stderr), asked, float(told["took"]), float(told["wall"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zlib.error):
        return None


_SWEPT: set[Path] = set()


def _sweep(folder: Path) -> None:
    """Take away what nobody has asked for in a week, and the oldest beyond some hundreds: once in a process."""
    if folder in _SWEPT:
        return
    _SWEPT.add(folder)
    with suppress(OSError):
        found = []
        for one in folder.iterdir():
            with suppress(FileNotFoundError):  # another process may take one away at this moment
                found.append((one.stat().st_mtime, one))
        for number, (changed, path) in enumerate(sorted(found, reverse=True)):
            if number >= _MOST_FILES or time.time() - changed > _KEPT_SECONDS:
                path.unlink(missing_ok=True)
