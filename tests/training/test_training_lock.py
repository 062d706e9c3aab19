"""One writer per checkpoint folder, also after it has died."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from slurmgpu.training import session
from slurmgpu.training.errors import TrainingError
from slurmgpu.training.processes.group import Channel, Group
from slurmgpu.training.processes.ranks import Ranks
from slurmgpu.training.saving import checkpoint
from slurmgpu.training.saving import lock as module
from slurmgpu.training.saving.lock import Hold, Lock
from slurmgpu.training.saving.saver import Saved, Saver, Saving
from slurmgpu.training.saving.snapshot import Snapshot
from slurmgpu.training.watching.console import Console

from .conftest import Shared


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


def test_the_second_run_in_a_folder_is_refused_with_the_firsts_name(tmp_path: Path, said: list[str]) -> None:
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


def unseen(monkeypatch: pytest.MonkeyPatch, times: int, number: int) -> None:
    """The owner cannot be read so often, with this error of the system."""
    real, left = Path.read_bytes, [times]

    def read(path: Path) -> bytes:
        if path.name == "owner.json" and left[0] > 0:
            left[0] -= 1
            raise OSError(number, os.strerror(number), str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read)


@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOENT])
def test_an_owner_that_cannot_be_seen_for_a_moment_is_looked_for_again(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    lock = locked(tmp_path, said)
    unseen(monkeypatch, 2, number)
    lock.check()
    lock.release()


def saver(folder: Path, hold: Hold, keep: int = 2) -> Saver:
    return Saver(folder, Ranks(), Channel(Ranks(), 5), hold, Saving(keep=keep))


def save(saver: Saver, step: int, content: str) -> Saved:
    saver.start(step, Snapshot(), {"a.pt": content, "b.pt": content}, {"samples": step, "world_size": 1})
    saved = saver.collect()
    assert saved is not None
    return saved


def found(folder: Path) -> tuple[str, str]:
    """The newest checkpoint that is intact, and what is in it."""
    generation, notes = checkpoint.newest_intact(folder)
    assert generation is not None
    assert notes == []
    return generation.path.name, checkpoint.read(generation, "a.pt")


def supersede(folder: Path, said: list[str]) -> Lock:
    """Another start of the job takes the lock over."""
    pretend(folder, machine="another", token="old")
    return locked(folder, said, SLURM_JOB_ID="17", SLURM_RESTART_COUNT="1")


@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize("ended", [False, True], ids=["it runs", "it has ended"])
@pytest.mark.parametrize("step", [5, 6])
def test_a_run_thought_dead_leaves_its_successors_checkpoints_alone(
    tmp_path: Path, said: list[str], step: int, ended: bool
) -> None:
    """At the step that the successor has saved, and where it would remove the successor's as an old one."""
    old = saver(tmp_path, locked(tmp_path, said, SLURM_JOB_ID="17"), keep=1)
    lock = supersede(tmp_path, said)
    assert save(saver(tmp_path, lock), 5, "new").error is None
    if ended:
        lock.release()
    saved = save(old, step, "old")
    assert saved.taken
    assert str(saved.error).startswith("the checkpoints were taken over by ")
    assert found(tmp_path) == ("step-5", "new")
    assert not (tmp_path / "step-6").exists()


@pytest.mark.parametrize("act", ["write_part", "commit"])
def test_a_lock_lost_in_the_middle_of_a_save_removes_nothing(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """While a part is written nothing counts any more; while it is committed, what is old stays."""
    old = saver(tmp_path, locked(tmp_path, said, SLURM_JOB_ID="17"), keep=1)
    assert save(old, 5, "old").error is None
    real: Callable[..., Any] = getattr(checkpoint, act)

    def slow(*arguments: Any) -> Any:
        done = real(*arguments)
        pretend(tmp_path, token="theirs")
        return done

    monkeypatch.setattr(checkpoint, act, slow)
    saved = save(old, 6, "old")
    assert saved.taken == (act == "write_part")
    assert found(tmp_path) == (("step-5" if saved.taken else "step-6"), "old")
    assert {path.name for path in tmp_path.glob("step-*")} == {"step-5", "step-6"}


def test_a_start_without_the_lock_sweeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torn = tmp_path / "checkpoints" / "step-5"
    torn.mkdir(parents=True)

    def supersede(*_: object) -> None:
        pretend(tmp_path / "checkpoints", token="theirs")

    monkeypatch.setattr(session, "write_json", supersede)
    group = Group(Ranks(), torch.device("cpu"))
    with pytest.raises(TrainingError, match="taken over by"):
        session.Session(tmp_path, group, {}, Console(speaks=False), Saving(), session.Limits())
    assert torn.exists()


@pytest.mark.usefixtures("no_patience")
def test_an_owner_that_stays_unreadable_costs_that_save_alone(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = locked(tmp_path, said)
    old = saver(tmp_path, lock)
    with monkeypatch.context() as patch:
        unseen(patch, 99, errno.ESTALE)
        saved = save(old, 5, "x")
    assert (saved.taken, saved.error) == (False, f"rank 0 on : {os.strerror(errno.ESTALE)}")
    assert not (tmp_path / "step-5").exists()
    assert save(old, 6, "x").error is None
    lock.release()


@pytest.mark.parametrize("sees", [0, 1])
def test_a_takeover_that_one_rank_sees_is_known_to_all(tmp_path: Path, said: list[str], sees: int) -> None:
    lock = locked(tmp_path, said)
    channel: Any = Shared()
    holds = [Hold(tmp_path, "old" if rank == sees else lock.token) for rank in (0, 1)]
    savers = [
        Saver(tmp_path, Ranks(rank=rank, world_size=2), channel, holds[rank], Saving()) for rank in (0, 1)
    ]
    for rank, each in enumerate(savers):
        each.start(5, Snapshot(), {f"rank-{rank}.pt": 1}, {"samples": 5, "world_size": 2})
    ends = [each.collect() for each in savers]
    assert [saved.taken for saved in ends if saved] == [True, True]
    assert len({saved.error for saved in ends if saved}) == 1
    lock.release()


def test_a_disk_that_is_full_leaves_no_lock_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as context:
        context.setattr(module, "write_json", full)
        with pytest.raises(OSError, match="No space left on device"):
            Lock(tmp_path, {}, print).acquire()
    said: list[str] = []
    lock = Lock(tmp_path, {}, said.append)
    lock.acquire()
    lock.release()
    assert said == []
