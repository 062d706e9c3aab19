"""``python -m slurmgpu.sampling FOLDER JOB_ID SECONDS GPUS PARENT``: one process on each node; ``start.sh`` starts it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]

_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_PASSED_BY = (
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGPIPE,
)  # told to the job, which saves then
_LOOK = 2.0  # seconds between looks at whether what started it is still there
_LAST = 1.0  # seconds for a last sample


def main(arguments: Sequence[str]) -> None:
    """Sample until told to end, or until what started it has gone; the exit code is always 0."""
    waited_for = {*_ENDS, *_PASSED_BY}
    # Taken up here alone: no driver that hangs in another thread keeps the process from ending.
    signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    stop = threading.Event()
    try:
        _start(arguments, stop, int(arguments[4]), waited_for)
    except Exception:
        pass
    finally:
        os._exit(0)  # no thread is waited for


def _start(
    arguments: Sequence[str], stop: threading.Event, parent: int, waited_for: set[signal.Signals]
) -> None:
    from .sampler import Sampler, Told

    os.umask(0o022 | os.umask(0o022))
    os.nice(19)
    folder, job_id, seconds, gpus = arguments[:4]
    told = Told(Path(folder), job_id, float(seconds), int(gpus) if gpus.isdecimal() else None)
    sampler = Sampler(told, os.environ)
    threading.Thread(target=sampler.run, args=(stop,), daemon=True).start()
    while os.getppid() == parent and not sampler.ended.is_set():
        told_to = signal.sigtimedwait(waited_for, _LOOK)
        if told_to is not None and told_to.si_signo in _ENDS:
            break
    stop.set()
    sampler.ended.wait(_LAST)


if __name__ == "__main__":
    main(sys.argv[1:])
