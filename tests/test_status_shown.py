"""What ``slurmgpu status`` shows: which jobs, which columns, in which order, how wide, and what while Slurm is silent."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from slurmgpu.cli.group import cli
from slurmgpu.cli.status import _pretty, unexplained
from slurmgpu.jobs.table import COLUMNS, in_order, table
from slurmgpu.jobs.table import lines as lines_of
from slurmgpu.jobs.view import colour_of
from slurmgpu.models.run import JobState
from slurmgpu.slurm import Slurm, shelf_here
from slurmgpu.slurm import shelf as shelf_module
from slurmgpu.slurm.text import Answer
from tests.recorded import Replay, recorded, said
from tests.test_jobs_status import NOW, job

AWAY = {"squeue": recorded("squeue_no_controller"), "sacct": recorded("sacct_no_slurmdbd")}


@pytest.fixture(autouse=True)
def _as_in_the_recordings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("slurmgpu.jobs.select.current_user", lambda: "root")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("SLURMGPU_SITE", str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)


def slurm(**answers: Answer) -> Slurm:
    known: dict[str, Any] = {"squeue": recorded("squeue"), "sacct": recorded("sacct")}
    return Slurm(run=Replay(**(known | answers)), env={"SLURM_CONF": "/nowhere"}, shelf=shelf_here())


def invoke(*arguments: str, obj: Slurm | None = None) -> Result:
    return CliRunner().invoke(cli, ["status", *arguments], obj=obj or slurm())


def shown(*arguments: str) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = json.loads(invoke("--json", *arguments).stdout)["jobs"]
    return jobs


def ids(*arguments: str) -> list[str]:
    return [one["job_id"] for one in shown(*arguments)]


def test_jobs_are_chosen_by_partition_account_name_and_state_together() -> None:
    everything = shown()
    for option, field in (("--partition", "partition"), ("--account", "account")):
        value = everything[0][field]
        assert ids(option, f"nothing,{value}") == [one["job_id"] for one in everything if one[field] == value]
    assert ids("--account", everything[0]["account"].upper()) == ids()
    assert ids("--name", "arr") == ["4_0", "4_1", "4_[2-5%2]"]
    assert ids("--name", "a*", "--state", "pending") == ["4_[2-5%2]"]
    assert ids("--name", "A*") == []


def test_columns_come_as_they_are_named_or_beside_the_usual_ones() -> None:
    named = invoke("--columns", "state, JOB,account", "9").stdout.splitlines()
    assert named[1].split() == ["STATE", "JOB", "ACCOUNT"]
    assert named[2].split() == ["RUNNING", "9", "mygroup"]
    more = invoke("--columns", "+account,qos", "9").stdout.splitlines()[1].split()
    assert more[-3:] == ["ACCOUNT", "QOS", "REASON"]
    assert more[:3] == ["JOB", "NAME", "STATE"]


def test_the_settings_name_the_usual_columns(tmp_path: Path) -> None:
    (tmp_path / "slurmgpu.yaml").write_text("status_columns: [job, elapsed]\n")
    assert invoke("9").stdout.splitlines()[1].split() == ["JOB", "ELAPSED"]
    assert invoke("9", "--columns", "job").stdout.splitlines()[1].split() == ["JOB"]
    (tmp_path / "slurmgpu.yaml").write_text("status_columns: [jbo]\n")
    wrong = invoke("9")
    assert wrong.exit_code != 0
    assert "status_columns" in str(wrong.exception)


def test_every_column_can_be_named_and_sorted_by_and_bears_a_job_of_which_nothing_is_known() -> None:
    nothing = job(state="UNKNOWN", source="none", user=None, cluster=None)
    keys = [column.key for column in COLUMNS]
    assert len(set(keys)) == len(keys)
    for key in keys:
        assert in_order([nothing, job()], f"-{key}", NOW)
    rows, _ = table([nothing], NOW, columns=COLUMNS)
    assert len(rows[1]) == len(COLUMNS)


def test_jobs_are_sorted_by_one_column_after_the_other_and_those_without_a_value_come_last() -> None:
    jobs = [
        job("1", "RUNNING", elapsed=5),
        job("2", "PENDING"),
        job("3", "RUNNING", elapsed=50),
        job("4", "FAILED", elapsed=7),
    ]
    assert [one.job_id for one in in_order(jobs, "-elapsed", NOW)] == ["3", "4", "1", "2"]
    assert [one.job_id for one in in_order(jobs, "state,-elapsed", NOW)] == ["4", "2", "3", "1"]
    assert ids("--sort", "-job")[0] == max(ids(), key=lambda text: int(text.split("_")[0].split("+")[0]))


def test_an_array_is_one_line_and_opens_where_it_is_named_alone() -> None:
    together = [line for line in invoke().stdout.splitlines() if line.startswith("4")]
    assert len(together) == 1
    opened = invoke("4").stdout.splitlines()
    assert opened[1].startswith("array 4: 0/6 tasks done, ")
    assert [line.split()[0] for line in opened[3:]] == ["4_0", "4_1", "4_2", "4_3", "4_4", "4_5"]
    assert opened[5].endswith("as many tasks run as the array's own limit (%) allows: 2 at a time")
    assert [line.split()[0] for line in invoke("4", "9").stdout.splitlines()[2:]] == ["4", "9"]


@pytest.mark.parametrize("state", sorted(JobState))
def test_every_state_has_a_colour_and_a_place_among_the_states_of_an_array(state: JobState) -> None:
    other = "PENDING" if state is JobState.COMPLETED else "COMPLETED"
    (line,) = lines_of([job("7_0", state.value, array_job_id=7), job("7_1", other, array_job_id=7)])
    assert line.job.state is (JobState.PENDING if state is JobState.COMPLETED else state)
    assert (colour_of(state) == "bold red") is (state is JobState.UNKNOWN)


def test_tasks_that_wait_together_have_a_line_each_where_that_is_asked_for() -> None:
    assert [line.split()[0] for line in invoke("--tasks", "--name", "arr").stdout.splitlines()[2:]] == [
        *("4_0", "4_1", "4_2", "4_3", "4_4", "4_5")
    ]
    assert [line.split()[0] for line in invoke("4_3").stdout.splitlines()[2:]] == ["4_3"]
    assert ids("4_3") == ["4_3"]
    some = invoke("4_[1-3]")
    assert some.exit_code == 0
    assert some.stdout.splitlines()[1] == "array 4: 1 running, 2 waiting"
    assert [line.split()[0] for line in some.stdout.splitlines()[3:]] == ["4_1", "4_2", "4_3"]
    assert [line.split()[0] for line in invoke("4_0", "4_5").stdout.splitlines()[3:]] == ["4_0", "4_5"]
    assert invoke("4_9").exit_code == 1


def test_an_array_tells_of_how_many_tasks_only_where_it_knows_all_of_them() -> None:
    def told(
        *tasks: tuple[str, str, timedelta], since: datetime | None = None, chosen: bool = False
    ) -> str | None:
        jobs = [
            job(f"7_{n}", state, array_job_id=7, array_tasks=n, submit=NOW - ago) for n, state, ago in tasks
        ]
        (line,) = lines_of(jobs, since=since, chosen=chosen)
        return line.tasks

    long_ago, lately = timedelta(days=3), timedelta(hours=3)
    since = NOW - timedelta(days=1)
    old = [("1", "COMPLETED", long_ago), ("2", "RUNNING", long_ago)]
    new = [("1", "COMPLETED", lately), ("2", "RUNNING", lately)]
    assert told(*new, since=since) == "1/2 tasks done, 1 running"
    assert told(*old) == "1/2 tasks done, 1 running"
    day = f"{since.astimezone():%Y-%m-%d %H:%M}"
    assert told(*old, since=since) == f"1 task done, 1 running; without those that ended before {day}"
    failed = [("1", "FAILED", lately), ("3", "FAILED", lately)]
    assert told(*failed, since=since, chosen=True) == "2 failed (1, 3)"
    assert "0/" not in invoke("--state", "pending,running", "--name", "arr").stdout


def test_of_very_many_tasks_that_wait_one_line_is_enough_and_no_list_of_them_fills_the_screen() -> None:
    list_of = ",".join(str(number) for number in range(1, 40_000, 2))
    many = job(
        f"7_[{list_of}%4]", "PENDING", array_job_id=7, array_tasks=f"[{list_of}%4]", reason="JobHeldUser"
    )
    rows, _ = table([many], NOW, each_task=True)
    assert [row[0] for row in rows[1:]] == ["7_[1,3,5,7,9,11,13,15,...]"]
    assert "scontrol release 7`" in rows[1][-1]
    ended = many.model_copy(update={"state": JobState.CANCELLED, "reason": None})
    (line,) = lines_of([ended])
    assert line.tasks == "0/20000 tasks done, 20000 cancelled (1, 3, 5, 7, 9, 11, 13, 15, ...)"
    span = job("8_[0-19%4]", "CANCELLED", array_job_id=8, array_tasks="[0-19%4]")
    assert lines_of([span])[0].tasks == "0/20 tasks done, 20 cancelled (0-19)"


@pytest.mark.parametrize("width", [40, 80, 160])
def test_an_array_tells_how_far_it_is_and_which_tasks_failed_however_narrow_the_terminal(width: int) -> None:
    ended = [job(f"7_{n}", "FAILED" if n in (3, 7) else "COMPLETED", array_job_id=7, array_tasks=str(n), exit_code=1)
             for n in range(14)]  # fmt: skip
    waits = job("7_[14-99%4]", "PENDING", array_job_id=7, array_tasks="[14-99%4]", reason="JobArrayTaskLimit")
    rows, lines = table([*ended, waits], NOW)
    assert rows[1][-1].startswith("12/100 tasks done, 86 waiting, 2 failed (3, 7); JobArrayTaskLimit: ")
    out = io.StringIO()
    _pretty(rows, lines, Console(file=out, width=width))
    text = " ".join(out.getvalue().split())
    assert "12/100 tasks done, 86 waiting, 2 failed (3, 7)" in text
    assert text.endswith("as many tasks run as the array's own limit (%) allows: 4 at a time")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_table_is_as_wide_as_the_terminal_and_never_loses_job_state_or_reason(width: int) -> None:
    jobs = [
        job(
            str(number),
            "PENDING",
            name="a-rather-long-name-of-a-training",
            reason="Resources",
            gpus=8,
            gpu_types={"a100": 8},
            nodes=2,
            node_list="node[001-002]",
            partition="gpu-long",
            user=user,
            restarts=2,
        )
        for number, user in ((1234567, "ada"), (1234568, "grace"))
    ]
    rows, lines = table(jobs, NOW)
    out = io.StringIO()
    _pretty(rows, lines, Console(file=out, width=width))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for word in ("1234567", "PENDING", "when nodes are free"):
        assert word in " ".join(text.split())


def test_the_newest_failure_that_nobody_has_explained_is_named_with_the_command_that_tells() -> None:
    early, late = NOW - timedelta(hours=2), NOW - timedelta(hours=1)
    jobs = [
        job("5", "FAILED", end=early),
        job("7_2", "OUT_OF_MEMORY", end=late),
        job("8", "FAILED", end=NOW, cause="rank 0: KeyError"),
        job("9", "CANCELLED", end=NOW),
        job("10", "RUNNING"),
    ]
    assert unexplained(jobs) == "to see why 7_2 failed: slurmgpu why 7_2"
    assert unexplained(jobs[2:]) is None
    assert unexplained([job("11", "FAILED"), job("12", "FAILED")]) is not None


def test_a_silent_slurm_gives_the_last_state_marked_and_exit_code_4(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(shelf_module, "_now", lambda: now)
    before = shown()
    now += 240
    silent = invoke(obj=slurm(**AWAY))
    assert getattr(silent.exception, "exit_code", None) == 4
    head, _, *lines = silent.stdout.splitlines()
    assert "WHAT SLURM SAID 4 min AGO" in head
    states = {state.value for state in JobState}
    assert lines
    assert not [line for line in lines if states & set(line.split("  ")[0:1] + line.split())]
    told = json.loads(invoke("--json", obj=slurm(**AWAY)).stdout)
    assert told["jobs"] == []
    assert told["last_known"]["age_seconds"] == 240
    assert told["last_known"]["jobs"] == before


def test_while_slurm_is_silent_and_nothing_is_known_only_the_error_is_told() -> None:
    silent = invoke(obj=slurm(**AWAY))
    assert getattr(silent.exception, "exit_code", None) == 4
    assert silent.stdout == ""


def test_an_answer_of_another_process_says_its_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(shelf_module, "_now", lambda: now)
    invoke(obj=slurm())
    now += 20
    patient = slurm(squeue=said(), sacct=said())
    patient.shelf.floor = 60
    told = invoke(obj=patient)
    assert told.stdout.splitlines()[0].endswith("(20 s ago)")
    assert patient.asked == []
    assert json.loads(invoke("--json", obj=patient).stdout)["age_seconds"] == 20


def test_a_site_may_raise_the_floor_and_a_user_may_not_go_below(tmp_path: Path) -> None:
    from slurmgpu.cli.options import shared

    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "config.yaml").write_text("policy: {poll_floor: 60}\n")
    (tmp_path / "slurmgpu.yaml").write_text("poll_floor: 5\n")
    asked = shared()
    assert asked.shelf.floor == 60
    (tmp_path / "slurmgpu.yaml").write_text("poll_floor: 90\n")
    asked = shared()
    assert asked.shelf.floor == 90


def test_those_who_watch_at_different_moments_soon_look_at_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten watches that began one after the other: each half minute one of them asks."""
    now = 1000.0
    monkeypatch.setattr(shelf_module, "_now", lambda: now)
    watches = [slurm() for _ in range(10)]
    due = {number: 1000.0 + 2.7 * number for number in range(10)}
    from slurmgpu.jobs.look import status

    while now < 1000.0 + 600:
        number = min(due, key=lambda one: due[one])
        now = max(now, due[number])
        report = status(watches[number], user="root")
        shelf = watches[number].shelf
        shelf.good_for = 30.0
        due[number] = now + 30.0 - min(report.age, 30.0) + 0.001 * number
    calls = sum(len(watch.asked) for watch in watches)
    alone = 2 * (600 // 30 + 1)
    assert calls <= alone + 2 * 10  # the first look of each is its own


def test_who_ends_a_look_at_a_silent_slurm_leaves_none_of_its_commands_behind(tmp_path: Path) -> None:
    for name in ("squeue", "sacct"):
        program = tmp_path / name
        program.write_text(
            f"#!/bin/sh\necho $$ >{tmp_path}/{name}.new; mv {tmp_path}/{name}.new {tmp_path}/{name}.pid\nexec sleep 600\n"
        )
        program.chmod(0o755)
    env = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "XDG_RUNTIME_DIR": str(tmp_path),
        "SLURM_CONF": "/dev/null",
    }
    look = subprocess.Popen([sys.executable, "-m", "slurmgpu", "status"], env=env, stderr=subprocess.DEVNULL)
    pids = [tmp_path / f"{name}.pid" for name in ("squeue", "sacct")]
    for _ in range(10**6):
        if any(pid.exists() for pid in pids) or look.poll() is not None:
            break  # at this moment the other one begins
    look.terminate()
    assert look.wait() == 128 + signal.SIGTERM
    for pid in (one for one in pids if one.exists()):
        for _ in range(5000):
            if not (alive := _is_alive(pid.read_text().strip())):
                break
            time.sleep(0.02)
        assert not alive


def _is_alive(pid: str) -> bool:
    try:
        return bool(Path("/proc", pid, "cmdline").read_bytes())  # of one that nobody has waited for, nothing
    except OSError:
        return False
