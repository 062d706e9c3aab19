"""Trust in files that nobody named: the user's, root's, and those in folders that the user trusts by name.

Settings and templates run as whoever submits. As git has it for repositories (safe.directory), a file that somebody
else wrote, or may write, counts only where its folder is trusted. Such files are opened so that nothing waits for them.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import secrets
import shlex
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple

from slurmgpu.errors import InvalidInput


class Foreign(NamedTuple):
    """A file that somebody else has written, or may write."""

    path: Path
    why: str
    """The reason, as the end of a sentence: ``belongs to bob``."""


class IsForeign(InvalidInput):
    """A file that nobody named, and that somebody else wrote, or may write."""

    def __init__(self, foreign: Foreign) -> None:
        super().__init__(
            f"{foreign.path}: it {foreign.why}, and you did not name it on the command line; what is in it would run as you",
            hint=f"read it, then name it; or trust the folder: slurmgpu config trust {shlex.quote(str(foreign.path.parent))}",
        )
        self.foreign = foreign


class Trust(NamedTuple):
    """The folders whose files count, whoever wrote them."""

    folders: tuple[Path, ...] = ()

    @classmethod
    def of(cls, folders: Iterable[Path]) -> Trust:
        """Trust these folders, and all in them."""
        return cls(tuple(folder.resolve() for folder in folders))

    def covers(self, path: Path) -> bool:
        """Return True if a file lies in one of the folders, as it is written and where its links lead."""
        written, leads = path.absolute().parent.resolve() / path.name, path.resolve()
        return any(written.is_relative_to(one) and leads.is_relative_to(one) for one in self.folders)

    def foreign(self, path: Path, there: os.stat_result | None = None) -> Foreign | None:
        """Return who else wrote a file, or may; None: nobody, or it is trusted. ``there``: the facts of the open file."""
        if self.covers(path):
            return None
        try:
            link, target = path.lstat(), there or path.stat()
            why = _others(target, path.resolve()) or (_owner(link) if stat.S_ISLNK(link.st_mode) else None)
        except OSError:
            # Of an open file: somebody has taken it away since, and whose it was can no longer be told.
            why = "has been taken away while it was read" if there else None
        return Foreign(path, why) if why else None


@contextmanager
def opened(path: Path, trust: Trust) -> Iterator[tuple[IO[bytes], Foreign | None]]:
    """Open a file, and say whose it is: of the open file, which cannot be another one by the time it is read."""
    with path.open("rb") as file:
        refuse_way_out(path, file.fileno(), also_elsewhere=True)
        yield file, trust.foreign(path, os.fstat(file.fileno()))


_confined: ContextVar[Path | None] = ContextVar("confined", default=None)


@contextmanager
def staying_below(folder: Path) -> Iterator[None]:
    """Within it, only files below a folder are looked into, and none that is hidden there, whatever links lead to it.

    For requests of somebody else (an assistant). A file is judged when it is open, so nobody can put a link in its place
    between a look and the reading. No program of the request's choice may be started in it, to ask it anything.
    """
    token = _confined.set(folder.resolve())
    try:
        yield
    finally:
        _confined.reset(token)


_for_another: ContextVar[bool] = ContextVar("for_another", default=False)


@contextmanager
def for_somebody_else() -> Iterator[None]:
    """Within it, no file is read by way of another user's link: what it leads to would be shown to who asked."""
    token = _for_another.set(True)
    try:
        yield
    finally:
        _for_another.reset(token)


def is_confined(folder: Path | None = None) -> bool:
    """Return True if `staying_below` holds; with ``folder``: whether it keeps from looking into that folder."""
    below = _confined.get()
    if below is None or folder is None:
        return below is not None
    real = folder.resolve()
    return not real.is_relative_to(below) or any(
        part.startswith(".") for part in real.relative_to(below).parts
    )


def refuse_way_out(path: Path, descriptor: int, *, also_elsewhere: bool = False) -> None:
    """Raise PermissionError for an open file that `staying_below` or `for_somebody_else` excludes.

    With ``also_elsewhere`` a file that is named elsewhere counts: settings and profiles, which no request names.
    """
    if _for_another.get():
        linked = any(map(link_of_another, (path, *path.parents)))
        if linked or not os.path.samestat(path.stat(), os.fstat(descriptor)):
            raise PermissionError(errno.EACCES, "somebody else's link leads there", str(path))
    folder = _confined.get()
    if folder is None or (also_elsewhere and not path.absolute().is_relative_to(folder)):
        return
    if is_confined(path) or not os.path.samestat(path.stat(), os.fstat(descriptor)):
        raise PermissionError(
            errno.EACCES, f"a link out of {folder}, a file elsewhere, or a hidden one", str(path)
        )


def _others(there: os.stat_result, path: Path) -> str | None:
    owner = _owner(there)
    if owner is not None:
        return owner
    if there.st_mode & stat.S_IWOTH and _reached(path):
        return "can be written by everybody (chmod o-w)"
    shared = there.st_mode & stat.S_IWGRP and not _is_ones_own_group(there.st_gid)
    if shared and _reached(path):
        return f"can be written by group {_group(there.st_gid)} (chmod g-w)"
    # The mode shows an ACL's mask as the group's rights.
    named = _by_acl(path) if there.st_mode & stat.S_IWGRP and _reached(path) else None
    return f"can be written by {named}, as its ACL says (setfacl -b)" if named else None


def link_of_another(path: Path) -> str | None:
    """Return whose link a path is, as the end of a sentence; None where it is none, or the user's own."""
    try:
        there = path.lstat()
    except OSError:
        return None
    return _owner(there) if stat.S_ISLNK(there.st_mode) else None


_ACL = "system.posix_acl_access"
_OF_USER, _OF_GROUP, _MAY_WRITE = 2, 8, 2


def _by_acl(path: Path) -> str | None:
    """Return who else may write a file by its ACL, in which others are named (acl(5); linux/posix_acl_xattr.h)."""
    try:
        data = os.getxattr(path, _ACL)
    except (OSError, AttributeError):  # none, or a system or file system that has no such ACLs
        return None
    for tag, may, number in struct.iter_unpack("<HHI", data[4:]):
        if tag == _OF_USER and may & _MAY_WRITE and number not in {0, os.geteuid()}:
            return _user(number)
        if tag == _OF_GROUP and may & _MAY_WRITE and not _is_ones_own_group(number):
            return f"group {_group(number)}"
    return None


def _reached(path: Path) -> bool:
    """Return True if anybody else gets as far as a file, by a group or an ACL; a home folder is often closed.

    Who is in one group may be in another, too. Where a folder has an ACL, the mode shows its mask as the group's rights.
    """
    for folder in path.parents:
        there = folder.stat()
        by_group = there.st_mode & stat.S_IXGRP and (not _is_ones_own_group(there.st_gid) or _has_acl(folder))
        if not by_group and not there.st_mode & stat.S_IXOTH:
            return False
    return True


def _has_acl(path: Path) -> bool:
    try:
        return _ACL in os.listxattr(path)
    except (OSError, AttributeError):
        return False


def _owner(there: os.stat_result) -> str | None:
    """Return whose a file is, if neither the user's nor root's; under sudo the caller's count as the user's, as for git."""
    mine = {0, os.geteuid()}
    if os.geteuid() == 0 and os.environ.get("SUDO_UID", "").isdecimal():
        mine.add(int(os.environ["SUDO_UID"]))
    return None if there.st_uid in mine else f"belongs to {_user(there.st_uid)}"


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _is_ones_own_group(number: int) -> bool:
    """Return True if a group is root's, or the user's alone: many systems make one for each user."""
    if number == 0:
        return True
    try:
        group, me = grp.getgrgid(number), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_name == me.pw_name and number == me.pw_gid and set(group.gr_mem) <= {me.pw_name}


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


LARGEST = 16 << 20
"""Bytes: no script and no configuration has as many, and a file of others may have no end."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; OSError where there is none, and for a pipe or a device, which may never come to an end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "a folder, a pipe or a device, not a file", str(path))
    try:
        refuse_way_out(path, descriptor)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, most: int = LARGEST) -> bytes:
    """Return the bytes of a file; OSError where it cannot be read, is no regular file, or has more than ``most``."""
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
    return data


def text_of(path: Path) -> str:
    """Return the text of a file; empty where `read_regular` does not read it."""
    try:
        return read_regular(path).decode("utf-8", errors="replace")
    except OSError:
        return ""


def write_atomically(path: Path, text: str) -> None:
    """Write a file by rename, flushed to disk, with the umask's permissions.

    The folder may be somebody else's, who can replace the draft by a link at any moment: it is not opened again by name.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
