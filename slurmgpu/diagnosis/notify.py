"""At a batch script's end: a message to the webhook that the job names, which holds what is known by then."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Optional

from .at_end import lines_of, open_logs
from .facts import CAUSE_FILE, Cause, code_in_words
from .webhooks import SECONDS, Message, Unsent, address_of, send

__all__ = ["message_of", "notify"]

_MESSAGE_SCHEMA = "slurmgpu.notification/1"
_LINE, _NAME = 450, 100  # characters
_MOST = 4096  # bytes of a file of a secret


def notify(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> None:
    """Send the message, where the job asks for one of this end; one line on standard output where that fails.

    Arguments: the file of settings, how the job ended (completed, failed, stopped, requeued), the exit code, the batch
    shell's process id. Nothing that is printed tells the address.
    """
    try:
        settings, event = json.loads(Path(arguments[0]).read_text(encoding="utf-8")), arguments[1]
        if event not in settings["on"]:
            return
        secret = _secret(settings["webhook"], environment)
        try:
            address = address_of(secret)
        except ValueError as error:
            raise Unsent(f"the address in {settings['webhook']} is not used: {error}") from None
        message = message_of(event, int(arguments[2]), arguments[3], environment)
        with _at_most(SECONDS):
            send(address, message, settings["form"])
    except Unsent as error:
        why = str(error)
    except Exception as error:
        why = type(error).__name__
    else:
        return
    with contextlib.suppress(OSError):
        sys.stdout.write(f"slurmgpu: no notification was sent: {why}\n")
        sys.stdout.flush()


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """TimeoutError after so many seconds: a server that answers a letter a second would hold the job's GPUs for longer."""

    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except TimeoutError:  # it came between two steps of the request
        raise Unsent(f"no answer within {seconds:.0f} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _secret(name: str, environment: Mapping[str, str]) -> str:
    """As of any secret: from the environment, else from a file that only its owner can read."""
    if environment.get(name):
        return environment[name]
    file = Path(environment.get("HOME", "/"), ".config", "slurmgpu", "secrets", name)
    try:
        # A pipe, too, is opened at once.
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise Unsent(f"{file} is not a file")
            if found.st_mode & 0o077 or found.st_uid not in (0, os.geteuid()):
                raise Unsent(f"{file} is open to others, or somebody else's (chmod 600)")
            return opened.read(_MOST).decode("utf-8", "replace")
    except OSError:
        raise Unsent(f"the secret {name} is neither set nor in {file}") from None


def message_of(event: str, code: int, shell: str, environment: Mapping[str, str]) -> Message:
    """Return what the script knows at its end, of this start alone."""
    job_id = environment["SLURM_JOB_ID"]
    array = environment.get("SLURM_ARRAY_JOB_ID")
    shown = f"{array}_{environment.get('SLURM_ARRAY_TASK_ID', '')}" if array else job_id
    name = _clean(environment.get("SLURM_JOB_NAME", ""), _NAME)
    cluster = _clean(environment.get("SLURM_CLUSTER_NAME", ""), _NAME)
    restarts = int(environment.get("SLURM_RESTART_COUNT") or 0)
    run_dir = Path(environment["SLURMGPU_RUN_DIR"])
    cause = _cause(run_dir, job_id, restarts, environment) if event == "failed" else None
    seconds = _seconds(shell, environment)
    host = _clean(environment.get("SLURMD_NODENAME", ""), _NAME) or socket.gethostname()
    logs = [_clean(path, _LINE) for path in open_logs(shell)]
    ended = _in_words(event, code, seconds)
    headline = f"job {shown}{f' ({name})' if name else ''}{f' on {cluster}' if cluster else ''} {ended}"
    lines = [] if cause is None else lines_of(cause)
    lines += [f"restarts: {restarts}"] if restarts else []
    lines += [f"log: {path} (node {host})" for path in logs[:1]]
    data = {
        "schema": _MESSAGE_SCHEMA,
        "event": event,
        "job_id": shown,
        "name": name,
        "cluster": cluster,
        "host": host,
        "exit_code": code,
        "restart": restarts,
        "seconds": None if seconds is None else round(seconds),
        "first_cause": None if cause is None else _cause_data(cause),
        "logs": logs,
        "run_dir": _clean(str(run_dir), _LINE),
    }
    return Message(event, headline, tuple(_clean(line, _LINE) for line in lines), data)


def _in_words(event: str, code: int, seconds: Optional[float]) -> str:
    after = "" if seconds is None else f" after {_duration(seconds)}"
    how = f" ({code_in_words(code, None)})" if code else ""
    if event == "completed":
        return f"completed{after}"
    if event == "stopped":
        return f"stopped in good order{after}, before it was done, and is not started again by itself{how}"
    if event == "requeued":
        return f"went back into the queue{after}"
    return f"failed{after}{how}"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes} min {whole % 60} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _seconds(shell: str, environment: Mapping[str, str]) -> Optional[float]:
    """Return how long this start has run: since Slurm's moment, else since the batch shell began (proc(5))."""
    started = environment.get("SLURM_JOB_START_TIME", "")
    if started.isdigit():
        return max(0.0, time.time() - int(started))
    with contextlib.suppress(OSError, ValueError, IndexError):
        ticks = int(Path("/proc", shell, "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
        return max(0.0, uptime - ticks / os.sysconf("SC_CLK_TCK"))
    return None


def _cause(run_dir: Path, job_id: str, restarts: int, environment: Mapping[str, str]) -> Optional[Cause]:
    """Return what has just been found, handed over where the disk is full; not what an earlier start has left."""
    with contextlib.suppress(ValueError):
        if environment.get("SLURMGPU_CAUSE"):
            return Cause.from_json(environment["SLURMGPU_CAUSE"].encode())
    with contextlib.suppress(OSError, ValueError):
        with (run_dir / f"{CAUSE_FILE}{job_id}.json").open("rb") as file:
            cause = Cause.from_json(file.read((1 << 20) + 1))
        return cause if cause.restart == restarts else None
    return None


def _cause_data(cause: Cause) -> dict[str, object]:
    texts = {name: _clean(getattr(cause, name), _LINE) for name in ("kind", "what", "fix")}
    host = None if cause.host is None else _clean(cause.host, _NAME)
    return {**texts, "rank": cause.rank, "host": host, "certain": cause.certain}


def _clean(text: str, most: int) -> str:
    """One line without control characters, of bounded length."""
    text = re.sub(r"\s+", " ", "".join(one if one.isprintable() else " " for one in text[: 4 * most])).strip()
    return text if len(text) <= most else text[: most - 1] + "…"
