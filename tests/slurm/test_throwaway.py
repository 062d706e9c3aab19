"""What the other tests rely on: the throwaway Slurm is a real one, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from slurmgpu.sandbox import starting
from tests.slurm.throwaway import ThrowawaySlurm, scrubbed

pytestmark = [pytest.mark.slurm, pytest.mark.long]


def processes_that_mention(folder: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            about = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            links = [entry / "cwd", *(entry / "fd").iterdir()]
        except OSError:
            continue
        # A step daemon may write its title over its environment.
        targets = []
        for link in links:
            with suppress(OSError):
                targets.append(str(link.readlink()))
        if folder.encode() in about or any(target.startswith(f"{folder}/") for target in targets):
            with suppress(OSError):  # it may end while it is looked at
                found.append(f"{entry.name} {(entry / 'comm').read_text().strip()}")
    return found


def wait_until_gone(folder: Path) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and (folder.exists() or processes_that_mention(str(folder))):
        time.sleep(0.1)
    assert not folder.exists()
    assert processes_that_mention(str(folder)) == []


def test_four_idle_nodes_have_four_gpus_each(slurm: ThrowawaySlurm) -> None:
    slurm.wait_until_idle()
    rows = slurm.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %T %G %c %m"]).stdout.splitlines()
    assert [row.split() for row in rows] == [
        [f"node{number}", "idle", "gpu:a100:4", "16", "64000"] for number in (1, 2, 3, 4)
    ]


def test_a_surrounding_job_does_not_leak_in() -> None:
    around = {
        "SBATCH_ACCOUNT": "a",
        "SLURM_JOB_ID": "1",
        "SLURM_CONF": "/x",
        "SQUEUE_FORMAT": "%i",
        "SLURMD_NODENAME": "n",
    }
    ours = {"SLURMGPU_SITE": "/site", "PATH": "/bin"}
    assert scrubbed(around | ours) == ours


def test_stopping_leaves_nothing_behind(tmp_path: Path) -> None:
    with ThrowawaySlurm() as own:
        # A job that leaves its session and ignores polite signals is the hardest one to end.
        stubborn = "trap '' TERM HUP INT; setsid sleep 301 & touch started; sleep 301"
        own.run(["sbatch", "--output=/dev/null", f"--chdir={tmp_path}", "--wrap", stubborn])
        deadline = time.monotonic() + 180
        while not (tmp_path / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (tmp_path / "started").exists()
        assert any("sleep" in process for process in processes_that_mention(str(own.folder)))
    assert not own.folder.exists()
    assert processes_that_mention(str(own.folder)) == []


def test_a_killed_test_runner_leaves_nothing_behind() -> None:
    script = (
        "from tests.slurm.throwaway import ThrowawaySlurm; import time\n"
        "print(ThrowawaySlurm().folder, flush=True); time.sleep(300)"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=root
    ) as runner:
        assert runner.stdout is not None
        folder = Path(runner.stdout.readline().strip())
        assert (folder / "slurm.conf").exists()
        runner.send_signal(signal.SIGKILL)
    wait_until_gone(folder)


def test_stopping_does_not_wait_for_a_stranger_that_holds_the_pipe_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a process does that was forked off meanwhile, such as a data loader's worker."""
    monkeypatch.setattr(starting, "BY_ITSELF_SECONDS", 0.5)
    with ThrowawaySlurm() as own:
        pipe = own._started.supervisor.stdin
        assert pipe is not None
        held = os.dup(pipe.fileno())
    os.close(held)
    assert not own.folder.exists()
