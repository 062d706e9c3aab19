"""``slurmgpu top`` in a terminal of 80 x 24, driven by keys alone, on a real Slurm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.sandbox_user import wait_until
from tests.slurm.tool import Tool

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.every_release]


class Tmux:
    """A terminal of its own server, which nobody else's settings reach."""

    def __init__(self, tool: Tool, folder: Path) -> None:
        self._socket = folder / "tmux"
        env = tool.env | {"TERM": "xterm-256color"}
        settings = [word for key, value in env.items() for word in ("-e", f"{key}={value}")]
        self("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "-c", str(tool.work), *settings,
             "bash", "--norc")  # fmt: skip

    def __call__(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self._socket), *words], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done
        return done.stdout

    def keys(self, *keys: str) -> None:
        self("send-keys", *keys)

    def wait_for(self, *texts: str) -> str:
        """Wait until all of these are on the screen."""
        deadline = time.monotonic() + 240
        while True:
            shown = self("capture-pane", "-p")
            if all(text in shown for text in texts):
                return shown
            assert time.monotonic() < deadline, f"{texts} not on the screen:\n{shown}"
            time.sleep(0.2)


@pytest.fixture
def tmux(tool: Tool, tmp_path: Path) -> Iterator[Tmux]:
    if shutil.which("tmux") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "tmux is not installed: .ci/install-slurm does it"
        )
    terminal = Tmux(tool, tmp_path)
    yield terminal
    terminal("kill-server")


def test_keys_cancel_a_job_after_a_yes_and_the_terminal_is_left_as_it_was(tool: Tool, tmux: Tmux) -> None:
    kept = tool.submit("-J", "kept", "--hold", "--gpus=1", "-t", "5", "--", "true").job_id
    gone = tool.submit("-J", "gone", "--hold", "--gpus=1", "-t", "5", "--", "true").job_id
    before = tmux("display", "-p", "#{alternate_on} #{cursor_flag} #{mouse_any_flag} #{keypad_flag}")
    tmux.keys(f"stty -g >before; {sys.executable} -m slurmgpu top; echo ended $?; stty -g >after", "Enter")
    tmux.wait_for(str(kept), str(gone), "JobHeldUser", "q quit")
    tmux.keys("/")
    tmux.keys("-l", "gone")
    tmux.keys("Enter")
    tmux.wait_for("1 line", f"{gone}: JobHeldUser")
    tmux.keys("C")
    tmux.wait_for(f"Cancel job {gone} (gone), PENDING?")
    tmux.keys("n")
    tmux.wait_for("JobHeldUser", "q quit")
    assert {str(kept), str(gone)} <= set(tool.jobs_here())
    tmux.keys("C")
    tmux.wait_for(f"Cancel job {gone} (gone), PENDING?")
    tmux.keys("y")
    tool.slurm.wait_for(gone)
    tmux.wait_for("CANCELLED")
    assert tool.jobs_here() == [str(kept)]
    tmux.keys("g")
    tmux.wait_for("FREE OF TOTAL", "a100")
    tmux.keys("q")
    tmux.wait_for("q quit")
    tmux.keys("q")
    shown = tmux.wait_for("ended 0")
    assert "q quit" not in shown
    assert tmux("display", "-p", "#{alternate_on} #{cursor_flag} #{mouse_any_flag} #{keypad_flag}") == before
    tmux.keys("echo typed", "Enter")
    tmux.wait_for("\ntyped")
    assert (tool.work / "before").read_text() == (tool.work / "after").read_text()
    tool("cancel", str(kept))


TICKS = "n=0; while :; do n=$((n + 1)); echo tick $n; sleep 1; done"


def test_keys_hold_release_requeue_and_resume_and_logs_and_causes_are_read(tool: Tool, tmux: Tmux) -> None:
    tool.file("broken.py", "import nosuchmodule\n")
    ends = tool.submit("-J", "ends", "--gpus=1", "-t", "5", "--", "python3", "broken.py")
    later = tool.submit(
        "-J", "later", "--gpus=1", "-t", "5", "--sbatch", "begin=now+1hour", "--", "true"
    ).job_id
    runs = tool.submit(
        "-J", "runs", "--gpus=1", "-t", "5", "--set", "restart.on=[node_failure]", "--", "bash", "-c", TICKS
    ).job_id
    tool.slurm.wait_for(ends.job_id, complete_row=True)

    def field(job: int, name: str) -> str:
        shown = tool.slurm.run(["scontrol", "show", "job", "-o", str(job)]).stdout
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)[name]

    def act(name: str, key: str, question: str) -> None:
        """Go to the job of this name alone, press the key, and say yes."""
        tmux.keys("Escape")
        tmux.keys("/")
        tmux.keys("-l", name)
        tmux.keys("Enter")
        tmux.wait_for("1 line", f"filter: {name}")
        tmux.keys(key)
        tmux.wait_for(question)
        tmux.keys("y")

    tmux.keys(f"{sys.executable} -m slurmgpu top; echo ended $?", "Enter")
    tmux.wait_for(str(later), str(runs), str(ends.job_id), "q quit")

    act("later", "H", f"Hold job {later} (later), PENDING?")
    tmux.wait_for("Slurm was asked to hold it", "JobHeldUser")
    assert (field(later, "Reason"), field(later, "Priority")) == ("JobHeldUser", "0")
    act("later", "U", f"Release job {later} (later), PENDING?")
    tmux.wait_for("Slurm was asked to release it")
    assert field(later, "Reason") != "JobHeldUser"
    assert field(later, "Priority") != "0"

    act("runs", "l", "tick 3")  # its logs: there, y is no key
    tmux.keys("q")
    act("runs", "Q", f"Requeue job {runs} (runs), RUNNING?")
    tmux.wait_for("Slurm was asked to requeue it")
    wait_until(lambda: field(runs, "Restarts") == "1")  # counted when the first start has ended

    act("ends", "enter", "No module named 'nosuchmodule'")  # its details: there, y is no key, either
    tmux.wait_for("How it ended", "exit code 1")
    tmux.keys("q")
    act("ends", "R", f"Resume job {ends.job_id} (ends), FAILED?")
    tmux.wait_for("2 lines")
    again = json.loads((ends.run_dir / "run.json").read_text())["job_id"]
    assert tool.slurm.wait_for(again, complete_row=True) == "FAILED"
    assert again != ends.job_id
    tmux.keys("g")
    tmux.wait_for("FREE OF TOTAL", "a100")
    tmux.keys("q")
    tmux.wait_for("q quit")
    tmux.keys("q")
    tmux.wait_for("ended 0")
    assert set(tool.jobs_here()) == {str(later), str(runs)}
    tool("cancel", str(later), str(runs))
