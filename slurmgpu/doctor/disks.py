"""What is said of folders and their file systems, as ``probe.folder`` and ``probe.quota`` measure them."""

from __future__ import annotations

import stat
from collections.abc import Iterable

from slurmgpu.doctor.amounts import seconds, size
from slurmgpu.doctor.lines import Line, Measured, failure, ok, unknown, warning
from slurmgpu.doctor.thresholds import limit

__all__ = ["folders", "inodes", "latency", "quota", "space", "writable"]

_MAKE_ROOM = "remove what is not needed (old runs, caches, conda packages), or set runs: to another folder"


def folders(measured: Iterable[Measured], umask: int | None = None) -> list[Line]:
    """The lines of folders: of each its access, of each file system space, inodes and latency."""
    lines: list[Line] = []
    named: dict[object, list[Measured]] = {}
    for one in measured:
        lines.append(writable(one, umask if one["what"] == "runs" else None))
        if one.get("device") is not None:
            named.setdefault(one["device"], []).append(one)
    for same in named.values():
        best = max(same, key=lambda one: one.get("samples") or 0)
        what = ", ".join(dict.fromkeys(str(one["what"]) for one in same))
        lines += [space(what, best), inodes(what, best), latency(what, best)]
    return lines


def writable(measured: Measured, umask: int | None = None) -> Line:
    """A folder that jobs write to; with a ``umask`` the one where runs go."""
    what, path = measured["what"], measured["path"]
    if measured.get("hangs"):
        return failure(
            "disk.writable",
            f"{what} {path} does not answer in {limit('latency.hangs'):g} s",
            "its file server may be down: ask your cluster's support; use another folder meanwhile",
        )
    why = measured.get("why")
    if why:
        if what not in ("runs", "work", "home", "/dev/shm"):
            return warning(
                "disk.writable", f"{what} {path}: {why}", "set it to a folder of yours, or leave it unset"
            )
        return failure(
            "disk.writable",
            f"{what} {path}: {why}",
            "set runs: in the settings to a folder of yours that every node sees"
            if what == "runs"
            else "use a folder that every node sees and that you may write to",
        )
    mode = measured.get("mode") or 0
    if what != "tmp" and mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return warning("disk.writable", f"{what} {path}: everybody may write to it", f"chmod o-w {path}")
    if umask is not None and not umask & stat.S_IWOTH:
        return warning(
            "disk.writable",
            f"{what} {path}; umask {umask:03o} lets everybody write to new files",
            "put `umask 022` (or 077) into ~/.bashrc",
        )
    return ok("disk.writable", f"{what} {path}" + (f", umask {umask:03o}" if umask is not None else ""))


def space(what: str, measured: Measured) -> Line:
    """Free space of a file system."""
    free, total = measured.get("free"), measured.get("total")
    if free is None or not total:
        return unknown("disk.space", f"{what}: its file system does not tell")
    found = f"{what}: {size(free)} of {size(total)} free"
    if free < limit("space.none"):
        return failure("disk.space", found, _MAKE_ROOM)
    return warning("disk.space", found, _MAKE_ROOM) if free < limit("space.few") else ok("disk.space", found)


def inodes(what: str, measured: Measured) -> Line:
    """Free inodes of a file system; some have no fixed number."""
    free, total = measured.get("inodes_free"), measured.get("inodes")
    if not total or free is None:
        return ok("disk.inodes", f"{what}: its file system has no fixed number")
    found = f"{what}: {free:,} of {total:,} free"
    act = "remove or pack (tar) what has many small files: environments, caches, data sets"
    if free < limit("inodes.none"):
        return failure("disk.inodes", found, act)
    return warning("disk.inodes", found, act) if free < limit("inodes.few") else ok("disk.inodes", found)


def latency(what: str, measured: Measured) -> Line:
    """Medians of opening, of stat and of a small write with fsync, in seconds."""
    times = measured.get("seconds") or {}
    if not times:
        return unknown("disk.latency", f"{what}: not measured")
    found = f"{what}: open {seconds(times['open'])}, stat {seconds(times['stat'])}, write {seconds(times['write'])}"
    found += f" (medians of {measured['samples']})"
    slow = times["open"] > limit("latency.open") or times["stat"] > limit("latency.open")
    if slow or times["write"] > limit("latency.write"):
        return warning(
            "disk.latency",
            found,
            "keep many small files elsewhere: data packed into few files, environments in an image or on a local disk",
        )
    return ok("disk.latency", found)


def quota(told: Iterable[Measured] | None) -> list[Line]:
    """The user's quotas: used and limit, in bytes or files; None: no command tells them."""
    if told is None:
        return [
            unknown(
                "disk.quota",
                "no command here tells it (quota, lfs)",
                "your site may have a command of its own",
            )
        ]
    lines = []
    for one in told:
        part = one["used"] / one["limit"]
        text = size if one["of"] == "space" else lambda number: f"{number:,.0f} files"
        found = f"{one['place']}: {text(one['used'])} of {text(one['limit'])} used"
        if part >= 1:
            lines.append(failure("disk.quota", found, _MAKE_ROOM))
        elif part >= limit("quota.full"):
            lines.append(warning("disk.quota", found, _MAKE_ROOM))
        else:
            lines.append(ok("disk.quota", found))
    return lines or [ok("disk.quota", "no limit is set")]
