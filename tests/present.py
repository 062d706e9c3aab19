"""Recorded answers about a moment (`*_present_*.json`), as a Slurm that ``why`` and ``cluster gpus`` can ask."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from slurmgpu.slurm import Slurm
from slurmgpu.slurm.commands import Answer
from slurmgpu.slurm.text import SEPARATOR
from tests.recorded import FOLDER, recorded, said

__all__ = ["Recorded", "asked_row", "jobs_of", "queue_row"]


def jobs_of(release: str) -> dict[str, int]:
    """The jobs of a recording, by the word for which they wait."""
    jobs: dict[str, int] = json.loads((FOLDER / "present" / f"{release}.json").read_text())["jobs"]
    return jobs


class Recorded:
    """Stands in for ``call``: answers what was asked when it was recorded, and changes texts as it is told."""

    def __init__(self, release: str = "22.05", **changed: Callable[[str], str] | str | Answer) -> None:
        self.release, self.changed = release, changed
        self.asked: list[list[str]] = []

    def slurm(self, **env: str) -> Slurm:
        """A Slurm that answers so."""
        return Slurm(run=self, env={"SLURM_CONF": "/nowhere", **env})

    def __call__(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Answer:
        self.asked.append(list(argv))
        name = _name(argv)
        change = self.changed.get(name)
        if isinstance(change, Answer):
            return change
        answer = said("") if name == "sacct" else _recorded(f"{argv[0]}_present_{name}", self.release)
        text = change if isinstance(change, str) else change(answer.stdout) if change else answer.stdout
        number = next((word.removeprefix("--jobs=") for word in argv if word.startswith("--jobs=")), None)
        if name == "asked" and number is not None and not isinstance(change, str):
            # The controller sends the one job.
            text = "".join(f"{row}\n" for row in text.split("\n") if row.split(SEPARATOR)[1:2] == [number])
        return Answer(tuple(argv), answer.rc, text, answer.stderr)


_recorded = cache(recorded)


def _name(argv: Sequence[str]) -> str:
    if argv[0] == "sacct":
        return "sacct"
    if argv[0] == "squeue":
        return "asked" if any(word.startswith("--jobs=") for word in argv) else "queue"
    if argv[0] == "sacctmgr":
        return "qos" if "qos" in argv else "user"
    what = argv[argv.index("show") + 1]
    return {"config": "config", "node": "nodes", "partition": "partitions", "reservation": "reservations",
            "licenses": "licenses", "assoc_mgr": "book"}[what]  # fmt: skip


def queue_row(number: int, **values: str) -> str:
    """A row of the queue, by the names of its fields in lower case."""
    from slurmgpu.slurm.squeue import PARTITION_FIELDS

    return _row(PARTITION_FIELDS, number, values)


def asked_row(number: int, **values: str) -> str:
    """A row of what a job asks for."""
    from slurmgpu.slurm.squeue import REQUEST_FIELDS

    return _row(REQUEST_FIELDS, number, values)


_DEFAULTS = {
    "username": "ada", "account": "lab", "qos": "normal", "partition": "gpu", "state": "PENDING", "prioritylong": "10",
    "timelimit": "1:00:00", "numnodes": "1", "numcpus": "1", "reason": "Priority", "tres-alloc": "cpu=1,mem=1000M,node=1",
    "command": "/home/ada/job.sh",
}  # fmt: skip


def _row(fields: Sequence[str], number: int, values: Mapping[str, str]) -> str:
    given = {**_DEFAULTS, "jobid": str(number), "jobarrayid": str(number)}
    given |= {name.replace("_", "-"): value for name, value in values.items()}
    return "".join(f"{given.get(name.lower(), 'N/A')}{SEPARATOR}" for name in fields) + "\n"
