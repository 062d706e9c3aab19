"""status: queue and accounting merged. `recorded(...)` are a real 22.05's answers, the rest constructed."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from slurmgpu.cli.status import command
from slurmgpu.errors import InvalidInput, SlurmUnreachable
from slurmgpu.files.run_record import read_run
from slurmgpu.jobs import logs
from slurmgpu.jobs.log_files import logs_of
from slurmgpu.jobs.logs import find_logs
from slurmgpu.jobs.look import StatusReport, merge, status
from slurmgpu.jobs.runs import find_run, run_of_job
from slurmgpu.jobs.select import select, since_moment
from slurmgpu.jobs.table import table
from slurmgpu.jobs.view import reason
from slurmgpu.models.run import JobState, JobStatus, Run
from slurmgpu.printable import printable
from slurmgpu.slurm import Slurm
from slurmgpu.slurm.commands import Answer
from slurmgpu.slurm.text import SEPARATOR
from tests.plain_table import plain
from tests.recorded import Replay, recorded, said

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
# The recordings were made as root.
USER = "root"


def job(job_id: str = "7", state: str = "RUNNING", **values: Any) -> JobStatus:
    source = values.pop("source", "squeue")
    known = {"cluster": "alpha", "user": "ada", "state_text": state}
    return JobStatus(job_id=job_id, state=JobState(state.split()[0]), source=source, **(known | values))


def merged(queued: list[JobStatus] | None, accounted: list[JobStatus]) -> dict[str, JobStatus]:
    jobs, _ = merge(queued, accounted, "ada")
    return {found.job_id: found for found in jobs}


def replay(**answers: Any) -> Slurm:
    known = {"squeue": recorded("squeue"), "sacct": recorded("sacct"), "sstat": recorded("sstat")}
    return Slurm(run=Replay(**(known | answers)), env={"SLURM_CONF": "/nowhere"})


def ask(*words: str, slurm: Slurm | None = None, **options: Any) -> StatusReport:
    return status(slurm or replay(), user=USER, selections=select(words), **options)


def run_of(directory: Path, **values: Any) -> Run:
    known = {
        "name": "digits", "token": "k3x9", "job_id": 7, "state": "submitted", "submitted_at": NOW,
        "argv": ["sbatch", "script.sbatch"], "script_sha256": "0" * 64, "run_dir": str(directory),
        "slurmgpu_version": "0.1.0",
    }  # fmt: skip
    run = Run(**(known | values))
    directory.mkdir(exist_ok=True)
    (directory / "run.json").write_text(run.to_json(), encoding="utf-8")
    return run


# ---- logs


def test_the_log_of_a_run_directory_is_shown_without_asking_slurm(tmp_path: Path) -> None:
    folder = tmp_path / "digits-20261121T120000Z-k3x9"
    run = run_of(folder, stdout=str(folder / "logs" / "%j.out"))
    (folder / "logs").mkdir()
    nobody = Slurm(run=Replay(), env={})
    with pytest.raises(KeyError):  # it is not there: Slurm may tell why
        find_logs(nobody, select([str(folder)]), USER, lambda _: None)
    (folder / "logs" / "7.out").write_text("trained\n")
    (log,) = find_logs(Slurm(run=Replay(), env={}), select([str(folder)]), USER, lambda _: None)
    assert log.path == folder / "logs" / f"{run.job_id}.out"


@pytest.mark.parametrize(
    ("cluster", "name", "log_name", "asks"),
    [
        ("alpha", "%j.out", "7.out", False),
        (None, "%j.out", "7.out", False),
        ("beta", "%j.out", "7.out", True),
        ("alpha", "%A_%a.out", "7_2.out", False),
        ("alpha", "%A_%a.out", "7_3.out", True),
        ("alpha", "%j.out", "7_2.out", True),  # a task has a number of its own
    ],
)
def test_a_job_of_which_a_record_tells_all_is_found_without_asking_slurm(
    tmp_path: Path, cluster: str | None, name: str, log_name: str, asks: bool
) -> None:
    """A Slurm that hangs takes a minute not to answer; another cluster's ids are its own."""
    runs = tmp_path / "runs"
    runs.mkdir()
    folder = runs / "digits-20261121T120000Z-k3x9"
    run_of(folder, stdout=str(folder / "logs" / name), cluster=cluster)
    (folder / "logs").mkdir()
    (folder / "logs" / log_name).write_text("trained\n")
    word = "7" if cluster == "beta" or log_name == "7.out" else "7_2"
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=alpha\n")
    nobody = Slurm(run=Replay(), env={"SLURM_CONF": str(conf)})

    def log() -> Path | None:
        (found,) = find_logs(nobody, select([word]), USER, lambda job: run_of_job(job, lambda _: runs))
        return found.path

    def run() -> Path:
        return find_run(nobody, "7", lambda _: runs, USER)

    if asks:
        for question in (log, run) if cluster == "beta" else (log,):
            with pytest.raises(KeyError):
                question()
    else:
        assert (log(), run()) == (folder / "logs" / log_name, folder)


def test_accounting_says_why_there_is_no_log_if_the_queue_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accounting says PENDING of a job that has run for seconds."""
    pending = job(state="PENDING", source="sacct", job_id="7")
    told = StatusReport("alpha", NOW, [pending], [], no_answer=SlurmUnreachable("it is silent"))
    monkeypatch.setattr(logs, "status", lambda *_, **__: told)
    (log,) = logs.find_logs(Slurm(run=Replay(), env={}), select(["7"]), USER, lambda _: None)
    assert (
        log.why
        == "the queue does not answer, and accounting says: the job has not started yet: it is PENDING"
    )


def test_a_log_is_found_by_the_run_directory_when_slurm_has_forgotten_where_it_was(tmp_path: Path) -> None:
    """Soon after its end only accounting knows a job, by its id and without its script."""
    run_of(tmp_path / "digits-20261121T120000Z-k3x9", stdout=str(tmp_path / "logs" / "%j.out"))
    run_of(tmp_path / "digits-20261121T130000Z-k3xa", job_id=8)
    ended = job("7", "COMPLETED", source="sacct")
    found = run_of_job(ended, lambda _: tmp_path)
    assert [log.path for log in logs_of(found, ended)] == [tmp_path / "logs" / "7.out"]
    assert run_of_job(job("9", "COMPLETED", source="sacct"), lambda _: tmp_path) is None


def test_a_run_of_the_same_number_that_came_after_the_job_is_not_its_run(tmp_path: Path) -> None:
    """Numbers come again on another cluster, and where a site starts anew."""
    run_of(tmp_path / "digits-20261121T120000Z-k3x9")
    before, after = (
        job("7", "COMPLETED", source="sacct", submit=NOW + timedelta(hours=hours)) for hours in (-1, 1)
    )
    assert run_of_job(before, lambda _: tmp_path) is None
    assert run_of_job(after, lambda _: tmp_path) is not None


def test_a_log_is_found_from_any_folder_by_the_work_folder_that_accounting_keeps(tmp_path: Path) -> None:
    work = tmp_path / "project"
    (work / "runs").mkdir(parents=True)
    run_of(work / "runs" / "digits-20261121T120000Z-k3x9", stdout=str(work / "logs" / "%j.out"))
    ended = job("7", "COMPLETED", source="sacct", work_dir=str(work))
    found = run_of_job(ended, lambda folder: folder / "runs")
    assert [log.path for log in logs_of(found, ended)] == [work / "logs" / "7.out"]


# ---- merging


def test_a_status_costs_one_squeue_and_one_sacct() -> None:
    slurm = replay()
    report = ask(slurm=slurm)
    assert sorted(argv[0] for argv in slurm.asked) == ["sacct", "squeue"]
    assert report.cluster == "throwaway"
    assert report.notes == []
    assert len(report.jobs) == 16


def test_a_task_that_accounting_does_not_know_as_one_yet_is_no_second_job() -> None:
    """Seen on 22.05 just after the end: the row of the last task, under the array's number, called `allocation`."""
    queued = [job("7_0", "COMPLETED", array_job_id=7), job("7_1", "COMPLETED", array_job_id=7)]
    assert merged(queued, [job("7", "COMPLETED", source="sacct")]).keys() == {"7_0", "7_1"}


def test_a_component_that_accounting_has_as_a_job_of_its_own_is_no_second_job() -> None:
    """Seen on 26.05 as long as a heterogeneous job waits, and for ever after a cancel before its start."""
    queued = [job("7+0", "PENDING", raw_id=7), job("7+1", "PENDING", raw_id=8)]
    accounted = [job("7", "PENDING", source="sacct"), job("8", "PENDING", source="sacct", raw_id=8)]
    assert merged(queued, accounted).keys() == {"7+0", "7+1"}
    assert merged([], [job("7", "CANCELLED", source="sacct")]).keys() == {"7"}


def test_how_a_job_ended_comes_from_accounting_with_the_log_from_the_queue() -> None:
    queued = job(state="FAILED", stdout="/a.log", exit_code=None, elapsed=None)
    accounted = job(state="FAILED", source="sacct", exit_code=3, signal=0, elapsed=5)
    found = merged([queued], [accounted])["7"]
    assert (found.exit_code, found.elapsed, found.stdout, found.source) == (3, 5, "/a.log", "squeue+sacct")


def test_an_exit_code_that_accounting_cuts_is_the_queues_as_long_as_it_is_known() -> None:
    killed = merged([job(state="FAILED", exit_code=137)], [job(state="FAILED", source="sacct", exit_code=9)])
    assert killed["7"].exit_code == 137
    failed = merged([job(state="FAILED", exit_code=9)], [job(state="FAILED", source="sacct", exit_code=9)])
    assert failed["7"].exit_code == 9


def test_a_requeued_job_does_not_get_the_end_of_its_earlier_run() -> None:
    accounted = job(state="FAILED", source="sacct", exit_code=3, end=NOW)
    found = merged([job(state="PENDING")], [accounted])["7"]
    assert (found.state, found.end, found.exit_code) == (JobState.PENDING, None, None)


def test_a_job_of_ones_own_that_only_accounting_believes_alive_is_unknown_where_the_queue_answers() -> None:
    believed = job(state="RUNNING", source="sacct")
    jobs, notes = merge([], [believed], "ada")
    assert [j.state for j in jobs] == [JobState.UNKNOWN]
    assert [note for note, _ in notes] == ["job 7: accounting says RUNNING, but the queue has no such job"]
    jobs, notes = merge([], [job(state="RUNNING", source="sacct", user="bob")], "ada")
    assert ([j.state for j in jobs], notes) == ([JobState.RUNNING], [])
    assert merged(None, [believed])["7"].state is JobState.RUNNING
    put_back = job(state="REQUEUED", state_text="REQUEUED", source="sacct", end=NOW)
    jobs, notes = merge([], [put_back], "ada")
    assert [(j.state, reason(j)) for j in jobs] == [
        (JobState.CANCELLED, "cancelled while it was put back into the queue")
    ]
    assert notes == []
    assert merged(None, [put_back])["7"].state is JobState.REQUEUED


def test_waiting_array_tasks_are_not_shown_twice_when_accounting_lags() -> None:
    queued = [
        job("4_0", array_job_id=4, array_tasks="0"),
        job("4_[1-5]", "PENDING", array_job_id=4, array_tasks="[1-5]"),
    ]
    accounted = [job("4_[0-5]", "PENDING", source="sacct", array_job_id=4, array_tasks="[0-5]")]
    assert set(merged(queued, accounted)) == {"4_0", "4_[1-5]"}


def test_a_task_that_squeue_shows_with_the_others_is_neither_lost_nor_counted_twice() -> None:
    """One task of a held array was released: accounting has it by itself, squeue makes one row of all that wait."""
    for shown in ("[0-5]", "[0,1,3,5,...]"):
        queued = [job(f"4_{shown}", "PENDING", array_job_id=4, array_tasks=shown)]
        accounted = [
            job("4_2", "PENDING", source="sacct", array_job_id=4, array_tasks="2"),
            job("4_[0-1,3-5]", "PENDING", source="sacct", array_job_id=4, array_tasks="[0-1,3-5]"),
        ]
        jobs, notes = merge(queued, accounted, "ada")
        assert ([one.job_id for one in jobs], notes) == ([f"4_{shown}"], [])
    gone = job("4_9", "RUNNING", source="sacct", array_job_id=4, array_tasks="9")
    apart = job("4_[0-5]", "PENDING", array_job_id=4, array_tasks="[0-5]")
    assert merged([apart], [gone])["4_9"].state is JobState.UNKNOWN


def test_the_same_id_on_two_clusters_is_two_jobs() -> None:
    jobs, _ = merge([job(cluster="alpha")], [job(cluster="beta", state="COMPLETED", source="sacct")], "ada")
    assert [(j.cluster, j.state.value) for j in jobs] == [("alpha", "RUNNING"), ("beta", "COMPLETED")]


def test_without_accounting_the_queue_still_answers_and_says_so() -> None:
    report = ask(slurm=replay(sacct=recorded("sacct_no_accounting")))
    assert len(report.jobs) == 16
    assert len(report.notes) == 1
    assert report.notes[0].startswith("accounting is not available on this cluster (no slurmdbd)")


def test_without_the_controller_accounting_still_answers_and_says_so() -> None:
    report = ask(slurm=replay(squeue=recorded("squeue_no_controller")))
    assert {j.source for j in report.jobs} == {"sacct"}
    assert "does not answer" in report.notes[0]
    assert "may be out of date" in report.notes[0]


def test_queue_and_accounting_are_asked_side_by_side() -> None:
    """Each waits here until the other has been asked, too."""
    both = threading.Barrier(2, timeout=60)

    def after_both(name: str) -> Callable[[Sequence[str]], Answer]:
        def answer(argv: Sequence[str]) -> Answer:
            if "TRESUsageInMax" not in " ".join(argv):
                both.wait()
            return recorded(name)

        return answer

    assert ask(slurm=replay(squeue=after_both("squeue"), sacct=after_both("sacct"))).jobs


def test_a_job_that_was_submitted_between_the_two_answers_is_no_doubt() -> None:
    """Accounting has heard of it, and the queue was asked just before it came."""
    rows = recorded("squeue").stdout.split("\n")
    before = said("\n".join(row for row in rows if not row.startswith(f"1{SEPARATOR}")))
    found = ask("1", slurm=replay(squeue=[before, recorded("squeue")]))
    assert [(one.state, found.notes) for one in found.jobs] == [(JobState.RUNNING, [])]


def test_without_both_slurm_is_unreachable() -> None:
    slurm = replay(squeue=recorded("squeue_no_controller"), sacct=recorded("sacct_no_slurmdbd"))
    with pytest.raises(SlurmUnreachable, match="does not answer"):
        ask(slurm=slurm)


def test_live_use_is_asked_only_on_request_and_only_of_running_jobs() -> None:
    slurm = replay()
    report = ask("9", "7", slurm=slurm, live=True)
    assert slurm.asked[-1][0] == "sstat"
    assert slurm.asked[-1][-1] == "--jobs=9"
    found = {j.job_id: j for j in report.jobs}
    use = found["9"].live
    assert (use.max_rss, use.cpu_seconds) == (12886016, 12)
    assert use.average_cpus == pytest.approx(12 / (found["9"].elapsed or 0))
    assert found["7"].live is None


# ---- what JOB means


def test_an_id_an_array_a_task_and_a_name_find_their_jobs() -> None:
    assert [j.job_id for j in ask("4").jobs] == ["4_0", "4_1", "4_[2-5%2]"]
    assert [j.job_id for j in ask("4_3").jobs] == ["4_[2-5%2]"]
    assert [j.job_id for j in ask("5+1").jobs] == ["5+1"]
    assert [j.job_id for j in ask("a|b", "arr").jobs] == ["1", "4_0", "4_1", "4_[2-5%2]"]


def test_jobs_named_by_id_are_found_whatever_their_age() -> None:
    slurm = replay()
    ask("4_3", "7", slurm=slurm)
    (sacct,) = (argv for argv in slurm.asked if argv[0] == "sacct")
    assert "--jobs=4,7" in sacct
    assert not any(word.startswith("--starttime") for word in sacct)


def test_a_job_that_slurm_does_not_know_is_unknown_and_never_left_out() -> None:
    report = ask("99999")
    assert [(j.job_id, j.state, j.source) for j in report.jobs] == [("99999", JobState.UNKNOWN, "none")]
    assert report.notes == ["job 99999: neither the queue nor accounting knows it"]


def test_a_waiting_job_of_somebody_else_is_found_by_its_id_with_its_reason() -> None:
    """Accounting may not have heard of it yet, and never tells why it waits."""

    def squeue(argv: Sequence[str]) -> Answer:
        return said("") if "--user=ada" in argv else recorded("squeue")

    for accounting in (said(""), recorded("sacct")):
        report = status(replay(squeue=squeue, sacct=accounting), user="ada", selections=select(["4_3"]))
        assert [(j.job_id, j.user, j.reason) for j in report.jobs] == [
            ("4_[2-5%2]", USER, "JobArrayTaskLimit")
        ]


def test_a_name_without_jobs_is_a_note() -> None:
    report = ask("nosuch")
    assert report.jobs == []
    assert "no job of yours named 'nosuch'" in report.notes[0]
    everybodys = status(replay(), user=None, selections=select(["nosuch"]))
    assert "no job named 'nosuch'" in everybodys.notes[0]
    assert ask("stuborn").notes[0].endswith("did you mean 'stubborn'?")


def test_a_run_directory_leads_to_its_job(tmp_path: Path) -> None:
    run_of(tmp_path / "run", job_id=9, run_dir="/scratch/ada", script="script.sh")
    assert "9" in [j.job_id for j in ask(str(tmp_path / "run")).jobs]


def test_a_run_whose_submission_was_cut_off_is_found_by_its_script(tmp_path: Path) -> None:
    run_of(tmp_path / "run", job_id=None, state="unknown", run_dir="/scratch/ada", script="script.sh")
    slurm = replay(sacct=said())
    assert "1" in [j.job_id for j in ask(str(tmp_path / "run"), slurm=slurm).jobs]


def test_an_id_that_now_belongs_to_another_script_is_not_the_runs(tmp_path: Path) -> None:
    run_of(tmp_path / "run", job_id=9)
    report = ask(str(tmp_path / "run"))
    assert [(j.job_id, j.name, j.state, j.source) for j in report.jobs] == [
        ("9", "digits", JobState.UNKNOWN, "run.json")
    ]


def test_an_id_that_was_used_before_is_not_the_runs(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    selection = select([str(tmp_path / "run")])[0]
    assert selection.matches(job(source="sacct", submit=run.submitted_at))
    assert not selection.matches(job(source="sacct", submit=run.submitted_at - timedelta(days=400)))
    # A controller that has lost its state begins again with its numbers; a job put back into the queue has a later time, too.
    later = run.submitted_at + timedelta(hours=1)
    assert not selection.matches(job(source="sacct", submit=later, name="other"))
    assert selection.matches(job(source="sacct", submit=later, name=run.name))


@pytest.mark.parametrize("text", ["", "{}", '{"schema": "slurmgpu.run/2"}', "[1]", "\x00"])
def test_a_damaged_run_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InvalidInput, match=r"run\.json is not the record of a run"):
        select([str(tmp_path)])


def test_a_device_in_the_place_of_a_run_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "run.json").symlink_to("/dev/zero")
    with pytest.raises(InvalidInput, match=r"run\.json cannot be read: a folder, a pipe or a device"):
        read_run(tmp_path)


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"is not there|is not a run directory"):
        select([str(tmp_path)])
    with pytest.raises(InvalidInput, match=r"is not there|is not a run directory"):
        select(["runs/nosuch"])
    with pytest.raises(InvalidInput, match="'' names no job"):
        select([""])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30m", NOW - timedelta(minutes=30)),
        ("90s", NOW - timedelta(seconds=90)),
        ("12h", NOW - timedelta(hours=12)),
        ("1d", NOW - timedelta(days=1)),
        ("2w", NOW - timedelta(weeks=2)),
        ("2026-11-20T00:00:00+00:00", datetime(2026, 11, 20, tzinfo=timezone.utc)),
        ("0001-01-02", datetime(1970, 1, 2, tzinfo=timezone.utc)),  # sacct refuses what Slurm cannot count
    ],
)
def test_since_is_a_span_or_a_date(text: str, expected: datetime) -> None:
    assert since_moment(text, NOW) == expected


@given(st.text())
def test_no_text_breaks_since(text: str) -> None:
    with suppress(InvalidInput):
        since_moment(text, NOW)


@pytest.mark.parametrize("text", ["", "1", "yesterday", "1y", "-1d", "999999w", "2026-13-01"])
def test_any_other_since_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput, match=f"^--since '{text}' is not a time"):
        since_moment(text, NOW)


# ---- what is shown


def test_a_training_that_stopped_in_good_order_is_not_called_a_failed_command() -> None:
    stopped = job(state="FAILED", reason="NonZeroExitCode", exit_code=75)
    assert reason(stopped) == "stopped, and can go on: slurmgpu resume 7"
    failed = job(state="FAILED", reason="NonZeroExitCode", exit_code=1)
    assert reason(failed) == "the command failed (exit code 1)"


def test_the_plain_table_cuts_nothing_off_lines_up_and_a_very_long_name_widens_its_own_row_alone() -> None:
    long = job("4_[0-2,4-7,9%3]", "PENDING", name="x" * 200, reason="Resources", gpus=2, nodes=1)
    lines = plain([long, job(nodes=2, node_list="n[1-2]"), job(name="y" * 40)], NOW).split("\n")
    assert f"  {'x' * 200}  PENDING" in lines[1]
    column = lines[0].index("STATE")
    assert column < 70
    assert [line[column:].split()[0] for line in (lines[0], *lines[2:])] == ["STATE", "RUNNING", "RUNNING"]


def test_a_name_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[31m\nü\u202e") == r"a\x1b[31m\nü\u202e"
    assert printable(os.fsdecode(b"caf\xe9")) == r"caf\xe9"


def row(found: JobStatus) -> dict[str, str]:
    (names, row), _ = table([found], NOW, live=True, each_task=True)
    return dict(zip(names, row, strict=True))


def test_a_job_that_will_never_start_has_no_moment_at_which_it_would() -> None:
    """Slurm estimates a start all the same."""
    moment = NOW + timedelta(hours=1)
    assert row(job(state="PENDING", reason="Priority", expected_start=moment))["WHEN"].startswith("starts")
    assert row(job(state="PENDING", reason="PartitionTimeLimit", expected_start=moment))["WHEN"] == "-"


def test_a_job_that_sbatch_refused_is_not_said_to_have_failed_in_its_command() -> None:
    """Accounting keeps it as FAILED with exit code 1, ended when it was submitted, on no node; 26.05 without a start."""
    refused = job(state="FAILED", exit_code=1, elapsed=0, submit=NOW, end=NOW)
    for start in (None, NOW):
        found = refused.model_copy(update={"start": start})
        for ended in (found, found.model_copy(update={"exit_code": 0, "signal": 1})):  # the queue's way of 1
            assert row(ended)["REASON"].startswith("never started: Slurm refused it")
    assert "command failed" in row(refused.model_copy(update={"node_list": "node1"}))["REASON"]


def test_the_line_of_an_array_whose_tasks_failed_within_a_second_does_not_say_that_slurm_refused_it() -> None:
    tasks = [
        job(f"4_{n}", "FAILED", array_job_id=4, array_tasks=str(n), raw_id=4 + n, exit_code=1, elapsed=0, start=NOW, end=NOW,
            node_list=f"node{n}")
        for n in (1, 2)
    ]  # fmt: skip
    ((names, line), _) = table(tasks, NOW)
    assert dict(zip(names, line, strict=True))["REASON"].endswith("the command failed (exit code 1)")
    assert row(job(state="PENDING", reason="SomethingNew"))["REASON"] == "SomethingNew"


def test_why_a_job_once_waited_is_not_why_it_ended() -> None:
    assert row(job(state="COMPLETED", reason="JobArrayTaskLimit"))["REASON"] == "-"
    assert row(job(state="CANCELLED", reason="JobArrayTaskLimit", elapsed=3))["REASON"] == "cancelled"
    assert "command failed" in row(job(state="FAILED", reason="NonZeroExitCode"))["REASON"]


def test_the_exit_column_shows_zero_for_success_alone() -> None:
    assert row(job(state="COMPLETED", exit_code=0, signal=0))["EXIT"] == "0"
    assert row(job(state="OUT_OF_MEMORY", exit_code=0, signal=0))["EXIT"] == "-"
    assert row(job(state="FAILED", exit_code=0, signal=53))["EXIT"] == "0:53"
    assert row(job(state="FAILED", exit_code=3, signal=0))["EXIT"] == "3"


def test_a_time_of_another_day_has_its_date() -> None:
    local = NOW.astimezone()
    assert row(job(start=NOW))["WHEN"] == f"since {local:%H:%M}"
    before = NOW - timedelta(days=1)
    assert row(job(state="FAILED", end=before))["WHEN"] == f"ended {before.astimezone():%Y-%m-%d %H:%M}"
    assert row(job(state="PENDING", expected_start=NOW))["WHEN"].endswith("?")


def test_what_is_not_known_is_a_dash_and_no_zero() -> None:
    shown = row(JobStatus(job_id="7", state=JobState.UNKNOWN, source="none"))
    assert shown.pop("JOB") == "7"
    assert shown.pop("STATE") == "UNKNOWN"
    assert set(shown.values()) == {"-"}


# ---- the command


@pytest.fixture(autouse=True)
def _as_in_the_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmgpu.jobs.select.current_user", lambda: USER)


def invoke(*args: str, slurm: Slurm | None = None) -> Result:
    return CliRunner().invoke(command, args, obj=slurm or replay(), catch_exceptions=False)


def test_the_table_names_the_cluster() -> None:
    result = invoke()
    assert result.stdout.startswith("cluster throwaway, ")
    assert "\x1b" not in result.stdout
    assert "ünï \"q\" 'x'" in result.stdout
    assert r"two\nlines" in result.stdout


def test_json_is_one_versioned_document() -> None:
    document = json.loads(invoke("--json", "7").stdout)
    assert document["schema"] == "slurmgpu.status/1"
    assert document["cluster"] == "throwaway"
    found = document["jobs"][0]
    assert {key: found[key] for key in ("job_id", "state", "exit_code", "source")} == {
        "job_id": "7",
        "state": "FAILED",
        "exit_code": 3,
        "source": "squeue+sacct",
    }
    assert found["submit"].endswith("Z")


def test_no_jobs_is_a_sentence_on_stderr_and_no_failure() -> None:
    result = invoke(slurm=replay(squeue=said(), sacct=said()))
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "No jobs on cluster unknown" in result.stderr


def test_where_options_choose_no_job_the_sentence_names_them() -> None:
    """A misspelt partition looks like an idle one."""
    result = invoke("--partition", "gpuu", "--name", "swep-*")
    assert result.stderr.startswith("No jobs with --partition gpuu and --name 'swep-*' on cluster ")


def test_notes_go_to_stderr() -> None:
    result = invoke("99999")
    assert "note: job 99999" in result.stderr
    assert "note" not in result.stdout


def test_everybodys_jobs_are_asked_for_only_when_wanted() -> None:
    slurm = replay()
    invoke("--all-users", slurm=slurm)
    assert any("--allusers" in argv for argv in slurm.asked if argv[0] == "sacct")
    assert not any(word.startswith("--user") for argv in slurm.asked for word in argv)


def test_a_watch_of_finished_jobs_ends_at_once() -> None:
    slurm = replay()
    result = invoke("--watch", "--json", "7", slurm=slurm)
    assert len(result.stdout.splitlines()) == 1
    assert slurm.count("squeue") == 1


def test_a_watch_ends_when_its_job_does(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    slurm = replay(squeue=[recorded("squeue"), recorded("squeue_afterwards")], sacct=said())
    result = invoke("--watch", "--json", "11", slurm=slurm)
    states = [json.loads(line)["jobs"][0]["state"] for line in result.stdout.splitlines()]
    assert states == ["COMPLETING", "CANCELLED"]
    assert waited == [30.0]


def test_a_job_unknown_to_slurm_ends_with_1_and_so_does_watching(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = StatusReport(
        "here", NOW, [], ["job 9: neither the queue nor accounting knows it"], missing=["9"]
    )
    monkeypatch.setattr("slurmgpu.jobs.look.status", lambda *_, **__: nobody)
    for arguments in (["9"], ["9", "--watch"], ["9", "--json"]):
        assert CliRunner().invoke(command, arguments).exit_code == 1


def test_a_step_that_ends_after_its_batch_script_still_tells_the_exit_code() -> None:
    """Slurm has stored the job's row by then, with 0 as the highest exit code of its steps."""
    shown = {"JobIDRaw": "7", "Cluster": "alpha", "User": USER, "State": "FAILED", "DerivedExitCode": "0:0"}

    def sacct_says(argv: Sequence[str]) -> Answer:
        fields = next(word for word in argv if word.startswith("--format="))[len("--format=") :].split(",")
        rows = [shown | {"JobID": "7", "ExitCode": "9:0"}]
        if "--allocations" not in argv:
            rows += [
                shown | {"JobID": "7.batch", "ExitCode": "9:0"},
                shown | {"JobID": "7.0", "ExitCode": "0:9"},
            ]
        lines = (SEPARATOR.join([*(row.get(name, "") for name in fields), ""]) for row in rows)
        return said("".join(f"{line}\n" for line in lines))

    (found,) = ask("7", slurm=replay(squeue=said(), sacct=sacct_says)).jobs
    assert (found.exit_code, found.exit_code_cut) == (137, False)


@pytest.mark.parametrize(
    ("name", "exit_code", "code"),
    [("slurmgpu-sampler", "0:9", None), ("python3", "0:9", 137), ("python3", "4:0", 4)],
)
def test_a_killed_sampler_is_nothing_of_the_jobs(name: str, exit_code: str, code: int | None) -> None:
    job_row = {
        "JobIDRaw": "7", "JobID": "7", "Cluster": "alpha", "User": USER, "State": "COMPLETED", "ExitCode": "0:0",
    }  # fmt: skip
    rows = [
        job_row | {"DerivedExitCode": exit_code},
        job_row | {"JobID": "7.batch", "JobName": "batch"},
        job_row | {"JobID": "7.0", "JobName": name, "ExitCode": exit_code, "State": "CANCELLED"},
    ]

    def sacct_says(argv: Sequence[str]) -> Answer:
        fields = next(word for word in argv if word.startswith("--format="))[len("--format=") :].split(",")
        return said(
            "".join(SEPARATOR.join([*(row.get(one, "") for one in fields), ""]) + "\n" for row in rows)
        )

    (found,) = ask("7", slurm=replay(squeue=said(), sacct=sacct_says)).jobs
    (reported,) = replay(sacct=sacct_says).history(ids=[7]).jobs
    assert (found.derived_exit_code, reported.job.derived_exit_code) == (code, code)
    assert (reason(found) is None) is (code is None)


def test_json_tells_jobs_that_are_not_there_from_those_that_were_not_asked_about() -> None:
    known = json.loads(
        invoke("--json", "7", "999", slurm=replay(sacct=said(), squeue=recorded("squeue"))).stdout
    )
    assert (known["missing"], known["unasked"]) == (["999"], [])
    hung = said(stderr="slurm_load_jobs error: Unable to contact slurm controller (connect failure)", rc=1)
    unknown = json.loads(invoke("--json", "999", slurm=replay(squeue=hung, sacct=said())).stdout)
    assert (unknown["missing"], unknown["unasked"]) == ([], ["999"])
