"""``slurmgpu run``: the rendered script itself, byte for byte, on this machine's CPU and without Slurm.

What belongs to Slurm and the site is stood in for (:mod:`slurmgpu.local.standins`), and
:func:`stand_ins` says by what before anything runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurmgpu.errors import RunFailed
from slurmgpu.local.environment import batch_environment, pretended_job
from slurmgpu.local.site import LocalRequest, find_site, read_needs, stand_ins
from slurmgpu.local.standins.folder import write_folder

__all__ = ["LocalRequest", "run_here", "stand_ins"]

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_here(request: LocalRequest) -> int:
    """Run the script to its end and return its exit code; 130 after Ctrl-C, 143 after TERM.

    ``script.sbatch`` in the run directory runs; it is written if it is not there. stdout and stderr
    are this process's own. No process and no temporary file outlives the call.

    Raises:
        PlanError: as :func:`stand_ins`.
        RunFailed: there is no bash here, or the run directory holds another script.
    """
    stand_ins(request)
    script = request.run_dir.absolute() / "script.sbatch"
    data = request.script.encode()
    if not script.exists():
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_bytes(data)
    elif script.read_bytes() != data:
        hint = "run in another directory, or remove that file"
        raise RunFailed(f"{script} is not the script that was asked for", hint=hint)
    bash = shutil.which("bash")
    if bash is None:
        raise RunFailed("bash is not on PATH; the script needs it", hint="install bash, or add it to PATH")
    folder = _executable_folder()
    try:
        reading = read_needs(request.script)
        site = find_site(request, reading, os.environ)
        job = pretended_job(request, reading, bash, script)
        pretended = write_folder(folder, job, site, sys.executable)
        environment = {**batch_environment(request, reading, job, folder), **pretended}
        chdir = request.submit_dir / reading.asks("chdir")
        return _supervised(folder, environment, cwd=chdir if chdir.is_dir() else request.submit_dir)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _executable_folder() -> Path:
    """Make a temporary folder whose files may be executed: /tmp is mounted noexec at some sites."""
    tried = []
    for parent in (None, os.environ.get("HOME"), str(Path.cwd())):
        with contextlib.suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix="slurmgpu-run-", dir=parent))
            tried.append(str(folder.parent))
            probe = folder / "probe"
            probe.write_text("#!/bin/sh\n", encoding="utf-8")
            probe.chmod(0o700)
            with contextlib.suppress(OSError):
                if os.pathsep not in str(folder) and subprocess.run([probe], check=False).returncode == 0:
                    return folder
            shutil.rmtree(folder, ignore_errors=True)
    raise RunFailed(
        f"no folder for the stand-ins: nothing can be executed in {', '.join(tried)}",
        hint="set TMPDIR to a folder that is not mounted noexec and has no colon in its name",
    )


def _supervised(folder: Path, environment: Mapping[str, str], cwd: Path) -> int:
    """Start the supervisor in a session of its own, so that Ctrl-C reaches the job through it alone."""
    main = Path(__file__).parent / "standins" / "__main__.py"
    command = [sys.executable, "-I", "-S", str(main), "supervise", str(folder), str(os.getpid())]
    sys.stdout.flush()
    sys.stderr.flush()
    # No signal may come between the start and the handler: the supervisor unblocks them when it is ready.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    try:
        process = subprocess.Popen(
            command, env=environment, cwd=cwd, stdin=subprocess.DEVNULL, start_new_session=True
        )
        before: dict[int, Any] = {}
        with contextlib.suppress(ValueError):  # outside the main thread
            for passed in _PASSED_ON:
                # Ignored under nohup, or in a job of a shell in the background: the user wants it to go on.
                if signal.getsignal(passed) is not signal.SIG_IGN:
                    before[passed] = signal.signal(passed, lambda number, _: process.send_signal(number))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    try:
        code = process.wait()
        return 128 - code if code < 0 else code
    finally:
        for signum, previous in before.items():
            signal.signal(signum, previous)
