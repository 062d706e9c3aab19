"""One process of a training, ``python -m slurmgpu_training [train.json]``, started by torchrun, srun or hand.

Exit codes: 0 done; 1 failed; 2 settings that are not valid; 75 stopped by a signal or the clock, everything saved:
start again to go on; 128 + the signal's number: ended by it before there was anything to save.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from .errors import Paused, SettingsError, TrainingError
from .ranks import Ranks, from_environment
from .signals import Signals

# What gloo and nccl say when another rank has gone; that rank's own error is the one to read.
_LOST = (
    "closed by peer",
    "reset by peer",
    "Broken pipe",
    "remote process exited",
    "communicator was aborted",
)


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run one rank; when it fails, end the process at once, so that the other ranks are released."""
    ranks = Ranks()
    # First in, last out: all that others registered runs. What comes after that can abort a finished run,
    # for torch leaves threads of the process group behind, which meet an interpreter being taken down.
    code = [0]
    atexit.register(lambda: _leave(code[0]))
    signals = Signals(_leave)
    try:
        ranks = from_environment(environment)
        _run(arguments, environment, ranks, signals)
    except Paused as pause:
        code[0] = pause.exit_code
    except TrainingError as error:
        _complain(ranks, f"error: {error}")
        _leave(error.exit_code)
    except SystemExit as end:  # a task may end the run so, with a message
        if not end.code:
            raise
        _complain(ranks, f"error: {end.code}")
        _leave(end.code if isinstance(end.code, int) else 1)
    except BaseException as error:
        _explain(ranks, error)
        _leave(1)


def _run(arguments: Sequence[str], environment: Mapping[str, str], ranks: Ranks, signals: Signals) -> None:
    settings_file, run_dir = _locate(arguments, environment)
    # torch takes a second to import: not before the command line is known to make sense.
    from . import group, run, settings

    values = settings.load(settings_file)
    with group.join(ranks, values.timeout) as joined:
        run.train(values, run_dir, joined, environment, signals)


def _locate(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[Path, Path]:
    """The settings file and the run directory, from the argument and SLURMGPU_RUN_DIR; either is enough."""
    named = environment.get("SLURMGPU_RUN_DIR", "")
    if len(arguments) > 1 or (arguments and arguments[0].startswith("-")):
        raise SettingsError(f"takes one argument, the path of a train.json; got {' '.join(arguments)}")
    if not arguments and not named:
        raise SettingsError("set SLURMGPU_RUN_DIR to the run directory, or give the path of a train.json")
    settings_file = Path(arguments[0]) if arguments else Path(named, "train.json")
    run_dir = Path(named) if named else settings_file.parent
    if not run_dir.is_dir():
        raise SettingsError(f"the run directory {run_dir} does not exist")
    return settings_file, run_dir


def _explain(ranks: Ranks, error: BaseException) -> None:
    """Print the traceback; for a lost connection only that, for its cause is printed by another rank."""
    text = str(error)
    if isinstance(error, RuntimeError) and any(sign in text for sign in _LOST):
        time.sleep(1)  # the signal that ended the other rank may be on its way here too
        first_line = text.splitlines()[0]
        _complain(ranks, f"error: lost another rank, whose own message says why ({first_line})")
    else:
        _complain(ranks, "".join(traceback.format_exception(type(error), error, error.__traceback__)))


def _complain(ranks: Ranks, text: str) -> None:
    """Write to stderr in one piece, each line marked with its rank where there are several."""
    prefix = f"[{ranks}] " if ranks.world_size > 1 else ""
    sys.stdout.flush()
    sys.stderr.write("".join(f"{prefix}{line}\n" for line in text.rstrip("\n").splitlines()))
    sys.stderr.flush()


def _leave(code: int) -> NoReturn:
    """End now: a normal exit would wait for ranks that are gone, and for loader workers."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises when a loader worker is killed
        for child in multiprocessing.active_children():
            child.kill()
        sys.stdout.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
