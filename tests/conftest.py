"""What all tests share: the same examples from Hypothesis in every run, Ctrl-C that is heard, and modules compiled once."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from itertools import count, zip_longest
from pathlib import Path

import pytest

with contextlib.suppress(ImportError):  # tests/training runs where there is only torch, too
    from hypothesis import HealthCheck, settings

    # How fast a busy machine draws and runs them is no promise of ours.
    settings.register_profile(
        "the-same-every-time", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("the-same-every-time")

# Shells start what runs in the background deaf to SIGINT, and what it starts inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_COMPILED = pytest.StashKey[str]()


_SESSIONS = count()


@pytest.fixture(scope="session")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sessions")


@pytest.fixture(autouse=True)
def _own_answers(sessions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of Slurm are shared within a test, and with nobody else on this machine."""
    session = sessions / str(next(_SESSIONS))
    session.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))


def pytest_configure(config: pytest.Config) -> None:
    """Keep the bytecode of what tests start in one folder for the run, away from the sources.

    The tests start slurmgpu over a thousand times. Where PYTHONDONTWRITEBYTECODE is set, as in many containers, each
    start would compile every module anew, which takes longer than the rest of the command.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if "PYTHONPYCACHEPREFIX" in os.environ:
        return  # make has named one that stays, or the controller one for its workers
    folder = tempfile.mkdtemp(prefix="slurmgpu-tests-bytecode-")
    Path(folder).chmod(0o755)  # for tests that act as a second user
    config.stash[_COMPILED] = folder
    os.environ["PYTHONPYCACHEPREFIX"] = folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """After each file on a real Slurm come two others: the former mostly wait, and the latter compute."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waiting = [each for path, each in files.items() if path.parent.name == "slurm"]
    computing = [each for path, each in files.items() if path.parent.name != "slurm"]
    pairs = [computing[place : place + 2] for place in range(0, len(computing), 2)]
    order = [
        each for one, two in zip_longest(waiting, pairs) for each in ([one] if one else []) + (two or [])
    ]
    items[:] = [item for each in order for item in each]


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector off what is collected: it stays to the end, and nothing of it would be found."""
    gc.disable()
    yield
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    folder = config.stash.get(_COMPILED, None)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
