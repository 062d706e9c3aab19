"""Use of a job's processes on one node: its control group where there is one, else /proc."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Optional

__all__ = ["JobProcesses", "Used"]

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_OF_SLURM = ("slurmstepd", "slurmd")
Key = tuple[int, int]
"""Number and start time of a process: numbers are used again."""


class Used(NamedTuple):
    """Use of a job on this node so far; None: not measured."""

    cpu_seconds: Optional[float] = None
    rss: Optional[int] = None
    """Bytes without the page cache; where /proc alone tells, pages that processes share count for each of them."""
    rss_peak: Optional[int] = None
    page_cache: Optional[int] = None
    read_bytes: Optional[int] = None
    """From storage; what the page cache gave is not in it (proc(5), /proc/PID/io)."""
    written_bytes: Optional[int] = None
    processes: Optional[int] = None


class _Process(NamedTuple):
    parent: int
    ticks: int
    """CPU time of its own, and of the children that it has waited for."""
    rss: int
    peak: int
    read: Optional[int]
    written: Optional[int]


class JobProcesses:
    """A job on a node; ``proc`` and ``cgroups`` are where /proc and the control groups are mounted.

    ``node`` is the node's name in Slurm: a machine may be several of its nodes.
    """

    def __init__(
        self,
        job_id: str,
        node: Optional[str] = None,
        proc: Path = Path("/proc"),
        cgroups: Path = Path("/sys/fs/cgroup"),
    ) -> None:
        self._mark = f"SLURM_JOB_ID={job_id}".encode()
        self._node = f"SLURMD_NODENAME={node}".encode() if node else None
        self._proc = proc
        self._group = _group_of(job_id, proc, cgroups)
        self.source = self._group.source if self._group else "/proc"
        self._ours: dict[Key, bool] = {}
        self._last: dict[int, tuple[Key, _Process]] = {}
        self._gone = [
            0,
            0,
            0,
        ]  # ticks, bytes read and written of processes that no other of the job's has waited for
        self._most = [0, 0, 0]
        self._peak = 0
        self._peak_of_group: Optional[int] = None

    def read(self) -> Used:
        """Return what the job has used so far."""
        now = self._processes()
        self._keep_gone(now)
        sums = [sum(one.ticks for _, one in now.values()), *(_sum(now.values(), at) for at in (4, 5))]
        totals = []
        for at, amount in enumerate(sums):
            # What a process has used is its parent's a moment later: a total that went back for it stays.
            self._most[at] = max(self._most[at], (amount or 0) + self._gone[at])
            totals.append(None if amount is None and not self._most[at] else self._most[at])
        self._last = now
        ticks, read, written = totals
        rss = sum(one.rss for _, one in now.values())
        self._peak = max(self._peak, rss, *(one.peak for _, one in now.values()), 0)
        used = Used(
            (ticks or 0) / _TICKS if now or self._most[0] else None,
            rss if now else None,
            self._peak or None,
            None,
            read,
            written,
            len(now),
        )
        return self._by_group(used)

    def _by_group(self, used: Used) -> Used:
        """Return the same with the control group's own account, which misses nothing, where there is one."""
        if self._group is None:
            return used
        cpu, rss, cache = self._group.cpu_seconds(), self._group.rss(), self._group.page_cache()
        if rss is not None:
            self._peak_of_group = max(self._peak_of_group or 0, rss)
        return used._replace(
            cpu_seconds=used.cpu_seconds if cpu is None else cpu,
            rss=used.rss if rss is None else rss,
            rss_peak=used.rss_peak if rss is None else self._peak_of_group,
            page_cache=cache,
        )

    def _keep_gone(self, now: dict[int, tuple[Key, _Process]]) -> None:
        """Keep what ended processes had used, unless a parent of theirs in the job has it in its own account."""
        for pid, (key, process) in self._last.items():
            if pid in now and now[pid][0] == key:
                continue
            if self._heir(process.parent, now) is None:
                self._gone[0] += process.ticks
                self._gone[1] += process.read or 0
                self._gone[2] += process.written or 0

    def _heir(self, parent: int, now: dict[int, tuple[Key, _Process]]) -> Optional[int]:
        for _ in range(64):
            if parent in now:
                return parent
            if parent not in self._last:
                return None
            parent = self._last[parent][1].parent
        return None

    def _processes(self) -> dict[int, tuple[Key, _Process]]:
        """Return the job's processes, without this one and what it has started."""
        stats = {pid: found for pid in self._pids() if (found := self._stat(pid)) is not None}
        mine = os.getpid()
        ours: dict[int, tuple[Key, _Process]] = {}
        for pid, (key, parent, ticks, rss, name) in stats.items():
            if pid == mine or parent == mine or name in _OF_SLURM or not self._is_ours(pid, stats):
                continue
            read, written = self._io(pid)
            ours[pid] = (key, _Process(parent, ticks, rss, self._peak_of(pid, key, rss), read, written))
        self._ours = {
            stats[pid][0]: self._ours[stats[pid][0]] for pid in stats if stats[pid][0] in self._ours
        }
        return ours

    def _pids(self) -> Iterable[int]:
        inside = self._group.pids() if self._group else None
        if inside is not None:
            return inside
        user = os.getuid()
        with os.scandir(self._proc) as entries:
            return [int(one.name) for one in entries if one.name.isdecimal() and _owner(one) == user]

    def _stat(self, pid: int) -> Optional[tuple[Key, int, int, int, str]]:
        try:
            text = (self._proc / str(pid) / "stat").read_bytes()
        except OSError:
            return None
        begin, end = text.find(b"("), text.rfind(b")")  # a name may hold anything
        cells = text[end + 2 :].split()
        if len(cells) < 22:
            return None
        ticks = sum(int(cells[at]) for at in (11, 12, 13, 14))
        name = text[begin + 1 : end].decode("utf-8", "replace")
        return (pid, int(cells[19])), int(cells[1]), ticks, int(cells[21]) * _PAGE, name

    def _is_ours(self, pid: int, stats: dict[int, tuple[Key, int, int, int, str]]) -> bool:
        """Return True if it has the job's number in its environment, or descends from one that has; looked up once."""
        key, parent, _, _, _ = stats[pid]
        known = self._ours.get(key)
        if known is None:
            ours = (self._group is not None and self._group.holds_pids) or self._is_marked(pid)
            self._ours[key] = known = ours or (
                parent in stats and parent != pid and self._is_ours(parent, stats)
            )
        return known

    def _is_marked(self, pid: int) -> bool:
        try:
            words = (self._proc / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            return False
        named = [word for word in words if word.startswith(b"SLURMD_NODENAME=")]
        return self._mark in words and (self._node is None or not named or self._node in named)

    def _peak_of(self, pid: int, key: Key, rss: int) -> int:
        """Return the most that a process ever held: a large one may have ended by the next sample."""
        try:
            text = (self._proc / str(pid) / "status").read_bytes()
        except OSError:
            return rss
        match = re.search(rb"^VmHWM:\s+(\d+) kB", text, re.MULTILINE)
        return int(match[1]) * 1024 if match else rss

    def _io(self, pid: int) -> tuple[Optional[int], Optional[int]]:
        try:
            text = (self._proc / str(pid) / "io").read_bytes()
        except OSError:
            return None, None
        amounts = dict(re.findall(rb"^(read_bytes|write_bytes): (\d+)", text, re.MULTILINE))
        return _int(amounts.get(b"read_bytes")), _int(amounts.get(b"write_bytes"))


def _owner(entry: os.DirEntry[str]) -> Optional[int]:
    try:
        return entry.stat().st_uid
    except OSError:
        return None


def _int(text: Optional[bytes]) -> Optional[int]:
    return None if text is None else int(text)


def _sum(found: Iterable[tuple[Key, _Process]], at: int) -> Optional[int]:
    known = [amount for _, one in found if (amount := one[at]) is not None]
    return sum(known) if known else None


class _Group:
    """A job's control group: one folder (v2), or one of each controller (v1)."""

    def __init__(self, source: str, cpu: Optional[Path], memory: Optional[Path]) -> None:
        self.source, self._cpu, self._memory = source, cpu, memory
        self._folder = cpu or memory
        self.holds_pids = bool(self.pids())

    def cpu_seconds(self) -> Optional[float]:
        if self._cpu is None:
            return None
        if self.source == "cgroup v2":
            usec = _figures(self._cpu / "cpu.stat").get("usage_usec")
            return None if usec is None else usec / 1e6
        nanoseconds = _number(self._cpu / "cpuacct.usage")
        return None if nanoseconds is None else nanoseconds / 1e9

    def rss(self) -> Optional[int]:
        figures = _figures(self._memory / "memory.stat") if self._memory else {}
        if self.source == "cgroup v2":
            return figures["anon"] + figures.get("shmem", 0) if "anon" in figures else None
        return figures["total_rss"] + figures.get("total_shmem", 0) if "total_rss" in figures else None

    def page_cache(self) -> Optional[int]:
        figures = _figures(self._memory / "memory.stat") if self._memory else {}
        whole = "file" if self.source == "cgroup v2" else "total_cache"
        shared = "shmem" if self.source == "cgroup v2" else "total_shmem"
        return max(0, figures[whole] - figures.get(shared, 0)) if whole in figures else None

    def pids(self) -> Optional[list[int]]:
        """Return the processes in it and below; None where it does not show them."""
        if self._folder is None:
            return None
        found = []
        for folder, _, files in os.walk(self._folder):
            if "cgroup.procs" in files:
                try:
                    found += [int(word) for word in (Path(folder) / "cgroup.procs").read_text().split()]
                except (OSError, ValueError):
                    continue
        return found or None


def _group_of(job_id: str, proc: Path, cgroups: Path) -> Optional[_Group]:
    """Return the control group of a job, by the place of this process in it: a folder `job_ID` (Slurm's cgroup guide)."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return None
    places = {}
    for line in lines:
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "", "")
        match = re.match(rf"(.*/job_{re.escape(job_id)})(?:/|\Z)", path)
        if match:
            places[controllers] = match[1].lstrip("/")
    if "" in places and (cgroups / places[""] / "cpu.stat").is_file():
        folder = cgroups / places[""]
        return _Group("cgroup v2", folder, folder)
    found = dict(_controllers(places, cgroups))
    return _Group("cgroup v1", found.get("cpuacct"), found.get("memory")) if found else None


def _controllers(places: dict[str, str], cgroups: Path) -> Iterator[tuple[str, Path]]:
    for names, path in places.items():
        for controller in names.split(","):
            if controller not in ("cpuacct", "memory"):
                continue
            for mounted in (names, controller):
                if (cgroups / mounted / path).is_dir():
                    yield controller, cgroups / mounted / path


def _figures(file: Path) -> dict[str, int]:
    try:
        words = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in words if len(words) == 2 and words[1].isdecimal()}


def _number(file: Path) -> Optional[int]:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
