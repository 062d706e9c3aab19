"""One writer per checkpoint folder, also after it has died."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from slurmgpu.training import lock as module
from slurmgpu.training.errors import TrainingError
from slurmgpu.training.lock import Lock


@pytest.fixture
def said() -> list[str]:
    return []


def locked(folder: Path, said: list[str], **environment: str) -> Lock:
    lock = Lock(folder, environment, said.append)
    lock.acquire()
    return lock


def pretend(folder: Path, **owner: object) -> None:
    """Change what the lock says of its owner."""
    path = folder / "lock" / "owner.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **owner}))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT", 0.05)
    monkeypatch.setattr(module, "_SILENT", 0.5)


def test_the_second_run_in_a_folder_is_refused_and_the_first_is_named(
    tmp_path: Path, said: list[str]
) -> None:
    first = locked(tmp_path, said, SLURM_JOB_ID="17")
    with pytest.raises(TrainingError, match=rf"is being written by job 17, process {os.getpid()} on .*alive"):
        locked(tmp_path, said, SLURM_JOB_ID="18")
    first.release()
    locked(tmp_path, said).release()
    assert said == []
    assert list(tmp_path.iterdir()) == []


def test_a_dead_process_on_this_machine_is_followed_at_once(tmp_path: Path, said: list[str]) -> None:
    child = os.fork()
    if not child:
        locked(tmp_path, said, SLURM_JOB_ID="17")
        os._exit(9)
    os.waitpid(child, 0)
    locked(tmp_path, said, SLURM_JOB_ID="18").release()
    (note,) = said
    assert note.endswith("its process is gone")
    assert f"job 17, process {child}" in note


def test_a_requeued_job_follows_its_earlier_start_at_once(tmp_path: Path, said: list[str]) -> None:
    locked(tmp_path, said, SLURM_JOB_ID="17")
    pretend(tmp_path, machine="another", token="theirs")
    locked(tmp_path, said, SLURM_JOB_ID="17", SLURM_RESTART_COUNT="1").release()
    assert said[0].endswith("it is an earlier start of this job")


@pytest.mark.usefixtures("quick")
def test_an_owner_elsewhere_is_followed_when_its_heart_stands_still(tmp_path: Path, said: list[str]) -> None:
    dead = locked(tmp_path, said)
    pretend(tmp_path, machine="another", token="theirs")
    lock = locked(tmp_path, said)
    assert "no sign of life" in said[-1]
    with pytest.raises(TrainingError, match="taken over by process"):
        dead.check()
    lock.check()
    dead.release()
    lock.check()
    lock.release()


@pytest.mark.usefixtures("quick")
def test_an_owner_elsewhere_whose_heart_beats_is_left_alone(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SILENT", 30)  # the first beat is enough
    lock = locked(tmp_path, said)
    pretend(tmp_path, machine="another")  # its own heart goes on beating, for its token is still there
    with pytest.raises(TrainingError, match="which is alive"):
        locked(tmp_path, said)
    lock.release()


@pytest.mark.usefixtures("quick")
def test_of_several_that_find_a_dead_owner_one_follows(tmp_path: Path, said: list[str]) -> None:
    locked(tmp_path, said)
    pretend(tmp_path, machine="another", token="theirs")
    outcomes: list[object] = []

    def attempt() -> None:
        try:
            outcomes.append(locked(tmp_path, said))
        except TrainingError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [outcome for outcome in outcomes if isinstance(outcome, Lock)]
    assert len(winners) == 1
    winners[0].release()


@pytest.mark.usefixtures("quick")
def test_a_lock_whose_owner_died_before_it_signed_is_followed(tmp_path: Path, said: list[str]) -> None:
    (tmp_path / "lock").mkdir()
    locked(tmp_path, said).release()
    assert "an unknown process" in said[-1]


def test_the_heart_beats(tmp_path: Path, said: list[str], quick: None) -> None:
    lock = locked(tmp_path, said)
    path = tmp_path / "lock" / "owner.json"
    os.utime(path, (1, 1))
    end = time.monotonic() + 20
    while path.stat().st_mtime == 1 and time.monotonic() < end:
        time.sleep(0.02)
    assert path.stat().st_mtime > 1
    lock.release()
