"""The first cause at a script's end, in the run directory, and where a user reads it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.diagnosis.facts import Cause
from slurmgpu.diagnosis.hiding import secrets_here, without_secrets
from slurmgpu.jobs.causes import (
    cause_lines,
    cause_of,
    earlier_on_node,
    in_one_line,
    is_own_doing,
    read_cause,
    with_cause,
)
from slurmgpu.jobs.view import reason
from slurmgpu.models.run import JobStatus, Run
from slurmgpu.runs.directory import _pack_diagnosis
from tests.test_jobs_status import job

GOLDEN = Path(__file__).parent / "golden" / "scripts" / "generic-two-gpus.sbatch"
TRACE = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    x()\nKeyError: 'labels'\n"
SRUN = "srun: error: node2: task 5: Exited with exit code 1\n"
RANKED = "".join(f"[rank5]: {line}\n" for line in TRACE.splitlines()) + SRUN
ME = "ada"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    made = tmp_path / "train-20260101T000000Z-abcd"
    (made / "logs").mkdir(parents=True)
    _pack_diagnosis(made / "code")
    return made


class Ended:
    """A batch script that printed something and ended; its beginning is that of every script."""

    def __init__(self, run_dir: Path, body: str, **environment: str) -> None:
        begin = re.search(r"^eval .*\n", GOLDEN.read_text(), re.MULTILINE)
        assert begin is not None
        self.run_dir, self.log = run_dir, run_dir / "logs" / "71.out"
        variables = {"SLURMGPU_RUN_DIR": str(run_dir), "SLURM_JOB_ID": "71", **environment}
        env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")} | variables
        with self.log.open("ab") as log:
            self.code = subprocess.run(
                ["bash", "-c", f"set -euo pipefail\n{begin[0]}{body}"],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={name: value for name, value in env.items() if value},
                timeout=120,
                check=False,
            ).returncode

    @property
    def cause(self) -> dict[str, Any] | None:
        file = self.run_dir / "cause.71.json"
        return json.loads(file.read_text()) if file.exists() else None

    @property
    def said(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.startswith("slurmgpu: f")]


def printing(text: str, code: int) -> str:
    return f"cat <<'END'\n{text}END\nexit {code}\n"


SECRET = "correct-horse-battery"
PRINTED = f"""\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    x()
RuntimeError: no login at https://ada:{SECRET}@db.org/x?token=t0psecret&a=1 with {SECRET} or hf_{"a1" * 12} (Bearer {"b2" * 10})
"""


@pytest.mark.parametrize("name", ["WANDB", "MY_TOKEN"])
def test_secrets_in_a_traceback_are_not_passed_on(run_dir: Path, name: str) -> None:
    (run_dir / "plan.json").write_text(
        json.dumps({"secrets": ["WANDB"], "nodes": 1, "processes_per_node": 1})
    )
    ended = Ended(run_dir, printing(PRINTED, 1), **{name: SECRET, "HF_TOKEN_PATH": "/home/ada/token"})
    assert ended.cause["what"] == (
        "RuntimeError: no login at https://***@db.org/x?token=***&a=1 with *** or *** (Bearer ***) (train.py, line 3)"
    )
    told = (run_dir / "cause.71.json").read_text() + "\n".join(ended.said)
    assert not any(one in told for one in (SECRET, "t0psecret", "hf_a1", "b2b2"))


@pytest.mark.parametrize(
    ("cut", "left"),
    [
        (f"login with {SECRET[:12]}...", "login with ***..."),
        (f"a {SECRET[:8]} ... {SECRET[-9:]} b", "a *** ... *** b"),
        ("token hf_a1a1a1a1a1...", "token ***..."),
        ("at https://ada:correct-ho...", "at https://***..."),
        ("waits for tcp://node1:29500 ... and for sk-learn...", "waits for tcp://node1:29500 ... and for sk-learn..."),
        (f"{SECRET[:7]}... is too little of it", f"{SECRET[:7]}... is too little of it"),
    ],
)  # fmt: skip
def test_a_secret_in_a_line_that_was_cut_leaves_no_part(cut: str, left: str) -> None:
    hidden = without_secrets(Cause("python-exception", cut, "", evidence=(cut,)), [SECRET])
    assert (hidden.what, hidden.evidence) == (left, (left,))


def test_what_the_script_said_at_its_end_is_not_among_the_lines_that_matter(run_dir: Path) -> None:
    said = "loading\nslurmgpu: first cause: not known (exit code 3): x\nslurmgpu: fix: read the log\n"
    ended = Ended(run_dir, printing(said, 3))
    assert ended.cause["evidence"] == ["loading"]


def test_ordinary_words_are_no_secrets() -> None:
    said = "FileNotFoundError: https://example.org/a@b, key=value, basic training, /home/ada/.token, sk-learn, 1@2"
    cause = Cause("python-exception", said, "", evidence=(said,))
    values = secrets_here({"A_TOKEN": "1", "B_PASSWORD": "", "KEY": said, "C_SECRET": "/home/ada/.token"}, [])
    assert (values, without_secrets(cause, values)) == ([], cause)


def test_a_script_that_fails_says_at_its_end_what_failed_first(run_dir: Path) -> None:
    ended = Ended(run_dir, printing(RANKED, 143))
    assert ended.code == 143
    assert (run_dir / "exit_code.71").read_text() == "143\n"
    told = {
        name: ended.cause[name]
        for name in ("schema", "rank", "host", "kind", "certain", "exit_code", "job_id")
    }
    assert told == {
        "schema": "slurmgpu.cause/1", "rank": 5, "host": "node2", "kind": "python-exception", "certain": True,
        "exit_code": 1, "job_id": "71",
    }  # fmt: skip
    assert ended.said[0] == "slurmgpu: first cause: rank 5 on node2: KeyError: 'labels' (train.py, line 3)"
    assert ended.said[1].startswith("slurmgpu: fix: ")
    assert len(ended.said) == 2


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("echo done\nexit 0\n", 0),
        (printing(TRACE, 75), 75),
        (printing("slurmgpu: stopped by time at step 9; requeueing, restart 1 of at most 3\n", 143), 143),
        (printing("slurmgpu: stopped by time at step 9; not requeued: x; to go on: y\n", 143), 143),
        (printing("slurmgpu: ended by SIGTERM; preempted: Slurm starts it again\n", 143), 143),
        ("# torchrun\n" + printing(TRACE, 1), 1),
    ],
)
def test_a_job_that_ends_or_stops_well_says_nothing(run_dir: Path, body: str, code: int) -> None:
    if "torchrun" in body:
        stop(run_dir)
    ended = Ended(run_dir, body)
    assert (ended.code, ended.cause, ended.said) == (code, None, [])
    assert (run_dir / "exit_code.71").read_text() == f"{code}\n"


@pytest.mark.parametrize("reason", ["hang", "nonfinite"])
def test_a_training_that_stops_since_it_cannot_go_on_has_failed(run_dir: Path, reason: str) -> None:
    said = "error: the loss is nan at step 9: x\n"
    said += f"slurmgpu: stopped by {reason} at step 9; not requeued: {reason} is not a reason to start again; to go on: y\n"
    ended = Ended(run_dir, printing(said, 1))
    assert "the loss is nan at step 9" in ended.cause["what"]
    assert len(ended.said) == 2


def test_a_script_that_slurm_ends_says_so_though_its_trap_is_not_told(run_dir: Path) -> None:
    line = "slurmstepd: error: *** JOB 71 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***"
    ended = Ended(run_dir, f"echo '{line}'\nkill -TERM $$\nsleep 1\n")
    assert ended.code == -15
    assert ended.cause["kind"] == "time-limit"
    assert len(ended.said) == 2


def test_a_local_run_and_a_script_without_a_run_directory_say_nothing(run_dir: Path) -> None:
    assert Ended(run_dir, printing(TRACE, 3), SLURMGPU_LOCAL_JOB="71").cause is None
    assert (run_dir / "exit_code.71").read_text() == "3\n"
    by_hand = Ended(run_dir, printing(TRACE, 4), SLURMGPU_RUN_DIR="")
    assert (by_hand.code, by_hand.cause, by_hand.said) == (4, None, [])


@pytest.mark.parametrize("broken", ["no reader", "no zip", "no script", "read-only", "fails", "hangs"])
def test_a_reader_that_cannot_work_changes_neither_exit_code_nor_log(run_dir: Path, broken: str) -> None:
    code = run_dir / "code"
    if broken == "no reader":
        for path in code.iterdir():
            path.unlink()
    elif broken == "no zip":
        (code / "slurmgpu_diagnosis.zip").write_bytes(b"rubbish")
    elif broken == "no script":
        (code / "at_end.sh").write_text("exit 9\n")
    elif broken == "read-only":
        (run_dir / "cause.71.json").mkdir()
    else:
        text = (code / "at_end.sh").read_text()
        does = "import time; time.sleep(100)" if broken == "hangs" else "raise SystemExit(9)"
        text = text.replace("import sys\nif", f"{does}\nimport sys\nif").replace(
            "by_python 8 ", "by_python 1 "
        )
        (code / "at_end.sh").write_text(text)
    ended = Ended(run_dir, printing(TRACE, 7))
    assert ended.code == 7
    assert ended.said == [] or broken == "read-only"
    assert "KeyError: 'labels'" in ended.log.read_text()


def test_a_task_of_an_array_has_its_cause_in_a_folder_of_its_own(run_dir: Path) -> None:
    (run_dir / "3").mkdir()
    body = f'export SLURMGPU_RUN_DIR="{run_dir}/3"\n' + printing(RANKED, 1)
    assert Ended(run_dir, body).code == 1
    found = read_cause(run_dir, 71)
    assert (found.rank, (run_dir / "3" / "cause.71.json").exists()) == (5, True)


def cause(**values: Any) -> Cause:
    known = {"kind": "ecc", "what": "the GPU is faulty", "fix": "exclude: node2", "rank": 5, "host": "node2"}
    return Cause(**{**known, "certain": True, "job_id": "71", **values})


def failed(**values: Any) -> JobStatus:
    known: dict[str, Any] = {"state": "FAILED", "exit_code": 1, "raw_id": 71, "user": None}
    return job(job_id="71", **(known | values))


def record(run_dir: Path) -> Run:
    return Run.model_validate(
        {
            "schema": "slurmgpu.run/1", "name": "train", "token": "abcd", "state": "submitted", "job_id": 71,
            "submitted_at": "2026-01-01T00:00:00Z", "argv": [], "script_sha256": "", "run_dir": str(run_dir),
            "stdout": f"{run_dir}/logs/%j.out", "slurmgpu_version": "0",
        }
    )  # fmt: skip


def test_only_a_whole_file_of_its_owners_is_believed(run_dir: Path) -> None:
    file = run_dir / "cause.71.json"
    assert read_cause(run_dir, 71) is None
    file.write_text(cause().to_json())
    assert read_cause(run_dir, 71) == cause()
    assert read_cause(run_dir, 71, os.getuid() + 1) is None
    elsewhere = run_dir / "elsewhere"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    assert read_cause(run_dir, 71) is None
    for text in ("", "{", "[]", '{"schema": "slurmgpu.cause/9"}', "[" * 100_000, "x" * (2 << 20)):
        file.unlink()
        file.write_text(text)
        assert read_cause(run_dir, 71) is None


def stop(run_dir: Path, **values: Any) -> None:
    """The mark that a training leaves which has stopped and saved everything."""
    known = {"schema": "slurmgpu.stop/1", "reason": "time", "step": 90, "gained": 40, "requeue": True, "job_id": "71",
             "restart": 0, "time": 1.0}  # fmt: skip
    (run_dir / "state").mkdir(exist_ok=True)
    (run_dir / "state" / "stop.json").write_text(json.dumps(known | values, indent=2))


@pytest.mark.parametrize(
    ("mark", "ended", "says"),
    [
        ({}, {"exit_code": 75}, "stopped by its time limit at step 90; slurmgpu resume 71 continues it"),
        ({}, {"exit_code": 1}, "stopped by its time limit at step 90; slurmgpu resume 71 continues it"),  # by torchrun
        ({"reason": "SIGUSR1"}, {}, "stopped by SIGUSR1 at step 90; slurmgpu resume 71 continues it"),
        ({"reason": "SIGTERM"}, {"state": "TIMEOUT"}, "stopped by its time limit at step 90; slurmgpu resume 71 continues it"),
        ({"reason": "SIGTERM"}, {"state": "PREEMPTED"}, "stopped for a job that comes first at step 90; slurmgpu resume 71 "
         "continues it"),
        ({"gained": 0}, {}, "stopped by its time limit before it gained a step (it is at step 90): give it more time"),
        ({"reason": "hang"}, {}, "the command failed (exit code 1)"),
        ({"job_id": "70"}, {}, "the command failed (exit code 1)"),
        ({}, {"restarts": 1}, "the command failed (exit code 1)"),
        ({"step": None}, {}, "the command failed (exit code 1)"),
    ],
)  # fmt: skip
def test_a_training_that_stopped_in_good_order_is_told_as_such(
    run_dir: Path, mark: dict[str, Any], ended: dict[str, Any], says: str
) -> None:
    stop(run_dir, **mark)
    run = record(run_dir)
    assert reason(with_cause(failed(**ended), lambda _: run)) == says
    assert (cause_of(failed(**ended), run) is None) == says.startswith("stopped")


def test_the_reason_of_a_failed_job_is_its_first_cause_where_that_is_certain(run_dir: Path) -> None:
    file = run_dir / "cause.71.json"
    run = record(run_dir)
    file.write_text(cause().to_json())
    assert reason(with_cause(failed(), lambda _: run)) == "rank 5 on node2: the GPU is faulty"
    assert reason(with_cause(failed(), lambda _: None)) == "the command failed (exit code 1)"
    assert with_cause(failed(state="COMPLETED"), lambda _: run).cause is None
    assert with_cause(failed(restarts=2), lambda _: run).cause is None  # it is an earlier start's
    cancelled = with_cause(failed(state="CANCELLED", state_text="CANCELLED by 0"), lambda _: run)
    assert str(reason(cancelled)).startswith("cancelled by ")
    for unsure in (cause(certain=False), cause(kind="not-known"), cause(kind="time-limit")):
        file.write_text(unsure.to_json())
        assert with_cause(failed(), lambda _: run).cause is None


def test_a_users_text_does_not_steer_the_terminal() -> None:
    hostile = cause(what="x\x1b[2J\n", evidence=("\x1b]0;t\x07",), host="n\x07")
    shown = [in_one_line(hostile), *cause_lines(hostile, [hostile])]
    assert not any(char in line for line in shown for char in "\x1b\x07\n")


def test_the_cause_of_a_job_comes_from_its_file_else_from_its_logs(run_dir: Path) -> None:
    run = record(run_dir)
    (run_dir / "logs" / "71.out").write_text(RANKED)
    from_logs = cause_of(failed(), run)
    assert (from_logs.rank, from_logs.host, from_logs.kind, from_logs.job_id) == (
        5,
        "node2",
        "python-exception",
        "71",
    )
    (run_dir / "cause.71.json").write_text(cause().to_json())
    assert cause_of(failed(), run) == cause()
    assert cause_of(failed(state="COMPLETED", exit_code=0), run) is None
    assert cause_of(failed(state="RUNNING"), run) is None


def test_a_job_that_never_heard_of_slurmgpu_is_explained_by_its_logs(tmp_path: Path) -> None:
    out, err = tmp_path / "slurm-71.out", tmp_path / "slurm-71.err"
    out.write_text("step 1\nstep 2\n")
    err.write_text(TRACE)
    found = cause_of(failed(stdout=str(out), stderr=str(err)), None)
    assert found.what == "KeyError: 'labels' (train.py, line 3)"
    without = cause_of(failed(state="TIMEOUT", exit_code=0), None)
    assert without.kind == "time-limit"


def test_a_job_without_a_log_since_the_logs_folder_is_missing_is_told_which(tmp_path: Path) -> None:
    never = {"exit_code": 0, "signal": 53, "stdout": str(tmp_path / "nofolder" / "71.out")}
    found = cause_of(failed(**never), None)
    assert (found.kind, found.certain) == ("no-launch", True)
    assert cause_lines(found) == [
        f"first cause: Slurm could not open its log: there is no folder {tmp_path}/nofolder",
        f"fix: make it before you submit: mkdir -p {tmp_path}/nofolder",
    ]
    unsure = cause_of(failed(**never | {"stdout": str(tmp_path / "71.out")}), None)
    assert (unsure.what, unsure.certain) == (
        "could not start: the log's or the work folder may be missing",
        False,
    )


def test_a_job_that_sbatch_refused_has_no_log_and_no_cause_in_it() -> None:
    moment = {
        "submit": "2026-11-21T12:00:00Z",
        "start": "2026-11-21T12:00:00Z",
        "end": "2026-11-21T12:00:00Z",
    }
    assert cause_of(failed(elapsed=0, **moment), None) is None


@pytest.mark.parametrize("paths", [{}, {"stdout": "/nowhere/71.out"}])
def test_an_answer_without_a_readable_log_speaks_of_none(paths: dict[str, str]) -> None:
    """The job of somebody else, or a log on another machine's disk."""
    found = cause_of(failed(**paths), None)
    assert found is not None
    assert cause_lines(found)[:2] == [
        "first cause: not known (exit code 1): there is no log of it that can be read here",
        "fix: slurmgpu logs 71 says where its logs should be",
    ]


def test_the_same_node_before_is_told_where_a_node_may_be_to_blame(tmp_path: Path) -> None:
    for number, kind, host in (
        (1, "ecc", "node2"),
        (2, "xid", "node2"),
        (3, "ecc", "node1"),
        (4, "syntax", "node2"),
    ):
        folder = tmp_path / f"train-2026010{number}T000000Z-abcd"
        folder.mkdir()
        (folder / f"cause.{number}.json").write_text(
            cause(kind=kind, host=host, job_id=str(number)).to_json()
        )
    found = earlier_on_node(cause(), tmp_path)
    assert [one.job_id for one in found] == ["2", "1"]
    assert [one.job_id for one in earlier_on_node(cause(job_id="2"), tmp_path)] == ["1"]
    assert earlier_on_node(cause(kind="syntax"), tmp_path) == []
    assert earlier_on_node(cause(host=None), tmp_path) == []
    lines = cause_lines(cause(evidence=("x",), exit_code=137), found)
    assert lines == [
        "first cause: rank 5 on node2: the GPU is faulty",
        "fix: exclude: node2",
        "it ended with exit code 137: ended by SIGKILL",
        "the same node, node2, was where 2 earlier jobs of yours failed first: 2, 1",
        "evidence:",
        "  x",
    ]


def test_what_one_has_cancelled_oneself_needs_no_explanation() -> None:
    cancelled = cause(kind="cancelled")
    mine = failed(state="CANCELLED", state_text=f"CANCELLED by {os.getuid()}")
    assert is_own_doing(mine, cancelled)
    assert not is_own_doing(mine, cause())  # a process had failed before
    assert not is_own_doing(failed(state="CANCELLED", state_text="CANCELLED by 4294967"), cancelled)
    assert not is_own_doing(failed(state="CANCELLED", state_text="CANCELLED"), cancelled)


def test_a_script_that_fails_without_a_word_says_so_in_its_log(run_dir: Path) -> None:
    ended = Ended(run_dir, "exit 3\n")
    assert ended.said == [
        "slurmgpu: first cause: not known (exit code 3): the logs show no failure that slurmgpu knows"
    ]
    assert "log is empty" in ended.cause["fix"]
