"""A wait ends with the job, never with a read that failed; the queues are recorded, or made from recordings."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import slurmgpu.cli.status
from slurmgpu.cli.logs import command as logs_command
from slurmgpu.cli.status import command
from slurmgpu.errors import SlurmRefused, SlurmUnreachable
from slurmgpu.jobs.select import select
from slurmgpu.jobs.wait import SILENT, Ended, exit_code, wait_for
from slurmgpu.slurm import Slurm
from slurmgpu.slurm.commands import Answer, call
from tests.recorded import Replay, recorded, said
from tests.test_jobs_cancel import SEEN, queue

# What a real squeue has said where its reply, or its request, was lost, or nobody was there to answer.
NO_ANSWERS = [
    "slurm_load_jobs error: Socket timed out on send/recv operation",
    "slurm_load_jobs error: Zero Bytes were transmitted or received",
    "squeue: error: slurm_receive_msg [10.1.0.1:6817]: Connection reset by peer\nslurm_load_jobs error: Connection reset",
    "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
    "slurm_load_jobs error: Slurm backup controller in standby mode",
    "slurm_load_jobs error: Rate limit exceeded. Please retry your request later.",
    "slurm_load_jobs error: Unexpected message received",
    "slurm_load_jobs error: Something that nobody has heard of",
]


class Clock:
    """Time passes only where somebody pauses."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def wait(*queues: Answer, accounting: Answer | None = None) -> tuple[Ended, list[str], float]:
    """How a wait for job 1 ended, what was said meanwhile, and how long it took."""
    replay = Replay(
        squeue=list(queues), sacct=accounting or said(stderr="sacct: error: Connection refused", rc=1)
    )
    clock, heard = Clock(), list[str]()
    ended = wait_for(
        Slurm(run=replay, env={"SLURM_CONF": "/nowhere"}),
        select(["1"]),
        user="root",
        say=heard.append,
        pause=clock.pause,
        clock=clock,
    )
    return ended, heard, clock.now


@pytest.mark.parametrize("text", NO_ANSWERS)
@pytest.mark.parametrize("rc", [1, 0])
def test_a_read_that_fails_ends_no_wait(text: str, rc: int) -> None:
    silent = said(stderr=text, rc=rc)
    ended, heard, _ = wait(SEEN, silent, SEEN, silent, queue(("1", "COMPLETED")))
    assert exit_code(ended) == 0
    assert heard == ["RUNNING", SILENT] * 2 + ["COMPLETED"]


def test_a_controller_may_be_away_for_hours() -> None:
    silent = [said(stderr=NO_ANSWERS[0], rc=1)] * 300
    ended, heard, seconds = wait(*silent, queue(("1", "COMPLETED")))
    assert exit_code(ended) == 0
    assert heard == [SILENT, "COMPLETED"]
    assert seconds > 2 * 3600


def test_a_squeue_that_is_ended_by_its_time_limit_ends_no_wait() -> None:
    ended, _, _ = wait(SEEN, said(stderr="squeue: no answer in 60 s", rc=None), queue(("1", "COMPLETED")))
    assert exit_code(ended) == 0


def test_where_only_accounting_answers_and_does_not_know_the_job_the_wait_goes_on() -> None:
    nothing = said()
    silent = [said(stderr=NO_ANSWERS[0], rc=1)] * 20
    ended, heard, seconds = wait(SEEN, *silent, queue(("1", "COMPLETED")), accounting=nothing)
    assert (exit_code(ended), heard[-1]) == (0, "COMPLETED")
    assert seconds > 400


def test_a_job_that_slurm_was_asked_for_and_does_not_know_ends_the_wait_with_3() -> None:
    ended, _, _ = wait(SEEN, said(), accounting=said())
    assert exit_code(ended) == 3


def test_a_named_refusal_is_final() -> None:
    refused = said(stderr="squeue: error: Invalid user: nobody-here", rc=1)
    with pytest.raises(SlurmRefused, match="Invalid user"):
        wait(SEEN, refused)


@pytest.mark.parametrize(
    "text",
    [
        "squeue: error while loading shared libraries: libslurm.so: cannot open: No such file or directory",
        "slurm_load_jobs error: Unspecified error",
    ],
)
def test_what_sounds_like_a_refusal_and_names_nothing_ends_no_wait_that_had_an_answer(text: str) -> None:
    ended, _, _ = wait(SEEN, said(stderr=text, rc=1), queue(("1", "COMPLETED")))
    assert exit_code(ended) == 0


def test_a_watch_goes_on_when_slurm_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = said(stderr=NO_ANSWERS[0], rc=1)
    refused = said(stderr="sacct: error: Connection refused", rc=1)
    queues = [silent, SEEN, silent, queue(("1", "COMPLETED"))]
    slurm = Slurm(run=Replay(squeue=queues, sacct=refused), env={"SLURM_CONF": "/nowhere"})
    monkeypatch.setattr(slurmgpu.cli.status, "WATCH_SECONDS", 0.0)
    monkeypatch.setattr("slurmgpu.jobs.select.current_user", lambda: "root")
    done = CliRunner().invoke(command, ["--watch", "1"], obj=slurm)
    assert done.exit_code == 0, done.output
    assert done.stderr.count("asking again in") == 2
    assert "COMPLETED" in done.stdout.splitlines()[-1]


def test_status_ends_with_3_where_the_queue_could_not_be_asked_and_with_1_where_it_was() -> None:
    down = recorded("squeue_no_controller")
    for queued, code in ((down, 3), (SEEN, 1)):
        slurm = Slurm(run=Replay(squeue=queued, sacct=said()), env={"SLURM_CONF": "/nowhere"})
        done = CliRunner().invoke(command, ["777"], obj=slurm)
        assert done.exit_code == code, done.output
        assert ("it may be there" in done.stderr) == (code == 3)
        assert ("neither the queue nor accounting knows it" in done.stderr) == (code == 1)


def test_following_logs_begins_when_slurm_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("slurmgpu.jobs.select.current_user", lambda: "root")
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    silent = said(stderr=NO_ANSWERS[0], rc=1)
    refused = said(stderr="sacct: error: Connection refused", rc=1)
    slurm = Slurm(run=Replay(squeue=[silent, queue(("1", "COMPLETED"))], sacct=refused), env={})
    done = CliRunner().invoke(logs_command, ["--follow", "1"], obj=slurm)
    assert not isinstance(done.exception, SlurmUnreachable)
    assert "asking again in 30 s" in done.stderr
    assert slept[0] == 30.0


def test_where_only_accounting_knows_the_job_the_queue_is_asked_again_seldom() -> None:
    running = recorded("sacct")
    silent = [said(stderr=NO_ANSWERS[0], rc=1)] * 20
    ended, heard, seconds = wait(SEEN, *silent, queue(("1", "COMPLETED")), accounting=running)
    assert (exit_code(ended), heard[-1]) == (0, "COMPLETED")
    assert heard[:2] == ["RUNNING", SILENT]
    assert seconds > 400


def test_a_wait_ends_with_why_the_job_failed() -> None:
    heard = list[str]()
    replay = Replay(squeue=recorded("squeue"), sacct=recorded("sacct"))
    slurm = Slurm(run=replay, env={"SLURM_CONF": "/nowhere"})
    ended = wait_for(slurm, select(["7"]), user="root", say=heard.append, pause=lambda _: None)
    assert (exit_code(ended), heard) == (3, ["FAILED: the command failed (exit code 3)"])


def test_who_asks_again_and_again_is_told_once_what_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "squeue"
    program.write_text("#!/bin/sh\nsleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr("slurmgpu.slurm.commands.PATIENCE", 0.05)
    monkeypatch.setattr("slurmgpu.slurm.commands._WAITED_FOR", set())
    for _ in range(3):
        assert call(["squeue"], timeout=0.1, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}).rc is None
    assert capfd.readouterr().err.count("waiting for squeue to answer") == 1
