"""Nothing that a local run starts outlives it, however it ends (Linux: /proc shows what is left)."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")

DRIVER = """\
import sys
from pathlib import Path
from slurmgpu.local.running import LocalRequest, run_here
here = Path(sys.argv[1])
script = (here / "script").read_text()
sys.exit(run_here(LocalRequest(script=script, run_dir=here / "run", submit_dir=here, job_name="tree",
                               nodes=2, python=Path(sys.executable), grace=float(sys.argv[2]))))
"""

# Ignores TERM, and starts a child in a session of its own that has lost its parent and its environment.
STUBBORN = """\
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
marker = sys.argv[1]
orphan = "trap '' TERM; (/bin/sleep 600; : $0) & wait"
subprocess.Popen(["setsid", "env", "-i", "/bin/sh", "-c", orphan, marker])
Path = __import__("pathlib").Path
Path(f"ready-{os.environ.get('SLURM_PROCID', '0')}-{os.environ.get('LOCAL_RANK', '0')}").touch()
time.sleep(600)
"""


def alive(marker: str) -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                words, around = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
            except OSError:
                continue
            if marker.encode() in words or marker.encode() in around:
                found.append(f"{folder.name}: {words!r}")
    return found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    marker = "marker-" + secrets.token_hex(8)
    (tmp_path / "marker").write_text(marker)
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    (tmp_path / "tmp").mkdir()
    started: list[subprocess.Popen[bytes]] = []

    def begin(script: str, ready: int, grace: float = 0.3) -> subprocess.Popen[bytes]:
        (tmp_path / "script").write_text(script.replace("MARKER", marker))
        environment = {**os.environ, "LOCAL_RUN_TEST": marker, "TMPDIR": str(tmp_path / "tmp")}
        command = [sys.executable, "-c", DRIVER, str(tmp_path), str(grace)]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        started.append(process)
        deadline = time.monotonic() + 120
        while len(list(tmp_path.glob("ready-*"))) < ready:
            assert process.poll() is None, process.communicate()[1].decode()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    assert alive(marker) == []
    assert list((tmp_path / "tmp").glob("slurmgpu-*")) == []


TORCHRUN = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
set -euo pipefail
srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --kill-on-bad-exit=1 \\
  sh -c 'exec python3 -m torch.distributed.run --node-rank="$SLURM_NODEID" "$@"' sh \\
  --nnodes=2 --nproc-per-node=1 --master-addr=node1 --master-port=$((10000 + SLURM_JOB_ID % 20000)) \\
  stubborn.py MARKER
"""


def test_ctrl_c_leaves_nothing_of_a_torchrun_job(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = start(TORCHRUN, ready=2)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130


def test_ctrl_c_leaves_nothing_of_a_plain_script(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = start("python3 stubborn.py MARKER | cat\n", ready=1)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130


def test_a_second_ctrl_c_does_not_wait_for_the_grace(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = start("srun python3 stubborn.py MARKER\n", ready=2, grace=600)
    process.send_signal(signal.SIGINT)
    assert any(b"interrupted" in line for line in iter(process.stderr.readline, b""))
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130


def test_a_hangup_that_nohup_ignores_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("kill -HUP $(ps -o ppid= $PPID)\nsleep 0.2\nexit 5\n")
    command = ["nohup", sys.executable, "-c", DRIVER, str(tmp_path), "1"]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 5


def test_term_ends_the_run_with_143(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = start("srun python3 stubborn.py MARKER\n", ready=2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143


def test_killing_it_leaves_nothing(start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    process = start("srun python3 stubborn.py MARKER\n", ready=2)
    process.kill()
    process.wait(60)
    marker = (tmp_path / "marker").read_text()
    deadline = time.monotonic() + 60
    while (alive(marker) or list((tmp_path / "tmp").glob("slurmgpu-*"))) and time.monotonic() < deadline:
        time.sleep(0.05)


def test_a_failed_task_leaves_nothing_of_the_others(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    inner = """sh -c 'if [ "$SLURM_PROCID" = 1 ]; then
      while [ ! -e ready-0-0 ]; do sleep 0.05; done; exit 9; fi; exec python3 stubborn.py MARKER'"""
    process = start(f"srun --kill-on-bad-exit=1 {inner}\n", ready=1)
    assert process.wait(60) == 137


def test_term_leaves_time_to_save(start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    (tmp_path / "saver.py").write_text(
        "import pathlib, signal, sys, time\n"
        "def save(*_):\n"
        "    with open('saved', 'a') as file: file.write('once\\n')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "pathlib.Path('ready-0').touch()\n"
        "time.sleep(600)\n"
    )
    process = start(
        "#SBATCH --nodes=2\nsrun --nodes=1 --ntasks=1 sh -c 'exec python3 saver.py'\n", ready=1, grace=60
    )
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert (tmp_path / "saved").read_text() == "once\n"
