"""At a batch script's end: the first cause into the run directory, and as the log's last lines."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

from .facts import CAUSE_FILE, ORDERLY_STOP, Cause, Facts
from .flight import dumps_in
from .hiding import secrets_here, without_secrets
from .judging import diagnose

__all__ = ["at_end", "facts_here", "lines_of", "logs_in", "open_logs", "processes_of"]

_MOST_FILES = 2000
_SECONDS = 0.7


def at_end(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> None:
    """Find and write down why the batch script ends with an exit code that is not 0; whatever goes wrong, silently.

    Arguments: the exit code, the batch shell's process id. The run directory and Slurm's facts come from the environment.
    """
    with contextlib.suppress(Exception):
        _at_end(int(arguments[0]), arguments[1], environment)


def _at_end(code: int, shell: str, environment: Mapping[str, str]) -> None:
    run_dir = Path(environment["SLURMGPU_RUN_DIR"])
    job_id = environment["SLURM_JOB_ID"]
    logs = [*open_logs(shell), *logs_in(run_dir, job_id)]
    if not logs:
        return
    facts = facts_here(environment, run_dir, code)
    cause = diagnose(logs, facts, _SECONDS)
    if cause is None or cause.kind == ORDERLY_STOP:
        return
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    cause = cause._replace(job_id=job_id, restart=facts.restarts, time=now)
    cause = without_secrets(cause, secrets_here(environment, _secrets_of(run_dir)))
    try:
        _write(run_dir / f"{CAUSE_FILE}{job_id}.json", cause.to_json())
    except OSError:  # a full disk may be the very cause: at_end.sh hands it on to the message
        sys.stdout.write(cause._replace(evidence=()).to_json())
        sys.stdout.flush()
    said = lines_of(cause) if cause.known else lines_of(cause)[:1]  # the last lines stand right above
    with contextlib.suppress(OSError):
        sys.stderr.write("".join(f"slurmgpu: {line}\n" for line in said))
        sys.stderr.flush()


def lines_of(cause: Cause) -> list[str]:
    """Two or three lines for people."""
    where = f"{cause.where}: " if cause.where else ""
    lines = [f"first cause: {where}{cause.what}"]
    if cause.known and not cause.certain:
        lines[0] += " (likely, not certain)"
    return [*lines, f"fix: {cause.fix}"] if cause.fix else lines


def facts_here(environment: Mapping[str, str], run_dir: Path, code: int) -> Facts:
    """Return what the batch script's environment says."""
    tasks = environment.get("SLURM_NTASKS") or environment.get("SLURM_NPROCS") or ""
    return Facts(
        exit_code=code,
        tasks=int(tasks) if tasks.isdigit() else None,
        processes=processes_of(run_dir),
        restarts=int(environment.get("SLURM_RESTART_COUNT") or 0),
        job_id=environment["SLURM_JOB_ID"],
        dumps=tuple(
            dumps_in(run_dir, environment["SLURM_JOB_ID"], int(environment.get("SLURM_RESTART_COUNT") or 0))
        ),
        host=environment.get("SLURMD_NODENAME", "") if environment.get("SLURM_JOB_NUM_NODES") == "1" else "",
    )


def processes_of(run_dir: Path) -> Optional[int]:
    """Return how many processes the plan in a run directory, or in the one above it, starts in all."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        plan = _plan_of(run_dir)
        return int(plan["nodes"]) * int(plan["processes_per_node"])
    return None


def _secrets_of(run_dir: Path) -> list[str]:
    """Return the names of the job's secrets, by the same plan."""
    plan = _plan_of(run_dir)
    named, notify = plan.get("secrets"), plan.get("notify")
    names = [*named] if isinstance(named, list) else []
    names += [notify.get("webhook")] if isinstance(notify, dict) else []
    return [one for one in names if isinstance(one, str)]


def _plan_of(run_dir: Path) -> Mapping[str, Any]:
    """Return the plan in a run directory, or in the one above it; empty without one. The folder may be somebody else's."""
    for folder in (run_dir, run_dir.parent):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            number = os.open(folder / "plan.json", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(number, "rb") as file:
                if stat.S_ISREG(os.fstat(number).st_mode):
                    plan = json.loads(file.read(4 << 20))
                    return plan if isinstance(plan, dict) else {}
    return {}


def open_logs(shell: str) -> list[str]:
    """Return the files that the batch shell's output and errors go to."""
    found = []
    for number in (1, 2):
        with contextlib.suppress(OSError):
            # The file itself: its name may be a link, or be gone.
            path = f"/proc/{shell}/fd/{number}"
            if stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
                found.append(os.readlink(path))  # noqa: PTH115
    return list(dict.fromkeys(found))


def logs_in(run_dir: Path, job_id: str) -> list[str]:
    """Return the logs in a run directory that belong to a job by their names: of tasks, of steps, of NCCL."""
    found: list[Path] = []
    for folder, pattern in (
        ("submitit", f"{job_id}_*_log.*"),
        ("logs", f"{job_id}*"),
        ("debug", f"nccl-{job_id}.*"),
    ):
        with contextlib.suppress(OSError):
            found += sorted((run_dir / folder).glob(pattern))[:_MOST_FILES]
    return [str(path) for path in found if path.is_file()]


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)  # noqa: PTH105
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
