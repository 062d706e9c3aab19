"""The record of a sandbox in ``state.json`` of its folder, and the folders of all sandboxes."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from slurmgpu.errors import InvalidInput
from slurmgpu.files.settings import state_folder
from slurmgpu.files.trust import Trust, write_atomically
from slurmgpu.models.base import Model
from slurmgpu.sandbox.configuration import Shape
from slurmgpu.sandbox.processes import Process, is_running
from slurmgpu.sandbox.programs import SandboxFailed
from slurmgpu.sandbox.supervisor import PARENTS, parents_of

__all__ = ["State", "folder_of", "known_sandboxes", "locked", "note_parents", "read_state", "write_state"]

NAME = re.compile(r"[a-z][a-z0-9-]{0,29}\Z")
# A Unix socket's path may have 107 bytes; the longest of ours is mariadb.sock.
LONGEST_FOLDER = 107 - len("/mariadb.sock")


class State(Model):
    """A sandbox as its starter wrote it down."""

    schema_name: Literal["slurmgpu.sandbox/1"] = "slurmgpu.sandbox/1"
    name: str
    cluster: str
    since: datetime.datetime
    until: datetime.datetime | None = None
    version: str
    accounting: bool
    shape: Shape
    ports: tuple[int, ...]
    """The ports that its daemons listen on, the controller's first."""
    token: str
    supervisor: Process
    ready: bool = False
    faults: tuple[str, ...] = ()
    preemptors: tuple[str, ...] = ()
    """Jobs that a fault has submitted, to be cancelled when it is healed."""

    @property
    def condition(self) -> Literal["alive", "starting", "crashed"]:
        """Return its condition: it has crashed if its supervisor is gone."""
        if not is_running(self.supervisor):
            return "crashed"
        return "alive" if self.ready else "starting"


def base_folder() -> Path:
    """Return the folder of this user's sandboxes: slurmgpu/sandbox in XDG_STATE_HOME, or in ~/.local/state.

    Not in XDG_RUNTIME_DIR, which is emptied when the user logs out, while the daemons go on.
    """
    base = state_folder(os.environ) / "sandbox"
    for folder in (base.parent, base):
        _check_own(folder)
    return base


def _check_own(folder: Path) -> None:
    """Raise SandboxFailed for a folder that somebody else made, and could put another sandbox in.

    Programs in a sandbox's folder run as its user: Slurm's commands load the plugins that its slurm.conf names.
    """
    foreign = Trust().foreign(folder)
    if foreign is not None:
        raise SandboxFailed(
            f"the folder for sandboxes, {folder}, {foreign.why}",
            hint="set XDG_STATE_HOME to a folder of your own, on a local disk",
        )


def folder_of(name: str) -> Path:
    """Return the folder of the sandbox of this name; raise InvalidInput for an impossible name or path."""
    if not NAME.match(name):
        raise InvalidInput(
            f"--name {name!r}: a sandbox's name is lower-case letters, digits and -, begins with a letter, "
            "and has at most 30"
        )
    folder = base_folder() / name
    _check_own(folder)
    if len(os.fsencode(folder)) > LONGEST_FOLDER:
        raise InvalidInput(
            f"the sandbox's folder {folder} is too long for Unix sockets (at most {LONGEST_FOLDER} bytes)",
            hint="set XDG_STATE_HOME to a shorter folder on a local disk, or give a shorter --name",
        )
    if re.search(r"[\s\"'#\\=,%]", str(folder)):
        raise InvalidInput(
            f"the sandbox's folder {str(folder)!r} has characters that Slurm's configuration cannot hold",
            hint="set XDG_STATE_HOME to a folder without blanks, quotes, #, %, = and commas",
        )
    return folder


@contextmanager
def locked() -> Iterator[list[Path]]:
    """Lock all sandboxes of this user, so that two commands do not claim or clean up the same one.

    Yields the folders that had to be made, the innermost first. The lock is on the folder itself, so no file is left.
    """
    base = base_folder()
    while True:
        made = [path for path in (base, *base.parents) if not path.exists()]
        for attempts_left in range(5, -1, -1):
            with _usable(base):
                try:
                    for folder in (base.parent, base):
                        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                    handle = os.open(base, os.O_RDONLY)
                    break
                except FileNotFoundError:
                    # Another command has just removed it, or a folder around it, with its last sandbox.
                    if not attempts_left:
                        raise
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            # While we waited, its last sandbox may have ended, and taken the folder along.
            if base.exists() and os.path.samestat(os.fstat(handle), base.stat()):
                yield made
                return
        finally:
            os.close(handle)


def note_parents(folder: Path, made: list[Path]) -> None:
    """Note in a new sandbox's folder which folders around it slurmgpu has to remove again.

    Every sandbox has the list, because any may be the last to go. Whoever made the folders may come second, because
    they are made before the lock is held.
    """
    others = [path for path in known_sandboxes().values() if path != folder]
    known = [one for other in others for one in parents_of(other)]
    mine = dict.fromkeys([folder.parent, folder.parent.parent, *made, *known])
    innermost_first = sorted(mine, key=lambda path: -len(path.parts))
    for each in (folder, *others):
        try:
            write_atomically(each / PARENTS, json.dumps([str(path) for path in innermost_first]))
        except FileNotFoundError:  # another one that has just ended
            if each == folder:
                raise


def write_state(folder: Path, state: State) -> None:
    """Write ``state.json``, whole or not at all."""
    write_atomically(folder / "state.json", state.model_dump_json(indent=2) + "\n")


def read_state(folder: Path) -> State | None:
    """Return the record; None when it cannot be read: its starter died early, or another release wrote it."""
    try:
        return State.model_validate_json((folder / "state.json").read_bytes())
    except (OSError, ValidationError):
        return None


def known_sandboxes() -> dict[str, Path]:
    """Return the folders of all sandboxes by name."""
    base = base_folder()
    with _usable(base):
        if not base.is_dir():
            return {}
        return {path.name: path for path in sorted(base.iterdir()) if path.is_dir() and NAME.match(path.name)}


@contextmanager
def _usable(base: Path) -> Iterator[None]:
    """Raise SandboxFailed, with a hint, where the folder of all sandboxes cannot be used."""
    try:
        yield
    except OSError as error:
        raise SandboxFailed(
            f"the folder for sandboxes, {base}, cannot be used: {error.strerror} ({error.filename})",
            hint="it must be yours and writable; set XDG_STATE_HOME to a folder on a local disk that is",
        ) from None
