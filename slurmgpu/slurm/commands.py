"""The one place that starts Slurm's commands: what is run, in which environment, for which cluster, what came back."""

from __future__ import annotations

import atexit
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from slurmgpu.errors import SlurmUnreachable
from slurmgpu.slurm.shelf import Shelf, changes, note_change, only_reads
from slurmgpu.slurm.text import Answer

__all__ = [
    "Answer", "Commands", "Runner", "call", "cluster_name_here", "current_user", "reading_env", "start", "submission_env",
    "talks_to_a_cluster", "unreachable",
]  # fmt: skip


READ_TIMEOUT = 60.0
PATIENCE = 2.0
"""Seconds after which a person is told what is being waited for."""

# An ambient SBATCH_TIMELIMIT overrides the script, an SQUEUE_FORMAT changes what is printed, and inside a job
# SLURM_* describes that job, not the one being submitted.
_SCRUBBED = (
    "SBATCH_", "SLURM_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SSTAT_", "SCANCEL_", "SINFO_", "SPRIO_",
)  # fmt: skip
# These say which Slurm to talk to and who asks; without them another cluster answers, or none. Sites with
# several clusters set SLURM_CLUSTERS from a module, and their users expect it to hold.
_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT"})


# The commands of which a person knows that they are slow to answer: who asks again and again says so once.
_WAITED_FOR: set[str] = set()


class Runner(Protocol):
    """Anything that can stand in for `call`."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Answer:
        """Run argv and return its answer."""


def current_user() -> str:
    """The name of this process's user, whatever USER says; the number where the machine knows none (in some containers)."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def submission_env(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return `env` (default: this process's) without the variables that would change a submission in silence.

    The job inherits this environment, so nothing is added to it.
    """
    source = os.environ if env is None else env
    return {k: v for k, v in source.items() if k in _KEPT or not k.startswith(_SCRUBBED)}


def reading_env(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of the commands that only read.

    Times come as seconds since 1970, which a change of daylight saving cannot make ambiguous, and the ids of
    a long array come whole instead of cut at 64 characters.
    """
    return submission_env(env) | {"LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


def call(
    argv: Sequence[str],
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Answer:
    """Run one of Slurm's commands and return what it said, whatever its exit status.

    `env` is the whole environment of the command (default: `reading_env()`). Raises SlurmUnreachable when
    the command is not installed here or cannot be started.
    """
    environment = reading_env() if env is None else dict(env)
    # A session of its own, so that a time-out ends the children of a site's wrapper script, too.
    process = start(
        argv,
        env=environment,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = _answer_of(process, argv[0], timeout, environment)
        rc = process.returncode if process.returncode >= 0 else None
    except subprocess.TimeoutExpired:
        out, err, rc = *_end(process), None
        err += f"\n{argv[0]}: no answer in {timeout:g} s".encode()
    except BaseException:
        _end(process)
        raise
    finally:
        _READING.discard(process)
    return Answer(tuple(argv), rc, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


_READING: set[subprocess.Popen[bytes]] = set()
"""Commands that nobody waits for once this process ends: those of its other threads, too."""


class _ReadingCommand(subprocess.Popen[bytes]):
    """A command that is registered before it is started: a signal may end this process at any moment after that.

    It is started by a thread of its own. What a signal raises comes in the main thread, and would lose there the number of a
    process that has just been started.
    """

    def __init__(self, argv: Sequence[str], **how: Any) -> None:
        self.pid = 0
        _READING.add(self)
        failed: list[BaseException] = []
        thread = threading.Thread(target=self._start, args=(argv, how, failed), daemon=True)
        thread.start()
        thread.join()
        if failed:
            _READING.discard(self)
            raise failed[0]

    def _start(self, argv: Sequence[str], how: dict[str, Any], failed: list[BaseException]) -> None:
        try:
            super().__init__(argv, **how)
        except BaseException as error:
            failed.append(error)


@atexit.register
def _end_reading() -> None:
    for process in list(_READING):
        for _ in range(200):  # another thread is starting it this moment
            if process.pid:
                break
            time.sleep(0.01)
        with suppress(ProcessLookupError):
            if process.pid:
                os.killpg(process.pid, signal.SIGKILL)


def start(argv: Sequence[str], *, env: Mapping[str, str], **how: Any) -> subprocess.Popen[bytes]:
    """Start one of Slurm's commands; ``how`` is subprocess's.

    Raises SlurmUnreachable when it is not installed here or cannot be started.
    """
    program = shutil.which(argv[0], path=env.get("PATH"))
    if program is None:
        raise SlurmUnreachable(
            f"{argv[0]} is not on PATH: Slurm's client commands are not installed on this machine.",
            hint="Run this on a login node of the cluster, or try the job on this machine with: slurmgpu run",
        )
    try:
        kind = _ReadingCommand if only_reads(argv) else subprocess.Popen
        return kind([program, *argv[1:]], env=dict(env), **how)
    except OSError as error:
        raise SlurmUnreachable(
            f"{argv[0]} cannot be started: {error.strerror}",
            hint="try it by hand: " + " ".join((argv[0], "--version")),
        ) from None


def _answer_of(
    process: subprocess.Popen[bytes], name: str, timeout: float, env: Mapping[str, str]
) -> tuple[bytes, bytes]:
    """Return what the command says, and a word to the person who waits for it; TimeoutExpired after `timeout`."""
    if timeout <= PATIENCE:
        return process.communicate(timeout=timeout)
    try:
        answer = process.communicate(timeout=PATIENCE)
        _WAITED_FOR.discard(name)
        return answer
    except subprocess.TimeoutExpired:
        if sys.stderr is not None and name not in _WAITED_FOR:  # None: closed by `2>&-`
            _WAITED_FOR.add(name)
            said = f"slurmgpu: waiting for {name} to answer, {timeout:g} s at most ..."
            print(said + _doubt_about_configuration(env), file=sys.stderr, flush=True)
    return process.communicate(timeout=timeout - PATIENCE)


def _doubt_about_configuration(env: Mapping[str, str]) -> str:
    """Return why the wait may be in vain: without its file, Slurm looks for a cluster by name, and takes its time."""
    named = env.get("SLURM_CONF")
    return (
        f" (SLURM_CONF is {named}, and no such file is here)" if named and not Path(named).is_file() else ""
    )


def _end(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        return b"", b""


def unreachable(answer: Answer) -> SlurmUnreachable:
    """Return the error for an answer that is none, with what to do about it."""
    name, said = answer.argv[0], answer.text or f"nothing (exit status {answer.rc})"
    if "onfiguration" in answer.stderr:
        return SlurmUnreachable(
            f"Slurm's commands are here, but they find no cluster. {name} said: {said}",
            hint="Run this on a login node of the cluster, or set SLURM_CONF to its slurm.conf",
        )
    if "ate limit" in answer.stderr:
        return SlurmUnreachable(
            f"Slurm's controller has been asked too often. {name} said: {said}",
            hint="Try again in a minute; something of yours may ask it in a loop: squeue, sacct, watch",
        )
    return SlurmUnreachable(
        f"Slurm's controller does not answer. {name} said: {said}",
        hint="Try again in a minute; if this continues, ask your cluster's support",
    )


@dataclass
class Commands:
    """The Slurm that this process talks to; notes what it asks, since every call loads the controller."""

    run: Runner = call
    env: Mapping[str, str] | None = None
    """The environment to start from (default: this process's)."""
    asked: list[tuple[str, ...]] = field(default_factory=list)
    doubted: set[str] = field(default_factory=set)
    """The jobs of which accounting says that they live, and of which the queue, asked once more, knew nothing."""
    shelf: Shelf | None = None
    """Where answers are shared with the user's other processes; None: what is asked here is asked anew."""

    def ask(
        self,
        argv: Sequence[str],
        *,
        timeout: float = READ_TIMEOUT,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Answer:
        """Run a command (in the reading environment unless `env` is given) and return its answer.

        What only reads may be answered from the shelf. Raises SlurmUnreachable where that is all that may be asked, and
        has nothing.
        """
        whole = reading_env(self.env) if env is None else env

        def now() -> Answer:
            self.asked.append(tuple(argv))
            return self.run(argv, timeout=timeout, env=whole, cwd=cwd)

        if self.shelf is not None and env is None and only_reads(argv):
            answer = self.shelf.answer(argv, whole, now)
            if answer is None:
                raise SlurmUnreachable(f"{argv[0]} has never answered this on this machine")
            return answer
        if not changes(argv) or self.run is not call:
            return now()
        try:
            return now()
        finally:
            note_change(self.env)  # whatever came of it

    def oldest(self, first: int = 0) -> float:
        """Return the age in seconds of the oldest answer since the ``first`` of the shelf's; 0.0 where all were asked for."""
        return max(self.shelf.ages[first:], default=0.0) if self.shelf is not None else 0.0

    def count(self, command: str) -> int:
        """Return how often `command` was called."""
        return sum(argv[0] == command for argv in self.asked)


# Where clients look without SLURM_CONF: the usual folders, and where a configless client keeps its copy.
_PLACES = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")
_NAME = re.compile(r"^\s*ClusterName\s*=\s*([^\s#]+)", re.IGNORECASE | re.MULTILINE)


def cluster_name_here(env: Mapping[str, str] | None = None) -> str | None:
    """Return ClusterName from this machine's slurm.conf (no call to Slurm); None if that cannot be read."""
    environment = os.environ if env is None else env
    chosen = environment.get("SLURM_CONF")
    for place in [chosen] if chosen else _PLACES:
        try:
            match = _NAME.search(Path(place).read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
        if match:
            return match[1].lower()
    return None


def talks_to_a_cluster(slurm: Commands) -> bool:
    """Return True if Slurm's commands here belong to a cluster: a package alone, without a configuration, does not.

    Where no file tells, `scontrol ping` is asked: it fails at once when there is nothing to talk to.
    """
    environment = os.environ if slurm.env is None else slurm.env
    if shutil.which("sbatch", path=environment.get("PATH")) is None:
        return False
    if environment.get("SLURM_CONF") or any(Path(place).exists() for place in _PLACES):
        return True
    answer = slurm.ask(["scontrol", "ping"], timeout=5.0)
    return answer.ok or answer.rc is None
