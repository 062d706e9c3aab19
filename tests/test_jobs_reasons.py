"""Why a job waits, and how it ended, in words; and the tasks of an array in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmgpu.jobs.table import lines
from slurmgpu.jobs.view import reason, word_of
from slurmgpu.models.run import JobState, JobUse
from slurmgpu.slurm import sacct
from tests.plain_table import plain
from tests.tables import TABLES
from tests.test_jobs_status import NOW, job

# Every word of job_state_reason.c, 22.05 to 25.11, that a waiting job can have.
WORDS = (Path(__file__).parent / "data" / "waiting_reasons.txt").read_text().split()


def test_every_reason_for_which_slurm_lets_a_job_wait_has_a_sentence() -> None:
    whose = {"Assoc": "account lab", "QOS": "QOS high", "Max": "QOS high"}
    wrong = {}
    for word in WORDS:
        said = str(reason(job(state="PENDING", reason=word, account="lab", qos="high")))
        owner = next((name for start, name in whose.items() if word.startswith(start)), "")
        a_limit = any(part in word for part in ("Grp", "Max", "QOSMin")) and "Per" in word
        if not said.startswith(f"{word}: ") or (a_limit and word != "MaxMemPerLimit" and owner not in said):
            wrong[word] = said
    assert wrong == {}


@pytest.mark.parametrize(
    ("word", "sentence"),
    TABLES["test_a_limit_says_whose_it_is_and_on_what"],
)
def test_a_limit_says_whose_it_is_and_on_what(word: str, sentence: str) -> None:
    assert sentence in str(reason(job(state="PENDING", reason=word, account="lab", qos="high")))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"state": "FAILED", "exit_code": 1}, "the command failed (exit code 1)"),
        ({"state": "FAILED", "exit_code": 127}, "a command was not found (exit code 127)"),
        ({"state": "FAILED", "exit_code": 137}, "the command was ended by SIGKILL (exit code 137)"),
        ({"state": "FAILED", "exit_code": 0, "signal": 53}, "could not start: the log's or the work folder"),
        ({"state": "FAILED", "exit_code": 0, "signal": 9}, "ended by SIGKILL"),
        ({"state": "TIMEOUT", "exit_code": 0}, "ran into its time limit"),
        ({"state": "OUT_OF_MEMORY", "exit_code": 0, "signal": 125}, "used more memory than asked for"),
        ({"state": "CANCELLED", "state_text": "CANCELLED by 4294967294"}, "cancelled by user 4294967294"),
    ],
)
def test_how_a_job_ended_is_told_by_what_accounting_keeps(values: dict[str, object], sentence: str) -> None:
    remembered = job(**values, source="sacct")  # type: ignore[arg-type]
    fresh = job(**values, source="squeue", reason="NonZeroExitCode")  # type: ignore[arg-type]
    assert sentence in str(reason(remembered))
    assert reason(remembered) == reason(fresh)


def test_an_exit_code_that_accounting_may_have_cut_is_said_to_be_either() -> None:
    remembered = job(state="FAILED", exit_code=9, exit_code_cut=True, source="sacct")
    assert reason(remembered) == (
        "the command failed (exit code 9, or 137: SIGKILL; older releases of sacct show both as 9)"
    )
    assert (
        reason(job(state="FAILED", exit_code=9, source="squeue+sacct")) == "the command failed (exit code 9)"
    )
    assert reason(job(state="FAILED", exit_code=2, exit_code_cut=True)) == "the command failed (exit code 2)"
    for code in (0, 127):
        told = str(reason(job(state="FAILED", exit_code=code, exit_code_cut=True)))
        assert f"exit code {code}, or {code + 128};" in told


def test_an_array_is_one_line_that_counts_its_tasks() -> None:
    tasks = [job(f"7_{n}", "COMPLETED", array_job_id=7, array_tasks=str(n)) for n in range(4)]
    tasks.append(job("7_4", "FAILED", array_job_id=7, array_tasks="4", exit_code=3))
    tasks += [job(f"7_{n}", "RUNNING", array_job_id=7, array_tasks=str(n)) for n in (5, 6)]
    tasks.append(job("7_[7-9%2]", "PENDING", array_job_id=7, array_tasks="[7-9%2]"))
    (other, line) = lines([job("5"), *tasks])
    assert other.tasks is None
    assert line.tasks == "4/10 tasks done, 2 running, 3 waiting, 1 failed (4)"
    assert (line.job.job_id, line.job.state) == ("7", JobState.RUNNING)
    ids = [one.job.job_id for one in lines(tasks, each_task=True)]
    assert ids == [*(task.job_id for task in tasks[:-1]), "7_7", "7_8", "7_9"]


def test_an_array_whose_tasks_have_all_ended_is_called_by_its_worst() -> None:
    tasks = [job("7_1", "COMPLETED", array_job_id=7, array_tasks="1", exit_code=0)]
    tasks.append(job("7_2", "FAILED", array_job_id=7, array_tasks="2", exit_code=3))
    (line,) = lines(tasks)
    assert (line.job.state, line.job.exit_code) == (JobState.FAILED, 3)


def test_tasks_that_only_accounting_still_knows_are_of_the_same_array() -> None:
    """squeue names no cluster where there is one, and sacct does."""
    tasks = [job("7_1", "COMPLETED", array_job_id=7, array_tasks="1", cluster="only")]
    tasks.append(job("7_2", "RUNNING", array_job_id=7, array_tasks="2", cluster=None))
    (line,) = lines(tasks)
    assert line.tasks == "1/2 tasks done, 1 running"


def test_a_single_task_stays_what_it_is() -> None:
    (line,) = lines([job("7_2", "FAILED", array_job_id=7, array_tasks="2")])
    assert (line.job.job_id, line.tasks) == ("7_2", None)


@pytest.mark.parametrize(
    ("reason_word", "dependency", "sentence"),
    [
        ("Dependency", "afterok:12(unfulfilled),afterany:13_*(unfulfilled)", "job 12 to end well and job 13_* to end"),
        ("Dependency", "afternotok:12(unfulfilled)?after:13+5(unfulfilled)", "job 13 to have started 5 min ago"),
        ("Dependency", "singleton(unfulfilled)", "all earlier jobs of this name and user to end"),
        ("Dependency", None, "waits for another job"),
        ("DependencyNeverSatisfied", "afterok:1(failed),afterok:2(unfulfilled)", "start: it waits for job 1 to end well, which"),
    ],
)  # fmt: skip
def test_what_a_job_waits_for_is_named(reason_word: str, dependency: str | None, sentence: str) -> None:
    assert sentence in str(reason(job(state="PENDING", reason=reason_word, dependency=dependency)))


def test_gpu_memory_is_shown_where_it_was_measured_and_only_there() -> None:
    assert [
        sacct._gpu_memory(text) for text in ("cpu=1,gres/gpumem=2G,mem=3M", "gres/gpumem=0", "mem=3M")
    ] == [2 << 30, None, None]
    measured = job("7", "COMPLETED", used=JobUse(gpu_memory=2 << 30))
    text = plain([measured, job("8", "COMPLETED", used=JobUse(max_rss=1 << 20))], NOW)
    assert [line.split()[-2:] for line in text.splitlines()[1:]] == [["GiB", "-"], ["n/a", "-"]]
    assert "GPU MEM" not in plain([job("8", "COMPLETED", used=JobUse(max_rss=1 << 20))], NOW)


def test_a_job_that_was_put_back_is_not_said_to_wait_for_a_time_that_somebody_asked_for() -> None:
    assert (
        reason(job(state="PENDING", reason="BeginTime"))
        == "BeginTime: must not start before the time asked for"
    )
    said = reason(job(state="PENDING", reason="BeginTime", restarts=2))
    assert said == "BeginTime: put back into the queue (2 times so far), where Slurm lets it wait a moment"


@pytest.mark.parametrize("word", ["None", "Resources", "JobArrayTaskLimit", "QOSMaxGRESPerUser"])
def test_tasks_that_wait_for_different_things_are_not_all_called_held(word: str) -> None:
    """squeue makes one row of an array's tasks that wait, and writes the words of all into it."""
    several = f"JobHeldUser,{word}"
    assert word_of(several) == word
    said = str(reason(job("7_[0-3]", "PENDING", reason=several)))
    alone = str(reason(job("7_[0-3]", "PENDING", reason=word))).partition(": ")[2]
    assert "held by its user; `scontrol release 7` lets it start" in said
    assert said.endswith(alone)
    # What follows a comma is not always another task's word.
    assert word_of("ReqNodeNotAvail, UnavailableNodes:n[1-3]") == "ReqNodeNotAvail"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"reason": "Resources", "gpus": 8, "gpu_types": {"a100": 8}, "nodes": 2}, "are free: asks for 8 a100 on 2 nodes"),
        ({"reason": "Resources", "gpus": 1, "nodes": 1}, "next to start, when nodes are free: asks for 1 GPU"),
        ({"reason": "Resources", "gpus": 0, "cpus": 64, "nodes": 4}, "are free: asks for 64 CPUs on 4 nodes"),
        ({"reason": "Resources"}, "next to start, when nodes are free"),
        ({"reason": "JobArrayTaskLimit", "array_tasks": "[4-9%3]"}, "limit (%) allows: 3 at a time"),
        ({"reason": "JobArrayTaskLimit"}, "limit (%) allows"),
    ],
)  # fmt: skip
def test_a_reason_has_the_figure_that_the_queue_tells(values: dict[str, object], sentence: str) -> None:
    assert str(reason(job(state="PENDING", **values))).endswith(sentence)  # type: ignore[arg-type]
