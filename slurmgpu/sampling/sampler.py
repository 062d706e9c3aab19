"""The loop: a sample at once, then soon, then every so many seconds, as long as its budget allows."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Optional

from . import SCHEMA
from .gpus import Gpus
from .processes import JobProcesses
from .readings import Reading
from .rows import LIMIT, Rows

__all__ = ["Sampler", "Told"]

_BUDGET = 0.004  # of a core: what a sample has cost, in CPU time, is that part of the time to the next one
_FIRST = 1.0  # seconds to the second sample; the pause doubles from there, so that short jobs have some too
_LONGEST = 3600.0


class Told(NamedTuple):
    """Arguments of the sampler."""

    folder: Path
    """Where its file goes."""
    job_id: str
    """The job's number as Slurm shows it; of a heterogeneous job, the first component's."""
    interval: float
    """Seconds between samples."""
    gpus: Optional[int] = None
    """Number that the job has on this node; None: not known."""
    limit: int = LIMIT


class Sampler:
    """Samples one job on this node into one file; OSError where the file cannot be made."""

    def __init__(self, told: Told, environment: Mapping[str, str], gpus: Optional[Gpus] = None) -> None:
        self._environment, self._interval = environment, told.interval
        self.host = environment.get("SLURMD_NODENAME") or platform.node()
        restart = environment.get("SLURM_RESTART_COUNT", "")
        self._restart = int(restart) if restart.isdecimal() else 0
        host = re.sub(r"[^\w.-]", "_", self.host)
        self.path = told.folder / f"{told.job_id}.{self._restart}-{host}.jsonl"
        self._job_id = told.job_id
        # Of a heterogeneous job each component's processes have a number of their own.
        self._job = JobProcesses(
            environment.get("SLURM_JOB_ID") or told.job_id, environment.get("SLURMD_NODENAME")
        )
        self._gpus = gpus or Gpus(environment, told.gpus)
        self._rows = Rows(self.path, told.limit)
        self._began: Optional[float] = None
        self.ended = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Sample until told to stop; whatever goes wrong ends the sampler alone."""
        try:
            self.sample()  # it also finds out what there is to read: that is not done again, and not weighed
            pause = min(_FIRST, self._interval)
            cost = 0.0
            while not stop.wait(max(pause, cost / _BUDGET)):
                before = _cost()
                self.sample()
                cost = _cost() - before
                pause = min(pause * 2, self._interval)
            self.sample()
            self._write({"kind": "end"})
        finally:
            self.ended.set()

    def sample(self) -> None:
        """Write one sample; before the first, what does not change."""
        readings = self._gpus.read()
        began = time.monotonic()  # and just after the GPUs were read
        used = self._job.read()
        now = (began + time.monotonic()) / 2  # where the node is busy, it may have been held up meanwhile
        if self._began is None:
            self._began = now
            self._write(self._start(readings))
        load = None
        with contextlib.suppress(OSError):
            load = round(os.getloadavg()[0], 2)
        cpu = used.cpu_seconds
        row = {
            "kind": "sample",
            "time": round(time.time() - (time.monotonic() - now), 3),
            "seconds": round(now - self._began, 3),
            "interval": self._interval,
            "gpus": self._gpus.sample(readings, began),
            "job": {**used._asdict(), "cpu_seconds": None if cpu is None else round(cpu, 3)},
            "load": load,
            "own_cpu_seconds": round(_cost(), 3),
        }
        if self._write(row):
            self._interval = min(self._interval * 2, _LONGEST)

    def _start(self, readings: Optional[list[Reading]]) -> dict[str, object]:
        return {
            "kind": "start",
            "job_id": self._job_id,
            "restart": self._restart,
            "host": self.host,
            "nodes": _number(self._environment.get("SLURMGPU_SAMPLED_NODES"))
            or _number(self._environment.get("SLURM_JOB_NUM_NODES")),
            "cpus": _number(self._environment.get("SLURM_CPUS_ON_NODE")),
            "gpu_source": self._gpus.source,
            "process_source": self._job.source,
            "python": platform.python_version(),
            "gpus": [
                {"index": one.number, "uuid": one.uuid, "name": one.name, "memory_total": one.memory_total}
                for one in readings or ()
            ],
        }

    def _write(self, row: Mapping[str, object]) -> bool:
        return self._rows.write({"schema": SCHEMA, "time": round(time.time(), 3), **row})


def _cost() -> float:
    """CPU seconds of this process so far, and of the programs that it has waited for."""
    programs = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + programs.ru_utime + programs.ru_stime


def _number(text: Optional[str]) -> Optional[int]:
    return int(text) if text is not None and text.isdecimal() else None
