"""cancel: what is asked of scancel, what is said of the outcome; queues recorded, or made from recordings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import CliRunner

from slurmgpu.cli.cancel import command
from slurmgpu.errors import InvalidInput, OutcomeUnknown, SlurmRefused, SlurmUnreachable
from slurmgpu.jobs.cancel import Cancellation, cancel
from slurmgpu.jobs.select import select
from slurmgpu.slurm import Slurm
from slurmgpu.slurm.commands import Answer
from slurmgpu.slurm.text import SEPARATOR
from tests.recorded import Replay, recorded, said

SEEN = recorded("squeue")


def queue(*changes: tuple[str, str]) -> Answer:
    """The recorded queue after some jobs changed state (constructed)."""
    text = SEEN.stdout
    for job_id, state in changes:
        lines = [line for line in text.split("\n") if line.startswith(f"{job_id}{SEPARATOR}")]
        old = lines[0].split(SEPARATOR)
        text = text.replace(lines[0], SEPARATOR.join([*old[:7], state, *old[8:]]))
    return said(text)


def slurm_with(*queues: Answer, scancel: Answer | None = None, sacct: Answer | None = None) -> Slurm:
    replay = Replay(squeue=list(queues), scancel=scancel or said(), sacct=sacct or recorded("sacct"))
    return Slurm(run=replay, env={"SLURM_CONF": "/nowhere"})


def end(slurm: Slurm, *words: str, **options: Any) -> list[Cancellation]:
    return cancel(slurm, select(words), user="root", pause=lambda _: None, **options)


def scancelled(slurm: Slurm) -> list[Sequence[str]]:
    return [argv[1:] for argv in slurm.asked if argv[0] == "scancel"]


def test_a_running_job_is_cancelled_and_seen_to_end() -> None:
    slurm = slurm_with(SEEN, queue(("1", "COMPLETING")), queue(("1", "CANCELLED")))
    results = end(slurm, "1")
    assert [r.outcome for r in results] == ["cancelled"]
    assert results[0].message == "job 1 is cancelled (was RUNNING, is CANCELLED)"
    assert scancelled(slurm) == [("1",)]
    assert slurm.count("squeue") == 3


def test_a_job_that_does_not_end_in_time_is_ending() -> None:
    slurm = slurm_with(SEEN, queue(("1", "COMPLETING")))
    assert [r.outcome for r in end(slurm, "1", wait=3)] == ["ending"]
    assert slurm.count("squeue") == 4


def test_scancels_exit_status_decides_nothing() -> None:
    slurm = slurm_with(SEEN, queue(("1", "CANCELLED")), scancel=said("", "", rc=140))
    assert [r.outcome for r in end(slurm, "1")] == ["cancelled"]


def test_a_job_that_is_not_ours_to_cancel_is_refused_in_slurms_words() -> None:
    text = "scancel: error: Kill job error on job id 1: Access/permission denied"
    results = end(slurm_with(SEEN, SEEN, scancel=said("", text, rc=1)), "1", wait=1)
    assert [r.outcome for r in results] == ["refused"]
    assert text in results[0].message


def test_a_job_that_goes_on_without_a_word_is_unknown() -> None:
    assert [r.outcome for r in end(slurm_with(SEEN), "1", wait=2)] == ["unknown"]


def test_a_finished_job_is_left_alone() -> None:
    slurm = slurm_with(SEEN)
    results = end(slurm, "7")
    assert [(r.outcome, r.message) for r in results] == [("finished", "job 7 has already finished: FAILED")]
    assert scancelled(slurm) == []


def test_a_job_that_completes_at_that_moment_is_not_said_to_be_cancelled() -> None:
    results = end(slurm_with(SEEN, queue(("1", "COMPLETED"))), "1")
    assert [(r.outcome, r.message) for r in results] == [
        ("finished", "job 1 completed before it could be cancelled (was RUNNING)")
    ]


def test_a_job_that_nobody_knows_is_missing() -> None:
    slurm = slurm_with(SEEN)
    results = end(slurm, "99999", "nosuch")
    assert [(r.outcome, r.message) for r in results] == [
        ("missing", "there is no job 99999"),
        ("missing", "there is no job named nosuch"),
    ]
    assert scancelled(slurm) == []


@pytest.mark.parametrize(
    ("word", "target"),
    [("4", "4"), ("4_3", "4_3"), ("4_[2-5%2]", "4_[2-5]"), ("arr", "4"), ("het", "5"), ("5+1", "5+1")],
)
def test_arrays_and_their_tasks_are_cancelled_as_named(word: str, target: str) -> None:
    slurm = slurm_with(SEEN, said())
    assert [r.outcome for r in end(slurm, word)] == ["cancelled"]
    assert scancelled(slurm) == [(target,)]


def test_a_waiting_task_is_gone_when_its_array_no_longer_holds_it() -> None:
    slurm = slurm_with(SEEN, said(SEEN.stdout.replace("4_[2-5%2]", "4_[2,4-5%2]")))
    assert [(r.job, r.outcome) for r in end(slurm, "4_3")] == [("4_3", "cancelled")]


def test_several_jobs_are_one_scancel() -> None:
    slurm = slurm_with(SEEN, said())
    assert [r.outcome for r in end(slurm, "1", "2", "1")] == ["cancelled", "cancelled"]
    assert scancelled(slurm) == [("1", "2")]


def test_a_signal_is_sent_and_nothing_is_waited_for() -> None:
    slurm = slurm_with(SEEN)
    results = end(slurm, "1", signal="usr1")
    assert [(r.outcome, r.message) for r in results] == [("signalled", "job 1: USR1 was sent to its steps")]
    assert scancelled(slurm) == [("--signal=USR1", "1")]
    assert slurm.count("squeue") == 1


def test_a_wrong_signal_is_refused_before_anything_is_asked() -> None:
    slurm = slurm_with(SEEN)
    with pytest.raises(InvalidInput, match="is not a signal"):
        end(slurm, "1", signal="--full")
    assert slurm.asked == []


def test_a_controller_that_is_down_cancels_nothing() -> None:
    slurm = slurm_with(recorded("squeue_no_controller"), sacct=recorded("sacct_no_slurmdbd"))
    with pytest.raises(SlurmUnreachable):
        end(slurm, "1")
    assert scancelled(slurm) == []


@pytest.fixture(autouse=True)
def _as_in_the_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmgpu.jobs.select.current_user", lambda: "root")


def test_a_job_is_not_called_missing_where_only_accounting_was_asked() -> None:
    """Accounting does not know a job that has just been submitted."""
    down = recorded("squeue_no_controller")
    for word in ("777", "no-such-name"):
        slurm = slurm_with(down)
        with pytest.raises(SlurmUnreachable, match="nothing was cancelled"):
            end(slurm, word)
        assert scancelled(slurm) == []


def test_accountings_word_alone_that_a_job_has_ended_is_no_answer() -> None:
    """A controller that lost its last seconds gives out the same ids again; a requeued job has ended before."""
    slurm = slurm_with(recorded("squeue_no_controller"))
    with pytest.raises(SlurmUnreachable, match="nothing was cancelled"):
        end(slurm, "7")
    assert scancelled(slurm) == []


def test_a_queue_that_falls_silent_after_scancel_leaves_the_outcome_unknown() -> None:
    down = recorded("squeue_no_controller")
    (result,) = end(slurm_with(SEEN, down), "1", wait=3)
    assert result.outcome == "unknown"
    assert "the queue does not answer since" in result.message
    assert [r.outcome for r in end(slurm_with(SEEN, down, queue(("1", "CANCELLED"))), "1")] == ["cancelled"]


def test_after_a_lost_reply_of_scancel_the_queue_tells() -> None:
    lost = said(
        stderr="scancel: error: Kill job error on job id 1: Socket timed out on send/recv operation", rc=1
    )
    slurm = slurm_with(SEEN, queue(("1", "CANCELLED")), scancel=lost)
    assert [r.outcome for r in end(slurm, "1")] == ["cancelled"]


def test_the_command_says_what_it_did() -> None:
    result = CliRunner().invoke(command, ["1", "7"], obj=slurm_with(SEEN, said()), catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout == "job 7 has already finished: FAILED\njob 1 is cancelled (was RUNNING)\n"


def test_the_command_fails_for_a_job_that_does_not_exist_after_doing_the_rest() -> None:
    result = CliRunner().invoke(command, ["1", "99999"], obj=slurm_with(SEEN, said()))
    assert "job 1 is cancelled" in result.stdout
    assert isinstance(result.exception, SlurmRefused)
    assert "99999" in result.exception.message


def test_the_command_does_not_call_an_unknown_outcome_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmgpu.jobs.cancel.POLL", 1000.0)  # one look at the queue, no waiting
    result = CliRunner().invoke(command, ["1"], obj=slurm_with(SEEN))
    assert isinstance(result.exception, OutcomeUnknown)
    assert result.exception.exit_code == 3
