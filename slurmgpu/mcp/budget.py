"""The budget of assistants: GPU-hours are reserved before a job is submitted, and given back only if it surely was not.

One file for all servers of a user, changed under a lock. A job is counted as GPUs x time limit, whatever it uses in the end. A
name that the assistant gives each submission (``once``) belongs to one job for ever, so that a call that is repeated submits
nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from slurmgpu.errors import InvalidInput, OutcomeUnknown, PlanError, RunFailed, SlurmGpuError
from slurmgpu.files.run_record import read_run
from slurmgpu.files.settings import Assistants, layer_files, load_settings, state_folder
from slurmgpu.files.trust import Trust, write_atomically
from slurmgpu.models.base import Model

# A holder needs milliseconds; who holds a lock longer hangs on its disk.
_PATIENCE = 20.0


def own_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder slurmgpu/mcp in XDG_STATE_HOME, or in ~/.local/state; made (mode 0700) where it is missing.

    RunFailed where it cannot be made, or is somebody else's.
    """
    folder = state_folder(environ) / "mcp"
    hint = "set XDG_STATE_HOME to a folder of your own"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        there, me = folder.lstat(), os.geteuid()
        # Who may write in slurmgpu's folder, or in that of all states, could put another one in its place.
        above = [one.stat() for one in folder.resolve().parents[:2]]
        movable = any(
            one.st_uid not in (0, me) or (one.st_mode & 0o022 and not one.st_mode & stat.S_ISVTX)
            for one in above
        )
        if not stat.S_ISDIR(there.st_mode) or there.st_uid != me or movable:
            raise RunFailed(
                f"{folder}: budget and calls of assistants are kept there, and it is not your own folder",
                hint=hint,
            )
        if there.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise RunFailed(
            f"{folder}: budget and calls of assistants are kept there, and it cannot be made: {error.strerror}",
            hint=hint,
        ) from None
    return folder


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Hold a lock among all processes that use the folder; RunFailed where it cannot be had: nothing goes on without."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _not_locked(lock, error.strerror or str(error)) from None
    try:
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise _not_locked(lock, f"another process has held it for {_PATIENCE:g} s") from None
                time.sleep(0.01)
            except OSError as error:  # ENOLCK, ENOSYS: some NFS and Lustre mounts
                raise _not_locked(lock, error.strerror or str(error)) from None
        yield
    finally:
        os.close(descriptor)


def _not_locked(lock: Path, why: str) -> RunFailed:
    return RunFailed(
        f"{lock} cannot be locked: {why}",
        hint="without the lock nobody counts what is spent; set XDG_STATE_HOME to a folder on a disk that has locks",
    )


def append(path: Path, text: str) -> None:
    """Add a text to a file that only this user may read; OSError where that fails."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        data = text.encode("utf-8", errors="backslashreplace")
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


_SCHEMA = "slurmgpu.budget/1"
_LARGEST = 64 << 20


class Entry(Model):
    """One submission."""

    state: Literal["reserved", "submitted", "unknown", "refused"]
    """``reserved`` is written before sbatch is called, so no accident goes uncounted; ``refused`` has been given back."""
    seconds: Annotated[int, Field(ge=0)]
    """GPU-seconds: GPUs x time limit x the most starts, over all tasks of an array."""
    asked: str
    """A hash of the request: the same name for something else is a mistake."""
    name: str
    """The job's."""
    run_dir: str
    job_id: int | None = None
    time: str
    """When it was reserved, UTC."""


class _Book(Model):
    schema_: Annotated[Literal["slurmgpu.budget/1"], Field(alias="schema")] = "slurmgpu.budget/1"
    entries: dict[str, Entry] = Field(default_factory=dict)


def hours(seconds: int) -> str:
    """Return GPU-seconds as GPU-hours, never less than they are."""
    return f"{-(-seconds * 100 // 3600) / 100:g}"


class Budget:
    """The book of what was reserved, in the user's state folder."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.path = own_folder(environ) / "budget.json"
        self._lock = self.path.with_name("budget.lock")

    def entries(self) -> dict[str, Entry]:
        """Return all submissions by the names that they were given; RunFailed where the book cannot be read."""
        with alone(self._lock):
            return dict(self._read().entries)

    def spent(self) -> int:
        """GPU-seconds that are reserved."""
        return _sum(self.entries())

    def known(self, once: str, asked: str) -> Entry | None:
        """Return the submission of this name; None where it is free.

        Raises:
            PlanError: the name was given to another job.
            OutcomeUnknown: whether that one was submitted is not known.
        """
        with alone(self._lock):
            return self._known(self._read(), once, asked)

    def reserve(self, once: str, entry: Entry, limit: int) -> Entry | None:
        """Set GPU-seconds aside for a submission; the submission that has this name already, where there is one.

        Raises:
            PlanError: there is not as much left of the ``limit``, or as `known`.
        """
        with alone(self._lock):
            book = self._read()
            found = self._known(book, once, entry.asked)
            if found is not None:
                return found
            spent = _sum(book.entries)
            if spent + entry.seconds > limit:
                raise PlanError(
                    f"budget: the job may use {hours(entry.seconds)} GPU-hours, and of {hours(limit)} (mcp.gpu_hours) "
                    f"{max(limit - spent, 0) // 36 / 100:g} are left",
                    hint="ask for fewer GPUs or less time; more is the user's to allow: mcp.gpu_hours in their settings",
                )
            self._write(book, once, entry)
            return None

    def settle(
        self, once: str, state: Literal["submitted", "unknown", "refused"], job_id: int | None = None
    ) -> None:
        """Note what became of a submission that was reserved; ``refused`` gives its GPU-hours back."""
        with alone(self._lock):
            book = self._read()
            self._write(book, once, book.entries[once].model_copy(update={"state": state, "job_id": job_id}))

    def _known(self, book: _Book, once: str, asked: str) -> Entry | None:
        entry = book.entries.get(once)
        if entry is None or entry.state == "refused":
            return None
        if entry.asked != asked:
            raise PlanError(
                f"once: {once!r} is the name of another submission, of {entry.time} ({entry.name!r})",
                hint="repeat that call with the same arguments, or give this job a name of its own",
            )
        if entry.state == "submitted":
            return entry
        # Nobody has noted how it ended: the run directory may tell.
        try:
            run = read_run(Path(entry.run_dir))
        except SlurmGpuError:
            run = None
        if run is not None and run.state == "submitted" and run.job_id is not None:
            found = entry.model_copy(update={"state": "submitted", "job_id": run.job_id})
            self._write(book, once, found)
            return found
        if run is not None and run.state == "not submitted":
            raise PlanError(
                f"once: {once!r} is the name of a submission that did not reach Slurm",
                hint="give the job another name; the GPU-hours of that one stay reserved",
            )
        raise OutcomeUnknown(
            f"once: {once!r} is being submitted at this moment, or it is not known whether Slurm has that job",
            hint="call again in a minute, with the same name; if this stays so, the user finds out with: "
            f"slurmgpu runs settle {entry.run_dir}",
        )

    def _read(self) -> _Book:
        try:
            with self.path.open("rb") as file:
                data = file.read(_LARGEST)
        except FileNotFoundError:
            return _Book()
        except OSError as error:
            raise RunFailed(f"{self.path} cannot be read: {error.strerror}; nothing is submitted") from None
        try:
            return _Book.model_validate_json(data)
        except ValueError:
            raise RunFailed(
                f"{self.path} is no budget that this version can read; nothing is submitted",
                hint="the user looks into it, or moves it away: then the budget and the names of submissions begin anew",
            ) from None

    def _write(self, book: _Book, once: str, entry: Entry) -> None:
        entries = {**book.entries, once: entry}
        text = json.dumps(
            {"schema": _SCHEMA, "entries": {name: one.model_dump() for name, one in entries.items()}},
            indent=1,
        )
        try:
            write_atomically(self.path, text + "\n")  # its folder is closed to others
        except OSError as error:
            raise RunFailed(
                f"{self.path} cannot be written: {error.strerror}",
                hint="make room there, or set XDG_STATE_HOME to another folder",
            ) from None


def _sum(entries: Mapping[str, Entry]) -> int:
    return sum(entry.seconds for entry in entries.values() if entry.state != "refused")


def new_entry(seconds: int, asked: str, name: str, run_dir: Path) -> Entry:
    """Return a submission that is about to be made."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Entry(state="reserved", seconds=seconds, asked=asked, name=name, run_dir=str(run_dir), time=now)


def allowed() -> Assistants:
    """Return what the user's own settings allow; InvalidInput where somebody else wrote them, or may."""
    settings = load_settings(Path.cwd(), os.environ)
    path = dict(layer_files(settings))["user"]
    foreign = Trust().foreign(path) if path.is_file() else None
    if settings.settings.mcp.allow and foreign is not None:
        raise InvalidInput(
            f"{foreign.path} {foreign.why}: what it allows assistants (mcp) does not count",
            hint="make it a file that only you can write",
        )
    return settings.settings.mcp


def require_allowed(what: str) -> Assistants:
    """Return the same, for an act that must be allowed; PlanError where it is not."""
    rules = allowed()
    if what not in rules.allow:
        raise PlanError(
            f"{what}: the user's settings do not allow it (mcp.allow: {', '.join(rules.allow) or 'nothing'})",
            hint=f"the user allows it with mcp: {{allow: [{what}]}} in their own config.yaml",
        )
    return rules


def limit_of(rules: Assistants) -> int:
    """Return the budget in GPU-seconds."""
    return int(rules.gpu_hours * 3600)
