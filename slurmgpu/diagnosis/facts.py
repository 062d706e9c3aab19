"""Facts about a job besides its logs, and the result: the first cause."""

from __future__ import annotations

import json
import signal as signals
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

__all__ = [
    "BY_SLURM",
    "CAUSE_FILE",
    "CAUSE_SCHEMA",
    "NOTIFY_SCHEMA",
    "ORDERLY_STOP",
    "UNKNOWN",
    "Cause",
    "Facts",
    "code_in_words",
    "signal_name",
]

CAUSE_SCHEMA = "slurmgpu.cause/1"
CAUSE_FILE = "cause."
"""With the job's plain number and ``.json`` behind it: the first cause's file in a run directory."""
NOTIFY_SCHEMA = "slurmgpu.notify/1"
"""Of the file of a run directory that says which webhook its script writes to."""
ORDERLY_STOP = "stopped"
"""The kind of an orderly end, which is no failure: everything is saved."""
UNKNOWN = "not-known"
"""The kind of a cause where nothing in the logs tells one."""
BY_SLURM = frozenset(("cancelled", "node-failure", "preempted", "requeued", "time-limit"))
"""The kinds that a job's state tells by itself."""
_MOST = 1 << 20  # bytes of a file of a cause


class Facts(NamedTuple):
    """Facts that Slurm and the batch script know; None or empty is not known."""

    state: str = ""
    """Slurm's word: FAILED, TIMEOUT, ..."""
    exit_code: Optional[int] = None
    """As a shell has it: 128 + N where signal N ended it."""
    signal: Optional[int] = None
    tasks: Optional[int] = None
    """Slurm's tasks in all."""
    processes: Optional[int] = None
    """Processes in all, the world size: of torchrun more than tasks."""
    cancelled_by: str = ""
    dumps: tuple[str, ...] = ()
    """Files into which torch's flight recorder wrote what each rank had begun."""
    owner: Optional[int] = None
    """User id whose files count; None: this user's."""
    host: str = ""
    """The node of a job that has only one."""
    restarts: int = 0
    """Number of earlier starts; an appended log then begins with earlier starts."""
    job_id: str = ""
    """Its plain number, by which a line about another job is told apart."""

    @property
    def went_well(self) -> bool:
        """True if there is nothing to explain."""
        return self.state in ("COMPLETED", "") and self.exit_code == 0 and not self.signal


class Cause(NamedTuple):
    """The first cause of a failure."""

    kind: str
    """The id of the row of the table, or ``not-known``."""
    what: str
    fix: str
    rank: Optional[int] = None
    host: Optional[str] = None
    moment: Optional[str] = None
    """When, ISO 8601 in UTC, where the logs tell it."""
    evidence: tuple[str, ...] = ()
    exit_code: Optional[int] = None
    signal: Optional[int] = None
    certain: bool = False
    """True if the logs name the cause itself, and not only how the process ended."""
    job_id: str = ""
    restart: int = 0
    time: Optional[str] = None
    """When this was written down, ISO 8601 in UTC."""

    @property
    def known(self) -> bool:
        """True if a cause was found."""
        return self.kind != UNKNOWN

    @property
    def where(self) -> str:
        """The rank and the host, as far as they are known: ``rank 3 on node2``."""
        rank = "" if self.rank is None else f"rank {self.rank}"
        return " ".join(filter(None, (rank, f"on {self.host}" if self.host else "")))

    def to_json(self) -> str:
        """Return the text of its file."""
        return json.dumps({"schema": CAUSE_SCHEMA, **self._asdict()}, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, data: bytes) -> Cause:
        """Read such a file, which may be anybody's; ValueError where it is none."""
        if len(data) > _MOST:
            raise ValueError("too large")
        found: Any = json.loads(data.decode("utf-8", "replace"))
        if not isinstance(found, Mapping) or found.get("schema") != CAUSE_SCHEMA:
            raise ValueError(f"not {CAUSE_SCHEMA}")
        evidence = found.get("evidence")
        return cls(
            kind=_text(found, "kind") or UNKNOWN,
            what=_text(found, "what") or "",
            fix=_text(found, "fix") or "",
            rank=_number(found, "rank"),
            host=_text(found, "host"),
            moment=_text(found, "moment"),
            evidence=tuple(map(str, evidence)) if isinstance(evidence, list) else (),
            exit_code=_number(found, "exit_code"),
            signal=_number(found, "signal"),
            certain=found.get("certain") is True,
            job_id=_text(found, "job_id") or "",
            restart=_number(found, "restart") or 0,
            time=_text(found, "time"),
        )


def _text(found: Mapping[str, Any], name: str) -> Optional[str]:
    value = found.get(name)
    return value if isinstance(value, str) else None


def _number(found: Mapping[str, Any], name: str) -> Optional[int]:
    value = found.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def signal_name(number: int) -> str:
    """SIGKILL of 9; ``signal 77`` of one without a name."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def code_in_words(code: Optional[int], number: Optional[int]) -> str:
    """Return what an exit code and a signal say: ``exit code 137: SIGKILL``; empty where neither says anything."""
    if number:
        return f"ended by {signal_name(number)}"
    if not code:
        return ""
    if 128 < code < 128 + 65:
        return f"exit code {code}: ended by {signal_name(code - 128)}"
    known = {
        124: ", which timeout(1) gives when its time is up",
        126: ", which a shell gives for a program that it could not execute",
        127: ", which a shell gives for no such command",
    }
    return f"exit code {code}{known.get(code, '')}"
