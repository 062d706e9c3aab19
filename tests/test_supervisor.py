"""A sandbox's supervisor ends with all it keeps, whatever ends it; no Slurm is needed for that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from slurmgpu.sandbox import supervisor

# Its pipe is closed, and TERM comes in the instant before it would be ignored.
LATE_TERM = """
import os, signal, sys
sys.path.insert(0, sys.argv.pop(1))
import supervisor

settle, late = signal.signal, []

def signal_(number, handler):
    if (number, handler) == (signal.SIGTERM, signal.SIG_IGN) and not late:
        late.append(True)
        os.kill(os.getpid(), signal.SIGTERM)
    return settle(number, handler)

signal.signal = signal_
supervisor.main()
"""


def test_a_term_just_after_its_pipe_closed_does_not_keep_it_from_cleaning_up(tmp_path: Path) -> None:
    folder = tmp_path / "sandbox"
    folder.mkdir()
    os.mkfifo(folder / "requests")
    code = Path(supervisor.__file__).parent
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LATE_TERM, str(code), str(folder)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not folder.exists()
