"""A bench on this machine: its folder, and the process that measures."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from slurmgpu.errors import InvalidInput, RunFailed
from slurmgpu.files.settings import runs_by_settings
from slurmgpu.interrupts import as_interrupts
from slurmgpu.runs.bench.results import ASKED, ROWS, Results, read_results
from slurmgpu.runs.directory import copy_entrypoint

__all__ = ["measure_here", "new_bench_folder"]

_PATIENCE = 20.0
"""Seconds that a bench has to end what it measures."""


def new_bench_folder(kind: str, to: str | None) -> Path:
    """Make the folder of a bench's results: the one that is named, or one under the runs."""
    if to is not None:
        folder = Path(to).absolute()
    else:
        now, cwd = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ"), Path.cwd()
        folder = runs_by_settings(cwd, os.environ)(cwd) / f"bench-{kind}-{now}-{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise InvalidInput(
            f"--to {to}: it is there already", hint="name a folder that is not there yet"
        ) from None
    except OSError as error:
        raise RunFailed(f"{folder} cannot be made: {error.strerror}", hint="name another with --to") from None
    return folder


def measure_here(asked: Mapping[str, object], python: str, folder: Path, nice: int) -> Results:
    """Measure in a process of its own, which says on standard error how far it is; what it found, and left in the folder."""
    command = [python, "-m", "slurmgpu_training.benching", str(folder / ASKED), str(folder / ROWS)]
    if nice:
        command = ["nice", "-n", str(nice), *command]
    code = folder / "code"
    path = os.pathsep.join(filter(None, [str(code), os.environ.get("PYTHONPATH")]))
    try:
        (folder / ASKED).write_text(json.dumps(asked), encoding="utf-8")
        copy_entrypoint(code)
        try:
            started = subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": path})
        except OSError as error:
            raise RunFailed(f"{python} cannot be started: {error.strerror}") from None
        ended = _wait_for_end(started)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise RunFailed(
            f"{folder} cannot be written: {error.strerror}", hint="name another with --to"
        ) from None
    finally:
        shutil.rmtree(code, ignore_errors=True)
    results = read_results(folder / ROWS)
    if not results.machine:
        raise RunFailed(
            f"nothing was measured: {python} ended with code {ended}",
            hint="its own words stand above; --python PATH takes another Python",
        )
    return results


def _wait_for_end(started: subprocess.Popen[bytes]) -> int:
    """Return its exit code. Interrupted, it ends what it has started; in the middle of a long computation it hears of nothing,
    and is killed in the end: what it has started ends with it."""
    patience = None
    while True:
        try:
            with as_interrupts():
                return started.wait(patience)
        except KeyboardInterrupt:  # of Ctrl-C it knows already
            if patience is not None:
                started.kill()
            started.terminate()
            patience = _PATIENCE
        except subprocess.TimeoutExpired:
            started.kill()
