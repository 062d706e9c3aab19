"""One process of a training, ``python -m slurmgpu_training [train.json]``, started by torchrun, srun or hand.

``--prepare`` before the file: only the task's ``prepare(cfg)``, in one process that waits for no other. With
SLURMGPU_ESTIMATE in the environment, numbers of GPUs such as ``1,8``, it works out the memory that the training takes instead.
With SLURMGPU_COMPARE, it holds its checkpoint against others at its end, as ``compare.json`` in the run directory says.

Exit codes: 0 done; 1 failed; 2 settings that are not valid; 75 stopped by a signal or the clock, everything saved:
start again to go on; 128 + the signal's number: ended by it before there was anything to save.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import sysconfig
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Optional

from . import settings
from .errors import EvaluationFailed, Mismatch, Paused, SettingsError, TakenOver, TrainingError
from .processes.ranks import Ranks, from_environment
from .watching.console import duration
from .watching.signals import Signals

# What gloo and nccl say when another rank has gone; that rank's own error is the one to read.
_LOST = (
    "closed by peer",
    "Failed to recv",
    "reset by peer",
    "Broken pipe",
    "remote process exited",
    "communicator was aborted",
)

# What torch says, and what it means here.
_HINTS = {
    # DDP's own advice names an argument of a constructor that is not the user's to call.
    "find_unused_parameters=True": "this is a setting: find_unused_parameters: true "
    "(without it, each step must use all parameters)",
    "Expected all tensors to be on the same device": "make tensors where the batch is (device=x.device), or keep them "
    "in a module that is an attribute of the task: those that loss uses are moved",
    "Cannot re-initialize CUDA in forked": "the data set uses the GPU, and data-loader workers cannot: "
    "set workers: 0, or leave it to the CPU, from where batches are copied to the GPU",
}


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run one rank; when it fails, end the process at once, so that the other ranks are released."""
    ranks = Ranks()
    # First in, last out: all that others registered runs. What comes after that can abort a finished run,
    # for torch leaves threads of the process group behind, which meet an interpreter being taken down.
    code = [1]  # whatever leaves this function in a way not foreseen has failed
    atexit.register(lambda: _leave(code[0]))
    signals = Signals(_leave)
    advice: list[str] = []
    try:
        if arguments[:1] == ["--prepare"]:
            _prepare(arguments[1:], environment)
        else:
            ranks = from_environment(environment)
            _run(arguments, environment, ranks, signals, advice)
        code[0] = 0
    except Paused as pause:
        code[0] = pause.exit_code
    except TrainingError as error:
        if isinstance(error, (EvaluationFailed, TakenOver)):
            time.sleep(5)  # srun ends all when the first one leaves: that be a rank which can say why
        if isinstance(error, Mismatch) and not ranks.first:
            time.sleep(5)  # all know the same of it, and rank 0 says it
            _leave(error.exit_code)
        _complain(ranks, f"error: {error}")
        _leave(error.exit_code)
    except SystemExit as end:  # a task may end the run so, with a message
        if not end.code:
            code[0] = 0
            raise
        _complain(ranks, f"error: {end.code}")
        _leave(end.code if isinstance(end.code, int) else 1)
    except BaseException as error:
        _explain(ranks, error, advice)
        _leave(1)


def _run(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    ranks: Ranks,
    signals: Signals,
    advice: list[str],
) -> None:
    """Train; what is known about an error beside its own words goes into ``advice``."""
    settings_file, run_dir = _locate(arguments, environment)
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # it is not needed here
    # torch takes a second to import: not before the command line is known to make sense.
    _require_torch()
    from . import trainer
    from .processes import given, group

    values = settings.load(settings_file)
    trainer.check_strategy(values, ranks.world_size)
    if values.device != "cpu":
        given.check(ranks, environment, _say, how_on_cpu="train.device: cpu", one_each=True)
    with group.join(ranks, values.timeout, values.device) as joined:
        if ranks.first and settings_file.parent == run_dir:
            with contextlib.suppress(OSError, ValueError):  # the next start does it
                settings.complete(settings_file, values)
        trainer.train(values, run_dir, joined, environment, signals, advice)
        if environment.get("SLURMGPU_COMPARE"):
            from . import comparing

            joined.on_first(lambda: comparing.compare_as_asked(run_dir))


def _prepare(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    settings_file, run_dir = _locate(arguments, environment)
    values = settings.load(settings_file)
    _require_torch()
    if environment.get("SLURMGPU_ESTIMATE"):
        from .estimating.arithmetic import write_estimate

        write_estimate(values, [int(each) for each in environment["SLURMGPU_ESTIMATE"].split(",")], run_dir)
        return
    from . import task

    loaded = task.load(values.task)
    if not loaded.has("prepare"):
        _say(f"{values.task} has no prepare(cfg): there is nothing to prepare")
        return
    began = time.monotonic()
    loaded.prepare(settings.Config(values))
    took = duration(time.monotonic() - began)
    _say(f"prepared {values.task} in {took}, on {socket.gethostname()} with {sys.executable}")


def _require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise TrainingError(
            f"{sys.executable} has no torch: use the module, container or environment that has it"
        ) from None


def _locate(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[Path, Path]:
    """Return the settings file and the run directory, from the argument and SLURMGPU_RUN_DIR; either is enough."""
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


def _explain(ranks: Ranks, error: BaseException, advice: Sequence[str]) -> None:
    """Print the traceback; for a lost connection only that: another rank prints its cause."""
    text = str(error)
    if isinstance(error, RuntimeError) and any(sign in text for sign in _LOST):
        time.sleep(1)  # the signal that ended the other rank may be on its way here too
        first_line = text.splitlines()[0]
        _complain(
            ranks, f"error: lost another rank: it was killed, or its own message says why ({first_line})"
        )
    else:
        trace = _from_the_users_code(error.__traceback__)
        hints = [f"hint: {hint}" for sign, hint in _HINTS.items() if sign in text]
        told = "".join(traceback.format_exception(type(error), error, trace))
        _complain(ranks, "\n".join([told.rstrip("\n"), *hints, *(f"error: {each}" for each in advice)]))


def _from_the_users_code(trace: Optional[TracebackType]) -> Optional[TracebackType]:
    """Return the traceback from the first frame that is neither ours nor a library's; all of it where there is none."""
    python = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    ours = tuple(f"{folder}{os.sep}" for folder in (Path(__file__).parent, *python))
    found = trace
    while found is not None:
        file = found.tb_frame.f_code.co_filename
        # By name: a library may be this user's own, or in a module's folder on PYTHONPATH.
        installed = {"site-packages", "dist-packages"}.intersection(Path(file).parts)
        if not installed and not file.startswith((*ours, "<")):
            return found
        found = found.tb_next
    return trace


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it, or the disk is full: what was done is done
        print(text, flush=True)


def _complain(ranks: Ranks, text: str) -> None:
    """Write to stderr in one piece, each line marked with its rank where there are several."""
    prefix = f"[{ranks}] " if ranks.world_size > 1 else ""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
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
