"""squeue, sacct, sstat: parsers on recorded answers of every release, and on rows constructed by the tests."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmgpu.errors import SlurmRefused, SlurmUnreachable
from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.slurm import Slurm, sacct, squeue
from slurmgpu.slurm.text import SEPARATOR
from tests.recorded import RELEASES, Replay, recorded, said

# Exit code and signal of a job whose log's folder is missing; later releases make it, and the job runs.
WITHOUT_A_LOG = {"20.11": (1, 0), "22.05": (0, 53)}
NOISE = st.lists(st.sampled_from([SEPARATOR, *"\n0123_[]+.|ab%:=-,é"]), max_size=300).map("".join)


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    """Every release of which there are recordings."""
    found: str = request.param
    return found


def queue(release: str, name: str = "squeue") -> dict[str, JobStatus]:
    jobs, notes = squeue.parse_queue(recorded(name, release).stdout)
    assert notes == []
    return {job.job_id: job for job in jobs}


def accounted(release: str, name: str = "sacct") -> dict[str, JobStatus]:
    return {job.job_id: job for job in sacct.parse_accounting(recorded(name, release).stdout).jobs}


def row(fields: tuple[str, ...], defaults: dict[str, str], **values: str) -> str:
    """A row constructed for this test, not recorded."""
    known = defaults | {name.replace("_", "-") if "tres" in name else name: v for name, v in values.items()}
    return "".join(known.get(name, "") + SEPARATOR for name in fields) + "\n"


QUEUED = {"JobArrayID": "7", "JobID": "7", "State": "RUNNING", "NumNodes": "2", "Name": "x"}


def test_the_recordings_were_made_with_the_command_that_is_sent_today(release: str) -> None:
    assert recorded("squeue", release).argv == tuple(squeue.queue_command("root"))
    assert recorded("sacct_none", release).argv == tuple(sacct.accounting_command(ids=[99999]))


def test_every_job_of_the_recorded_queue_is_read(release: str) -> None:
    ids = {
        *["1", "2", "3", "4_0", "4_1", "4_[2-5%2]", "5+0", "5+1", "7", "8", "9", "10", "11", "14", "15", "16"]
    }
    assert set(queue(release)) == ids


def test_a_running_job_is_read_whole(release: str) -> None:
    job = queue(release)["3"]
    assert job.model_dump(exclude_defaults=True) == {
        "job_id": "3", "raw_id": 3, "cluster": "throwaway", "name": "ünï \"q\" 'x'", "user": "root", "source": "squeue",
        "state": JobState.RUNNING, "state_text": "RUNNING", "restarts": 0,
        "partition": "gpu", "account": "mygroup", "qos": "normal",
        "gpus": 2, "nodes": 2, "cpus": 2, "node_list": "node[2-3]",
        "elapsed": job.elapsed, "limit": 3600, "time_left": 3600 - (job.elapsed or 0),
        "submit": job.submit, "start": job.start,
        "stdout": "/scratch/ada/slurm-3.out", "stderr": "/scratch/ada/slurm-3.out",
        "work_dir": "/scratch/ada", "script": "/scratch/ada/script.sh",
    }  # fmt: skip
    assert job.submit.tzinfo is timezone.utc


def test_names_with_a_bar_or_a_newline_are_kept(release: str) -> None:
    assert queue(release)["1"].name == "a|b"
    assert queue(release)["2"].name == "two\nlines"


def test_gpus_are_counted_however_they_were_asked_for(release: str) -> None:
    jobs = queue(release)
    assert {number: jobs[number].gpus for number in ("1", "2", "3", "15", "5+1", "7")} == {
        "1": 2,
        "2": 2,
        "3": 2,
        "15": 16,
        "5+1": 1,
        "7": 0,
    }


def test_a_waiting_job_has_an_estimate_and_no_start(release: str) -> None:
    job = queue(release)["15"]
    assert (job.state, job.reason, job.start, job.elapsed) == (JobState.PENDING, "Resources", None, None)
    assert job.expected_start is not None


def test_the_waiting_tasks_of_an_array_stay_together(release: str) -> None:
    job = queue(release)["4_[2-5%2]"]
    assert (job.raw_id, job.array_job_id, job.array_tasks, job.stdout) == (4, 4, "[2-5%2]", None)


def test_the_log_of_an_array_task_is_named(release: str) -> None:
    assert queue(release)["4_1"].stdout == "/scratch/ada/x_4_1.out"
    assert queue(release)["1"].stdout == "/scratch/ada/logs_1_a|b_00001_4294967294.out"


@pytest.mark.parametrize(
    ("shown", "log"),
    [
        ("4_1", "/scratch/slurm-4_1.out"),
        ("4_[2-5%2]", None),
        ("4+1", "/scratch/slurm-4.out"),
        ("6", "/scratch/slurm-6.out"),
    ],
)
def test_a_log_that_the_user_did_not_name_is_found_by_slurmds_name(shown: str, log: str | None) -> None:
    default = "/scratch/slurm-6.out"
    text = row(
        squeue.FIELDS,
        QUEUED | {"JobArrayID": shown, "JobID": "6"},
        WorkDir="/scratch",
        StdOut=default,
        StdErr=default,
    )
    (job,), _ = squeue.parse_queue(text)
    assert (job.stdout, job.stderr) == (log, log)


def test_exit_codes_come_out_of_the_wait_status(release: str) -> None:
    jobs = queue(release, "squeue_afterwards")
    assert (jobs["7"].exit_code, jobs["7"].signal) == (3, 0)
    assert (jobs["8"].exit_code, jobs["8"].signal) == WITHOUT_A_LOG.get(release, (None, None))
    assert (jobs["11"].exit_code, jobs["11"].signal) == (0, 9)
    assert jobs["1"].exit_code is None


@pytest.mark.parametrize("spelling", ["gpu:4", "gres:gpu:4", "gres/gpu:4", "gres/gpu=4"])
def test_gpus_are_found_in_a_request_of_another_release(spelling: str) -> None:
    text = row(squeue.FIELDS, QUEUED, tres_alloc="cpu=2", tres_per_node=spelling)
    assert squeue.parse_queue(text)[0][0].gpus == 8


def test_times_in_local_form_are_read_too() -> None:
    text = row(squeue.FIELDS, QUEUED, SubmitTime="2025-01-02T03:04:05")
    assert squeue.parse_queue(text)[0][0].submit == datetime(2025, 1, 2, 3, 4, 5).astimezone(timezone.utc)


def test_a_log_named_relative_to_the_work_folder_is_found_there() -> None:
    text = row(squeue.FIELDS, QUEUED, StdOut="slurm-%j.out", WorkDir="/project")
    assert squeue.parse_queue(text)[0][0].stdout == "/project/slurm-7.out"
    assert squeue.parse_queue(row(squeue.FIELDS, QUEUED, StdOut="slurm-%j.out"))[0][0].stdout is None


def test_errors_go_where_the_output_goes_unless_the_job_says_otherwise() -> None:
    one = squeue.parse_queue(row(squeue.FIELDS, QUEUED, StdOut="/a", StdErr="(null)"))[0][0]
    two = squeue.parse_queue(row(squeue.FIELDS, QUEUED, StdOut="/a", StdErr="/b"))[0][0]
    assert (one.stderr, two.stderr) == ("/a", "/b")


def test_an_unlimited_job_says_so() -> None:
    assert squeue.parse_queue(row(squeue.FIELDS, QUEUED, TimeLimit="UNLIMITED"))[0][0].limit == "UNLIMITED"


def test_a_row_that_cannot_be_read_becomes_a_note() -> None:
    jobs, notes = squeue.parse_queue(f"7{SEPARATOR}7{SEPARATOR}cut off\n" + row(squeue.FIELDS, QUEUED))
    assert len(jobs) == len(notes) == 1


def test_a_controller_that_does_not_answer_is_unreachable(release: str) -> None:
    with pytest.raises(SlurmUnreachable, match="Unable to contact slurm controller"):
        squeue.read_queue(Slurm(run=Replay(squeue=recorded("squeue_no_controller", release))), "ada")


def test_a_machine_without_a_cluster_is_told_so() -> None:
    # As 22.05 says it where its package is installed and nothing else.
    text = "squeue: fatal: Could not establish a configuration source"
    with pytest.raises(SlurmUnreachable, match="find no cluster") as caught:
        squeue.read_queue(Slurm(run=Replay(squeue=said(stderr=text, rc=1))), "ada")
    assert caught.value.hint is not None
    assert "SLURM_CONF" in caught.value.hint


def test_a_squeue_that_is_never_done_is_unreachable() -> None:
    with pytest.raises(SlurmUnreachable, match="no answer in 60 s"):
        squeue.read_queue(Slurm(run=Replay(squeue=said(stderr="squeue: no answer in 60 s", rc=None))), "ada")


def test_squeues_refusal_comes_through_in_its_own_words(release: str) -> None:
    with pytest.raises(SlurmRefused, match="Invalid job format specification: Nosuch"):
        squeue.read_queue(Slurm(run=Replay(squeue=recorded("squeue_unknown_field", release))), "ada")


def test_every_job_of_the_recorded_accounting_is_read(release: str) -> None:
    assert set(accounted(release)) == {
        *["1", "2", "3", "4_0", "4_1", "5+0", "5+1", "7", "8", "9", "10", "11", "14", "15"]
    }


def test_a_failed_job_keeps_its_code_and_times(release: str) -> None:
    job = accounted(release)["7"]
    assert (job.state, job.exit_code, job.signal, job.limit) == (JobState.FAILED, 3, 0, 3600)
    assert job.elapsed in (0, 1)
    assert job.end is not None
    assert accounted(release)["8"].signal == WITHOUT_A_LOG.get(release, (None, None))[1]


def test_a_job_that_runs_has_no_exit_code_yet(release: str) -> None:
    assert accounted(release)["1"].exit_code is None


def test_accounting_counts_gpus_of_the_request_while_a_job_waits(release: str) -> None:
    jobs = accounted(release)
    assert (jobs["1"].gpus, jobs["15"].gpus, jobs["7"].gpus) == (2, 16, 0)


def test_cancelled_by_someone_is_cancelled(release: str) -> None:
    job = accounted(release, "sacct_afterwards")["10"]
    assert (job.state, job.state_text) == (JobState.CANCELLED, "CANCELLED by 0")


def test_steps_are_told_from_jobs(release: str) -> None:
    found = sacct.parse_accounting(recorded("sacct_steps", release).stdout)
    assert [job.job_id for job in found.jobs] == ["9", "4_0", "4_1", "4_[2-5%2]"]
    assert [(s.job_id, s.step, s.tasks) for s in found.steps] == [
        ("9", "batch", 1),
        ("9", "0", 2),
        ("4_0", "batch", 1),
        ("4_1", "batch", 1),
    ]


@pytest.mark.parametrize("release", [release for release in RELEASES if release != "20.11"])
def test_the_submit_line_is_read_though_it_holds_a_newline(release: str) -> None:
    found = sacct.parse_accounting(recorded("sacct_submit_line", release).stdout, submit_line=True)
    assert found.notes == []
    assert [job.submit_line and job.submit_line.split()[-1] for job in found.jobs] == [
        "/scratch/ada/script.sh"
    ] * 3


def test_a_release_without_submit_lines_does_not_know_which_job_had_which() -> None:
    replay = Replay(sacct=recorded("sacct_submit_line", "20.11"))
    found = sacct.read_accounting(Slurm(run=replay), ids=[1, 2, 3], submit_line=True)
    assert not found.available
    assert 'Invalid field requested: "SubmitLine"' in found.notes[0]


def test_an_empty_answer_of_accounting_is_an_answer(release: str) -> None:
    found = sacct.read_accounting(Slurm(run=Replay(sacct=recorded("sacct_none", release))), ids=[99999])
    assert found == sacct.Accounting()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sacct_no_accounting", "accounting is not available on this cluster (no slurmdbd)"),
        ("sacct_no_slurmdbd", "Problem talking to the database"),
        ("sacct_unknown_field", "Invalid field requested"),
    ],
)
def test_missing_accounting_is_a_note_and_no_error(name: str, words: str, release: str) -> None:
    found = sacct.read_accounting(Slurm(run=Replay(sacct=recorded(name, release))), ids=[1])
    assert not found.available
    assert words in found.notes[0]


def test_a_state_that_accounting_leaves_blank_is_unknown() -> None:
    text = row(sacct.FIELDS, {"JobID": "7", "JobIDRaw": "7"}, State="")
    assert sacct.parse_accounting(text).jobs[0].state is JobState.UNKNOWN


def test_live_use_is_read_per_step(release: str) -> None:
    found = squeue.parse_live_use(recorded("sstat", release).stdout)
    assert [(s.job_id, s.step, s.tasks) for s in found] == [(1, "batch", 1), (9, "batch", 1), (9, "0", 2)]
    assert found[2].average_cpu in range(1, 10)
    assert 3_000_000 < (found[2].max_rss or 0) < 4_000_000


def test_a_job_that_just_ended_spoils_no_live_use(release: str) -> None:
    assert squeue.read_live_use(Slurm(run=Replay(sstat=recorded("sstat_ended", release))), [7]) == ([], [])


def test_without_running_jobs_no_node_is_asked() -> None:
    slurm = Slurm(run=Replay())
    assert squeue.read_live_use(slurm, []) == ([], [])
    assert slurm.asked == []


@given(NOISE)
def test_no_text_breaks_a_parser(text: str) -> None:
    squeue.parse_queue(text)
    sacct.parse_accounting(text)
    sacct.parse_accounting(text, submit_line=True)
    squeue.parse_live_use(text)


@given(st.dictionaries(st.sampled_from(squeue.FIELDS[2:]), st.text(st.characters(exclude_characters="\x1f"))))
def test_no_field_of_the_queue_breaks_its_row(fields: dict[str, str]) -> None:
    values = QUEUED | fields
    jobs, _ = squeue.parse_queue("".join(values.get(name, "") + SEPARATOR for name in squeue.FIELDS) + "\n")
    assert [job.raw_id for job in jobs] == [7]


@given(st.dictionaries(st.sampled_from(sacct.FIELDS[2:]), st.text(st.characters(exclude_characters="\x1f"))))
def test_no_field_of_accounting_breaks_its_row(fields: dict[str, str]) -> None:
    values = {"JobID": "7_1", "JobIDRaw": "9"} | fields
    found = sacct.parse_accounting("".join(values.get(name, "") + SEPARATOR for name in sacct.FIELDS) + "\n")
    assert [job.raw_id for job in found.jobs] == [9]
