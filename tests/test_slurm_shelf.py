"""Answers that a user's processes share: one asks, the others take what it was told, and nothing old passes for new."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slurmgpu.errors import SlurmUnreachable
from slurmgpu.jobs.look import last_known, status
from slurmgpu.jobs.select import select
from slurmgpu.jobs.wait import exit_code, wait_for
from slurmgpu.models.run import JobState
from slurmgpu.slurm import Shelf, Slurm
from slurmgpu.slurm import shelf as shelf_module
from slurmgpu.slurm.shelf import changes, note_change, own_folder, shelf_here
from slurmgpu.slurm.text import Answer
from tests.recorded import Replay, recorded, said
from tests.test_jobs_cancel import SEEN, queue

USER = "root"
AWAY = recorded("squeue_no_controller")
ENV = {"SLURM_CONF": "/nowhere"}


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.wall = 1000.0, time.time()
        monkeypatch.setattr(shelf_module, "_now", lambda: self.now)
        monkeypatch.setattr(shelf_module.time, "time", lambda: self.wall)

    def pass_(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def process(*, floor: float = 2.0, squeue: Answer | None = None, sacct: Answer | None = None) -> Slurm:
    """One of the user's processes: what it asks is counted."""
    replay = Replay(squeue=squeue or recorded("squeue"), sacct=sacct or recorded("sacct"))
    return Slurm(run=replay, env=ENV, shelf=shelf_here(floor))


def look(slurm: Slurm, *words: str) -> list[JobState]:
    return [job.state for job in status(slurm, user=USER, selections=select(words)).jobs]


def test_who_comes_within_the_floor_takes_the_answer_and_knows_its_age(clock: Clock) -> None:
    first, second, third = process(), process(), process()
    told = status(first, user=USER)
    clock.pass_(1.5)
    again = status(second, user=USER)
    assert (len(first.asked), second.asked) == (2, [])
    assert again.jobs == told.jobs
    assert (told.age, again.age) == (0.0, 1.5)
    clock.pass_(1)
    assert status(third, user=USER).age == 0
    assert len(third.asked) == 2


def test_ten_that_come_at_once_cost_what_one_does() -> None:
    asked: list[Sequence[str]] = []
    begun = threading.Barrier(10, timeout=60)

    def slow(argv: Sequence[str]) -> Answer:
        asked.append(argv)
        time.sleep(0.2)
        return recorded(argv[0])

    def watcher(_: int) -> int:
        slurm = Slurm(run=Replay(squeue=slow, sacct=slow), env=ENV, shelf=shelf_here(60))
        begun.wait()
        return len(status(slurm, user=USER).jobs)

    with ThreadPoolExecutor(10) as pool:
        assert set(pool.map(watcher, range(10))) == {16}
    assert sorted(argv[0] for argv in asked) == ["sacct", "squeue"]


def test_an_answer_from_before_ones_own_submission_or_cancellation_is_old(clock: Clock) -> None:
    status(process(), user=USER)
    clock.pass_(0.5)
    note_change()
    clock.pass_(0.5)
    after = process()
    assert status(after, user=USER).age == 0
    assert len(after.asked) == 2


def test_a_wait_does_not_take_its_own_last_answer_again(clock: Clock) -> None:
    replay = Replay(squeue=[SEEN, SEEN, SEEN, queue(("1", "COMPLETED"))], sacct=said(""))
    slurm = Slurm(run=replay, env=ENV, shelf=shelf_here())
    begun = clock.now
    ended = wait_for(slurm, select(["1"]), user="root", pause=clock.pass_, clock=lambda: clock.now)
    assert exit_code(ended) == 0
    assert clock.now - begun < 10


def test_what_changes_nothing_makes_no_answer_old() -> None:
    for words in (
        "scontrol show node",
        "scontrol -o show job 7",
        "scontrol ping",
        "sbatch --test-only x",
        "squeue --me",
    ):
        assert not changes(words.split()), words
    for words in ("sbatch x", "scancel 7", "scontrol requeue 7", "scontrol update JobId=7"):
        assert changes(words.split()), words


def test_what_scontrol_shows_is_shared_and_makes_no_answer_old_but_what_it_changes_does(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Replay(squeue=recorded("squeue"), sacct=recorded("sacct"), scontrol=said("ClusterName = alpha"))
    monkeypatch.setattr("slurmgpu.slurm.commands.call", run)
    first, second, third = (Slurm(run=run, env=os.environ | ENV, shelf=shelf_here()) for _ in range(3))
    status(first, user=USER)
    first.ask(("scontrol", "show", "config"))
    status(second, user=USER)
    second.ask(("scontrol", "show", "config"))
    assert second.asked == []
    clock.pass_(0.1)
    second.control("hold", ["1"])
    clock.pass_(0.1)
    status(third, user=USER)
    assert len(third.asked) == 2


def test_a_job_that_is_not_there_is_not_there_now(clock: Clock) -> None:
    """It may have come a moment ago, by sbatch itself."""
    status(process(squeue=said(), sacct=said()), user=USER)
    clock.pass_(0.5)
    assert look(process(), "1") == [JobState.RUNNING]


def test_other_users_clusters_and_releases_are_asked_apart(tmp_path: Path) -> None:
    status(process(), user=USER)
    other = process()
    status(other, user="ada")
    assert len(other.asked) == 2
    elsewhere = process()
    elsewhere.env = {"SLURM_CONF": str(tmp_path)}
    status(elsewhere, user=USER)
    assert len(elsewhere.asked) == 2


def test_what_failed_is_told_to_those_who_waited_for_it_and_hides_no_answer(clock: Clock) -> None:
    status(process(), user=USER)
    clock.pass_(60)
    with pytest.raises(SlurmUnreachable):
        status(process(squeue=AWAY, sacct=recorded("sacct_no_slurmdbd")), user=USER)
    clock.pass_(1)
    late = process(squeue=AWAY, sacct=recorded("sacct_no_slurmdbd"))
    with pytest.raises(SlurmUnreachable):
        status(late, user=USER)
    assert late.asked == []
    known = last_known(late, user=USER)
    assert (len(known.jobs), known.age) == (16, 61)
    clock.pass_(2)  # it is back: the next look is right
    assert len(status(process(), user=USER).jobs) == 16


def test_the_last_known_state_is_asked_of_nobody_and_is_none_where_there_was_none() -> None:
    slurm = process()
    assert last_known(slurm, user=USER) is None
    assert last_known(Slurm(run=slurm.run, env=ENV), user=USER) is None
    assert slurm.asked == []


def test_the_clock_on_the_wall_may_be_set_back_or_forth(clock: Clock) -> None:
    status(process(), user=USER)
    for moved in (-86400.0, 30 * 86400.0):
        clock.wall += moved
        clock.now += 0.5
        taking = process()
        assert status(taking, user=USER).age == pytest.approx(clock.now - 1000.0)
        assert taking.count("squeue") == 0  # accounting is asked about another day


def test_an_answer_from_before_a_reboot_is_never_new(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    status(process(), user=USER)
    monkeypatch.setattr(shelf_module, "_boot", lambda: "another")
    clock.pass_(1)
    after = process()
    known = last_known(after, user=USER)
    assert known.age == pytest.approx(1)
    status(after, user=USER)
    assert len(after.asked) == 2


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "binary", "link", "folder", "foreign schema"])
def test_a_file_that_is_not_whole_is_as_if_it_were_not_there(damage: str, tmp_path: Path) -> None:
    status(process(), user=USER)
    folder = own_folder(os.environ)
    assert folder is not None
    for path in folder.glob("*.answer"):
        content = path.read_bytes()
        path.unlink()
        if damage == "link":
            (tmp_path / path.name).write_bytes(content)
            path.symlink_to(tmp_path / path.name)
        elif damage == "folder":
            path.mkdir()
        else:
            path.write_bytes(
                {
                    "cut": content[:-10],
                    "bit": content[:-10] + bytes([content[-10] ^ 1]) + content[-9:],
                    "empty": b"",
                    "binary": os.urandom(4096),
                    "foreign schema": content.replace(b"answer/1", b"answer/2", 1),
                }[damage]
            )
    slurm = process()
    assert last_known(slurm, user=USER) is None
    assert len(status(slurm, user=USER).jobs) == 16
    assert len(slurm.asked) == 2


def test_a_folder_that_others_may_enter_or_have_laid_there_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, temporary, cache = (tmp_path / name for name in ("session", "temporary", "cache"))
    for folder in (session, temporary, cache):
        folder.mkdir()
    env = {"XDG_RUNTIME_DIR": str(session), "TMPDIR": str(temporary), "XDG_CACHE_HOME": str(cache)}
    name = f"slurmgpu-{os.geteuid()}"
    assert own_folder(env) == session / "slurmgpu"
    assert (session / "slurmgpu").stat().st_mode & 0o777 == 0o700
    (session / "slurmgpu").chmod(0o755)
    (temporary / name).symlink_to(session)
    found = own_folder(env)
    assert found.parent == cache / "slurmgpu"
    assert os.uname().nodename.startswith(found.name.removeprefix("answers-"))  # home may be many machines'
    (temporary / name).unlink()
    assert own_folder(env) == temporary / name
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert own_folder({**env, "TMPDIR": "/nowhere", "XDG_CACHE_HOME": "/proc/nowhere"}) is None


def test_without_a_folder_everybody_asks() -> None:
    slurm = Slurm(run=process().run, env=ENV, shelf=Shelf(None))
    assert [len(status(slurm, user=USER).jobs) for _ in range(2)] == [16, 16]
    assert len(slurm.asked) == 4
    assert last_known(slurm, user=USER) is None


HOLD = """
import fcntl, os, sys, time
number = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(number, fcntl.LOCK_EX)
os.ftruncate(number, 0)  # an earlier holder's number may have had more digits
os.pwrite(number, str(os.getpid()).encode(), 0)
print("held", flush=True)
time.sleep(600)
"""


def test_nobody_waits_for_one_stopped_or_killed_while_it_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf_module, "_LONGEST_TURN", math.inf)  # so it is no time that ends the wait
    status(process(), user=USER)
    folder = own_folder(os.environ)
    locks = list(folder.glob("*.lock"))
    assert len(locks) == 2
    holders = [
        subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, text=True)
        for lock in locks
    ]
    try:
        for holder in holders:
            assert holder.stdout.readline() == "held\n"
            holder.send_signal(signal.SIGSTOP)
        slurm = process()
        slurm.shelf.only_from_now()
        assert len(status(slurm, user=USER).jobs) == 16
        assert len(slurm.asked) == 2
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()
            holder.stdout.close()


def test_names_that_hold_anything_survive_being_kept(clock: Clock) -> None:
    told = status(process(), user=USER)
    kept = status(process(), user=USER)
    assert [job.name for job in kept.jobs] == [job.name for job in told.jobs]
    assert any("\n" in job.name for job in kept.jobs)


def test_the_files_tell_nobody_else_anything() -> None:
    status(process(), user=USER)
    folder = own_folder(os.environ)
    files = list(folder.iterdir())
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    head = next(path for path in files if path.suffix == ".answer").read_bytes().split(b"\n")[0]
    assert json.loads(head)["schema"] == "slurmgpu.answer/1"


def test_what_nobody_has_asked_for_in_a_week_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = own_folder(os.environ)
    assert folder is not None
    old, young = folder / "squeue-1.answer", folder / "squeue-2.answer"
    for path, days in ((old, 8), (young, 6)):
        path.touch()
        os.utime(path, (time.time() - days * 86400,) * 2)
    status(process(), user=USER)
    assert (old.exists(), young.exists()) == (False, True)
