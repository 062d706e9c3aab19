"""The batch script's last part, run by bash: what starts a job again and what does not, with a scontrol that is ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.files.data import read_templates
from slurmgpu.files.layered import Layered
from slurmgpu.files.yaml import validate
from slurmgpu.models.cluster import GENERIC
from slurmgpu.models.job import Job
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.script.render import render_script

# What Slurm says of a job, in its words and lines.
RUNNING = """\
JobId=7 JobName=a JobState=PENDING
   JobState=RUNNING Reason=None Dependency=(null)
   RunTime=00:00:05 TimeLimit=00:05:00 TimeMin=N/A
   StartTime={now} EndTime={end} Deadline=N/A
   PreemptEligibleTime={now} PreemptTime=None
   Comment=PreemptTime=1 EndTime=5
"""

SCONTROL = """\
#!/bin/sh
echo "$*" >>calls
case "$1 $2" in
"-V "*) cat release 2>/dev/null || echo "slurm 22.05.8"; exit ;;
"show config") echo "PreemptType             = $(cat preempt-type)"; exit ;;
"show partition") echo "   OverTimeLimit=NONE PreemptMode=$(cat preempt-mode)"; exit ;;
esac
case "$1 $(cat how 2>/dev/null)" in
show*hang) sleep 30 ;;
show*fail) echo "slurm_load_jobs error" >&2; exit 1 ;;
show*silent) ;;
show*) cat job ;;
requeue*killed) kill -TERM $$ ;;
requeue*refuse) echo "Requested operation is presently disabled" >&2; exit 1 ;;
esac
"""
# The training: it says what it was told, does what the test says, and leaves its marker.
PYTHON = """\
#!/bin/bash
echo "end=${SLURMGPU_END_TIME-unset}"
got() { name=$1; }
for each in TERM USR1 USR2; do trap "got $each" "$each"; done
times=$(seq "${WAIT:-0}") # before a signal can come: bash 5.2 loses a trap that runs while it parses $(...)
touch started
for _ in $times; do [ -n "$name" ] && break; sleep 0.05; done
[ -n "$name" ] && echo "got $name"
[ -e marker ] && mkdir -p "$SLURMGPU_RUN_DIR/state" && sed "s/REASON/SIG$name/" marker >"$SLURMGPU_RUN_DIR/state/stop.json"
exit "${CODE:-75}"
"""


@dataclass
class Batch:
    """A script in a folder, with scontrol and python3 of its own."""

    folder: Path
    environment: dict[str, str]

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def job(self, text: str = RUNNING, **figures: int) -> None:
        """What scontrol says of the job."""
        now = int(time.time())
        (self.folder / "job").write_text(text.format(**{"now": now, "end": now + 300, **figures}))

    def preempted(self, release: str, kind: str, mode: str) -> None:
        """A job that still runs, though it is preempted."""
        self.job(RUNNING.replace(" PreemptTime=None", " PreemptTime={now}"))
        for name, text in [("release", release), ("preempt-type", kind), ("preempt-mode", mode)]:
            (self.folder / name).write_text(text)

    def marker(self, **values: Any) -> None:
        """What the training leaves behind."""
        made = {"schema": "slurmgpu.stop/1", "reason": "time", "step": 12, "gained": 12, "requeue": True}
        (self.folder / "marker").write_text(
            json.dumps({**made, "job_id": "7", "restart": 0, **values}) + "\n"
        )

    def scontrol(self, how: str) -> None:
        (self.folder / "how").write_text(how)

    def start(self, **environment: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            ["bash", "script.sbatch"],
            cwd=self.folder,
            env=self.environment | environment,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, **environment: str) -> tuple[int, str]:
        """Its exit code and what it printed."""
        process = self.start(**environment)
        said = process.communicate(timeout=120)[0]
        return process.returncode, said

    @property
    def requeues(self) -> list[str]:
        """What scontrol was asked to requeue."""
        calls = self.folder / "calls"
        lines = calls.read_text().splitlines() if calls.exists() else []
        return [line.removeprefix("requeue ") for line in lines if line.startswith("requeue")]


def batch(tmp_path: Path, **values: Any) -> Batch:
    given = (
        {"name": "a", **values}
        if "command" in values
        else {"name": "a", "train": {"task": "t.py:T"}, **values}
    )
    job = validate(Job, Layered({"resources": {"gpus": 1}, **given}, {}), "job")
    plan = make_plan(job, GENERIC, Surroundings(work_dir=str(tmp_path)))
    (tmp_path / "script.sbatch").write_text(render_script(plan, read_templates()))
    programs = tmp_path / "bin"
    programs.mkdir()
    # The real time-outs are long; the programs are the same.
    shorter = '#!/bin/sh\nshift\n[ "$(cat how 2>/dev/null)" != hang ] || exec /usr/bin/timeout 0.1 "$@"\nexec "$@"\n'
    for name, text in (("scontrol", SCONTROL), ("python3", PYTHON), ("timeout", shorter)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    environment = kept | {
        "PATH": f"{programs}:/usr/bin:/bin",
        "SLURM_JOB_ID": "7",
        "SLURMGPU_RUN_DIR": str(tmp_path / "run"),
    }
    made = Batch(tmp_path, environment)
    made.job()
    made.marker()
    return made


@pytest.fixture
def training(tmp_path: Path) -> Batch:
    return batch(tmp_path)


def test_a_training_stopped_by_the_clock_is_requeued_and_keeps_its_code(training: Batch) -> None:
    code, said = training.run()
    assert code == 75
    assert (
        said.splitlines()[-1] == "slurmgpu: stopped by time at step 12; requeueing, restart 1 of at most 10"
    )
    # A job that is cancelled at this moment must not come back (scontrol(1), requeue).
    assert training.requeues == ["Incomplete 7"]


@pytest.mark.parametrize("how", ["hang", "fail", "silent"])
def test_nothing_is_requeued_when_scontrol_does_not_say_how_the_job_stands(training: Batch, how: str) -> None:
    training.scontrol(how)
    code, said = training.run()
    assert (code, training.requeues) == (75, [])
    assert said.startswith("end=unset\n")
    by_hand = f"SLURMGPU_RUN_DIR={training.run_dir} sbatch SCRIPT"
    assert f"not requeued: scontrol does not say what state the job is in; to go on: {by_hand}" in said


def test_a_refused_requeue_says_what_to_do(training: Batch) -> None:
    training.run_dir.mkdir()
    script = training.run_dir / "script.sbatch"
    script.touch()
    training.scontrol("refuse")
    code, said = training.run()
    assert code == 75
    assert "Requested operation is presently disabled" in said
    assert f"scontrol requeue failed; to go on: SLURMGPU_RUN_DIR={training.run_dir} sbatch {script}" in said


def test_a_requeue_that_ends_scontrol_too_is_not_said_to_have_failed(training: Batch) -> None:
    training.scontrol("killed")
    code, said = training.run()
    assert (code, training.requeues) == (75, ["Incomplete 7"])
    assert "requeueing, restart 1 of at most 10" in said
    assert "requeue failed" not in said  # whoever reads it would submit the job once more


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "PREEMPTED", "PENDING", "TIMEOUT"])
def test_a_job_that_slurm_is_ending_is_left_to_slurm(training: Batch, state: str) -> None:
    training.job(RUNNING.replace("   JobState=RUNNING", f"   JobState={state}"))
    code, said = training.run()
    assert (code, training.requeues) == (75, [])
    assert f"not requeued: Slurm is ending the job ({state})" in said
    assert "a cancelled one goes on with SLURMGPU_RUN_DIR=" in said


def test_the_marker_of_an_earlier_start_counts_no_more(training: Batch) -> None:
    (training.run_dir / "state").mkdir(parents=True)
    (training.folder / "marker").rename(training.run_dir / "state" / "stop.json")
    code, said = training.run(CODE="3")
    assert (code, training.requeues) == (3, [])
    assert "slurmgpu:" not in said


def test_the_marker_of_another_job_does_not_count(training: Batch) -> None:
    training.marker(job_id="70")
    assert training.run() == (75, training.run()[1])
    assert training.requeues == []


@pytest.mark.parametrize("reason", ["hang", "nonfinite", "SIGINT"])
def test_what_did_not_stop_in_order_is_not_requeued(training: Batch, reason: str) -> None:
    training.marker(reason=reason, requeue=False)
    code, said = training.run(CODE="1")
    assert (code, training.requeues) == (1, [])
    assert f"stopped by {reason} at step 12; not requeued: {reason} is not a reason to start again" in said


def test_a_start_without_a_step_is_the_last(training: Batch) -> None:
    training.marker(gained=0, requeue=False)
    code, said = training.run()
    assert (code, training.requeues) == (75, [])
    assert "not requeued: this start gained no step" in said


@pytest.mark.parametrize("counted_by", ["slurm", "ourselves"])
def test_the_limit_counts_restarts_of_slurm_and_of_our_own(tmp_path: Path, counted_by: str) -> None:
    training = batch(tmp_path, restart={"on": ["timeout"], "limit": 2})
    (training.run_dir / "state").mkdir(parents=True)
    ours = 2 if counted_by == "ourselves" else 0
    # Another job's requeues are not this one's.
    (training.run_dir / "state" / "requeues").write_text("7 1 stopped\n" * ours + "70 1 stopped\n" * 3)
    code, said = training.run(SLURM_RESTART_COUNT=str(2 - ours))
    assert (code, training.requeues) == (75, [])
    assert "not requeued: it was started again 2 times already (restart.limit); to go on:" in said


def test_requeues_are_written_down_and_counted(tmp_path: Path) -> None:
    training = batch(tmp_path, restart={"on": ["timeout"], "limit": 2})
    assert [training.run()[1].splitlines()[-1].partition("; ")[2].partition(":")[0] for _ in range(3)] == [
        "requeueing, restart 1 of at most 2",
        "requeueing, restart 2 of at most 2",
        "not requeued",
    ]
    written = (training.run_dir / "state" / "requeues").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in written] == ["stopped by time at step 12"] * 2


def test_a_task_of_an_array_is_requeued_by_its_own_id(tmp_path: Path) -> None:
    training = batch(tmp_path, array="0-3")
    code, said = training.run(SLURM_ARRAY_JOB_ID="5", SLURM_ARRAY_TASK_ID="3")
    assert (code, training.requeues) == (75, ["Incomplete 5_3"])
    assert (training.run_dir / "3" / "state" / "requeues").exists()
    training.scontrol("refuse")
    said = training.run(SLURM_ARRAY_JOB_ID="5", SLURM_ARRAY_TASK_ID="3")[1]
    assert f"SLURMGPU_RUN_DIR={training.run_dir} sbatch --array=3 " in said


def test_without_timeout_among_the_reasons_the_time_limit_is_the_end(tmp_path: Path) -> None:
    training = batch(tmp_path, restart={"on": ["preemption"]})
    code, said = training.run()
    assert (code, training.requeues) == (75, [])
    assert "not requeued: restart.on does not name timeout; to go on: " in said


def test_a_training_that_must_not_start_twice_ends_with_its_own_code(tmp_path: Path) -> None:
    training = batch(tmp_path, restart={"on": []})
    assert training.run() == (75, training.run()[1])
    assert training.requeues == []


# --- signals


def signalled(training: Batch, number: signal.Signals, **environment: str) -> tuple[int, str]:
    """Run the script, and send a signal to the shell alone while the training runs."""
    training.marker(reason="REASON")
    process = training.start(WAIT="4000", **environment)
    while not (training.folder / "started").exists():
        time.sleep(0.02)
    process.send_signal(number)
    said = process.communicate(timeout=120)[0]
    return process.returncode, said


@pytest.mark.parametrize("name", ["USR1", "USR2"])
def test_a_signal_to_the_shell_reaches_the_training_and_starts_it_again(training: Batch, name: str) -> None:
    code, said = signalled(training, signal.Signals[f"SIG{name}"])
    assert (code, training.requeues) == (75, ["Incomplete 7"])
    assert f"got {name}\n" in said


def test_term_to_the_shell_ends_the_training_for_good(training: Batch) -> None:
    code, said = signalled(training, signal.SIGTERM)
    assert (code, training.requeues) == (75, [])
    assert "got TERM\n" in said
    assert "not requeued: TERM asks for an end (USR1 for a new start); to go on: " in said


@pytest.mark.parametrize(
    ("release", "kind", "mode"),
    [
        ("slurm-wlm 22.05.8", "preempt/partition_prio", "REQUEUE"),
        ("slurm 24.05.10", "preempt/partition_prio", "REQUEUE"),
        ("slurm 24.11.5", "preempt/partition_prio", "CANCEL"),
        ("slurm 24.11.5", "preempt/qos", "REQUEUE"),
    ],
)
def test_a_preemption_with_grace_is_requeued_without_a_step(
    training: Batch, release: str, kind: str, mode: str
) -> None:
    training.preempted(release, kind, mode)
    training.marker(reason="SIGTERM", gained=0, requeue=False)
    assert training.run()[0] == 75
    assert training.requeues == ["Incomplete 7"]


@pytest.mark.parametrize(("name", "code"), [("SIGUSR1", 138), ("SIGUSR2", 140), ("SIGTERM", 143)])
def test_a_signal_before_there_is_anything_to_mark_starts_again_what_is_preempted_and_nothing_else(
    training: Batch, name: str, code: int
) -> None:
    (training.folder / "marker").unlink()
    ended, said = training.run(CODE=str(code))
    assert (ended, training.requeues) == (code, [])
    assert "slurmgpu:" not in said  # another process may have failed, and this one been ended for it
    training.preempted("slurm-wlm 22.05.8", "preempt/partition_prio", "REQUEUE")
    ended, said = training.run(CODE=str(code))
    assert (ended, training.requeues) == (code, ["Incomplete 7"])
    assert f"slurmgpu: ended by {name}; requeueing, restart 1 of at most 10" in said


@pytest.mark.parametrize("release", ["slurm-wlm 24.11.5", "slurm 25.05.0", "slurm 26.05.5"])
def test_a_preemption_with_time_is_left_to_a_slurm_that_requeues_it(training: Batch, release: str) -> None:
    training.preempted(release, "preempt/partition_prio", "GANG,REQUEUE")
    training.marker(reason="SIGTERM")
    code, said = training.run()
    assert (code, training.requeues) == (75, [])
    assert "slurmgpu: stopped by SIGTERM at step 12; preempted: Slurm starts it again\n" in said


# --- when the time is up


def test_the_end_of_the_job_is_taken_from_slurms_variable(training: Batch) -> None:
    end = str(int(time.time()) + 1000)
    assert training.run(SLURM_JOB_END_TIME=end)[1].startswith(f"end={end}\n")


def test_the_end_of_the_job_is_asked_for_where_slurm_does_not_say_it(training: Batch) -> None:
    end = int(time.time()) + 1000
    training.job(end=end)
    # What another job has left in the environment does not count.
    assert training.run(SLURMGPU_END_TIME="17")[1].startswith(f"end={end}\n")


@pytest.mark.parametrize("end", ["Unknown", "NONE", "0", "1000", "2026-11-22T00:30:00"])
def test_an_end_that_is_unknown_or_past_is_no_end(training: Batch, end: str) -> None:
    training.job(RUNNING.replace("EndTime={end}", f"EndTime={end}"))
    assert training.run()[1].startswith("end=unset\n")
    assert training.run(SLURM_JOB_END_TIME=end)[1].startswith("end=unset\n")


# --- commands


def test_a_command_is_requeued_by_code_75_or_by_the_marker(tmp_path: Path) -> None:
    command = batch(tmp_path, command=["python3", "own.py"], restart={"on": ["timeout"]})
    assert command.run(CODE="1")[0] == 1  # torchrun's, whatever its workers' is
    assert command.requeues == ["Incomplete 7"]
    (tmp_path / "marker").unlink()
    code, said = command.run(CODE="75")
    assert (code, command.requeues) == (75, ["Incomplete 7"] * 2)
    assert "slurmgpu: ended with code 75; requeueing, restart 2 of at most 10" in said


def test_a_command_that_fails_is_not_requeued(tmp_path: Path) -> None:
    command = batch(tmp_path, command=["python3", "own.py"], restart={"on": ["timeout"]})
    (tmp_path / "marker").unlink()
    code, said = command.run(CODE="1")
    assert (code, command.requeues) == (1, [])
    assert "slurmgpu:" not in said


def test_a_command_without_timeout_among_its_reasons_runs_as_ever(tmp_path: Path) -> None:
    command = batch(tmp_path, command=["python3", "own.py"], restart={"on": ["preemption"]})
    script = (tmp_path / "script.sbatch").read_text()
    assert [line for line in script.splitlines() if "trap" in line and not line.endswith(" EXIT")] == []
    assert command.run(CODE="75")[0] == 75
    assert command.requeues == []
