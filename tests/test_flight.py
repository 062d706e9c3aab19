"""torch's flight recorder: what its dumps tell of a collective that did not end, and that a hostile one does nothing."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.diagnosis.facts import Cause, Facts
from slurmgpu.diagnosis.flight import DUMP, Stuck, dumps_in, plain, read_dumps, stuck
from slurmgpu.diagnosis.judging import diagnose

# As FlightRecorder.hpp of torch 2.13 (version 2.10) lays it out; the tests on a real Slurm read dumps that torch wrote.
FRAMES = [
    {"name": "all_reduce", "filename": "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", "line": 3245},
    {"name": "train", "filename": "/home/ada/train.py", "line": 12},
]  # fmt: skip
WATCHDOG = (
    "[rank{0}]:[E1124 10:00:00.000000000 ProcessGroupNCCL.cpp:688] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600029 milliseconds before "
    "timing out.\n"
)


def entry(
    number: int, state: str, name: str = "nccl:all_reduce", group: str = "0", **more: Any
) -> dict[str, Any]:
    known = {
        "process_group": (group, "default_pg"), "collective_seq_id": number, "p2p_seq_id": 0, "is_p2p": False,
        "profiling_name": name, "state": state, "input_sizes": [[8]], "output_sizes": [[8]], "frames": FRAMES,
        "time_created_ns": number, "pg_id": 0, "record_id": number, "retired": state == "completed",
    }  # fmt: skip
    return known | more


def dump(folder: Path, rank: int, entries: list[dict[str, Any]], groups: dict[str, str] | None = None) -> str:
    config = {name: {"name": name, "desc": "", "ranks": ranks} for name, ranks in (groups or {}).items()}
    path = folder / f"{DUMP}71.0-rank-{rank}"
    path.write_bytes(pickle.dumps({"version": "2.10", "entries": entries, "pg_config": config}, protocol=2))
    return str(path)


def until(last: int, state: str = "scheduled") -> list[dict[str, Any]]:
    """The newest collectives of one rank, of which the last has this state."""
    return [entry(number, "completed") for number in range(30, last)] + [entry(last, state)]


def told(paths: list[str]) -> Stuck:
    found = stuck(read_dumps(paths))
    assert found is not None
    return found


def test_the_rank_that_did_not_come_is_named_with_its_last_collective(tmp_path: Path) -> None:
    world = {"0": "[0, 1, 2, 3]"}
    paths = [
        dump(tmp_path, rank, until(41, "completed") if rank == 2 else until(42, "started"), world)
        for rank in range(4)
    ]
    found = told(paths)
    assert (found.rank, found.missing, found.came) == (2, (2,), (0, 1, 3))
    assert found.words() == (
        "rank 2 did not come to all_reduce number 42 (train.py, line 12); its last was all_reduce number 41 (train.py, line 12)"
    )


def test_ranks_that_have_begun_more_than_the_one_that_is_stuck_do_not_mislead(tmp_path: Path) -> None:
    ahead = [*until(42), entry(43, "scheduled"), entry(44, "scheduled")]
    paths = [
        dump(tmp_path, 0, ahead),
        dump(tmp_path, 1, until(41, "completed")),
        dump(tmp_path, 2, ahead[:-1]),
    ]
    found = told(paths)
    assert (found.rank, found.entry.number) == (1, 42)


def test_several_that_did_not_come_are_named_and_none_is_blamed(tmp_path: Path) -> None:
    found = told(
        [
            dump(tmp_path, rank, until(42 if rank < 2 else 41, "scheduled" if rank < 2 else "completed"))
            for rank in range(4)
        ]
    )
    assert (found.rank, found.words().partition(" to ")[0]) == (None, "ranks 2, 3 did not come")
    alone = told(
        [
            dump(tmp_path, rank, until(41 if rank else 42, "completed" if rank else "started"))
            for rank in range(4)
        ]
    )
    assert (alone.rank, alone.words()) == (
        None,
        "rank 0 alone came to all_reduce number 42 (train.py, line 12)",
    )


def test_a_rank_that_began_another_collective_is_named(tmp_path: Path) -> None:
    other = [*until(41, "completed"), entry(42, "scheduled", "nccl:broadcast")]
    found = told([dump(tmp_path, rank, other if rank == 1 else until(42)) for rank in range(3)])
    assert found.rank == 1
    assert found.words() == (
        "the ranks did not begin the same: ranks 0, 2 began all_reduce number 42 (train.py, line 12); "
        "rank 1 began broadcast number 42 (train.py, line 12)"
    )
    sizes = [*until(41, "completed"), entry(42, "scheduled", input_sizes=[[9]])]
    found = told([dump(tmp_path, rank, sizes if rank == 0 else until(42)) for rank in range(3)])
    assert (found.rank, "of [9]" in found.words()) == (0, True)


def test_where_all_ranks_came_it_is_the_network_or_a_gpu(tmp_path: Path) -> None:
    found = told([dump(tmp_path, rank, until(42)) for rank in range(3)])
    assert (found.rank, found.missing) == (None, ())
    assert found.words().startswith(
        "all 3 ranks came to all_reduce number 42 (train.py, line 12), and it did not end"
    )


def test_a_rank_that_left_no_record_is_named_and_nothing_is_made_of_it(tmp_path: Path) -> None:
    world = {"0": "[0, 1, 2, 3]"}
    found = told([dump(tmp_path, rank, until(42), world) for rank in range(3)])
    assert (found.rank, found.absent) == (None, (3,))
    assert found.words() == (
        "all ranks that left a record came to all_reduce number 42 (train.py, line 12); rank 3 left none"
    )
    late = [dump(tmp_path, 0, until(42), world), dump(tmp_path, 1, until(41, "completed"), world)]
    found = told(late)
    assert (found.rank, found.words().endswith("; ranks 2, 3 left no record")) == (None, True)
    text = WATCHDOG.format(0) + WATCHDOG.format(1)
    assert not cause_of(tmp_path / "71.out", text, dumps=tuple(late)).certain
    without_groups = [dump(tmp_path, rank, until(42)) for rank in range(3)]
    assert stuck(read_dumps(without_groups), 3) is not None
    unclear = stuck(read_dumps(without_groups), 4)
    assert unclear.absent == (3,)


def test_a_rank_that_waits_in_another_group_is_not_where_it_began(tmp_path: Path) -> None:
    groups = {"0": "[0, 1, 2, 3]", "1": "[0, 1]", "2": "[2, 3]"}

    def in_group(name: str, last: int, state: str) -> list[dict[str, Any]]:
        done = [entry(number, "completed", group=name) for number in range(1, last)]
        return [*done, entry(last, state, group=name)]

    entries = {
        0: [*in_group("0", 5, "completed"), *in_group("1", 9, "started")],  # waits for 1
        1: [*in_group("0", 5, "completed"), *in_group("1", 8, "completed")],  # does nothing
        2: [*in_group("0", 6, "started"), *in_group("2", 9, "completed")],  # waits for 0 and 1
        3: [*in_group("0", 6, "started"), *in_group("2", 9, "completed")],
    }
    found = told([dump(tmp_path, rank, theirs, groups) for rank, theirs in entries.items()])
    assert (found.group, found.rank) == ("1", 1)


def test_gloos_entries_never_say_that_they_have_ended(tmp_path: Path) -> None:
    def begun(last: int) -> list[dict[str, Any]]:
        return [entry(number, "scheduled", "gloo:all_reduce") for number in range(1, last + 1)]

    found = told([dump(tmp_path, rank, begun(3 if rank == 1 else 4)) for rank in range(3)])
    assert (found.rank, found.entry.number) == (1, 4)
    assert stuck(read_dumps([dump(tmp_path, rank, begun(4)) for rank in range(3)])) is None


def test_what_has_ended_or_one_dump_alone_tells_nothing(tmp_path: Path) -> None:
    assert stuck(read_dumps([dump(tmp_path, rank, until(42, "completed")) for rank in range(3)])) is None
    assert stuck(read_dumps([dump(tmp_path, 0, until(42))])) is None
    uneven = [dump(tmp_path, 0, until(42, "completed")), dump(tmp_path, 1, until(40, "completed"))]
    assert stuck(read_dumps(uneven)) is None
    assert stuck([]) is None


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"entries": [Bomb()]}), b"cos\nsystem\n(S'touch exploded'\ntR.",
        b"\x80\x02cbuiltins\neval\nq\x00X\x04\x00\x00\x001 + q\x01\x85R.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.", b"Pnothing\n.", b"(dI\x00\n.", b"}r\xff\xff\xff\xff.",
        b"\x96\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x8b\xff\xff\xff\x7f", b"", b"\x80\x02",
        bytes(range(256)) * 100,
    ],
)  # fmt: skip
def test_a_hostile_dump_runs_nothing_and_takes_no_memory(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"{DUMP}71.0-rank-0"
    path.write_bytes(data)
    began = time.process_time()
    assert read_dumps([str(path)]) == []
    assert time.process_time() - began < 60
    assert not (tmp_path / "exploded").exists()


def test_odd_values_in_a_dump_are_left_out(tmp_path: Path) -> None:
    odd: list[Any] = [
        None, 3, {}, {"process_group": 3}, entry(1, "completed", group=3),  # type: ignore[arg-type]
        entry("x", "started"), entry(2, "started", frames=[None, {"filename": 3}], time_created_ns="x"),  # type: ignore[arg-type]
        entry(3, "started", is_p2p=True),
    ]  # fmt: skip
    (found,) = read_dumps([dump(tmp_path, 0, odd, {"0": "rubbish", "1": "[" + "9" * 50 + "]"})])
    assert found.last("0") == 2
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    assert read_dumps([dump(tmp_path, 1, [entry(1, "started", input_sizes=cyclic)])])[0].rank == 1
    deep: list[Any] = []
    for _ in range(60):
        deep = [deep] * 10
    assert read_dumps([dump(tmp_path, 2, [entry(1, "started", input_sizes=[deep, [8]])])])[0].last("0") == 1
    with pytest.raises(ValueError, match="no pickle of plain values"):
        plain(b"x")


def test_only_a_file_of_the_owners_counts(tmp_path: Path) -> None:
    path = Path(dump(tmp_path, 0, until(42)))
    assert len(read_dumps([str(path)])) == 1
    assert read_dumps([str(path)], os.getuid() + 1) == []
    link = tmp_path / f"{DUMP}71.0-rank-1"
    link.symlink_to(path)
    os.mkfifo(tmp_path / f"{DUMP}71.0-rank-2")
    (tmp_path / f"{DUMP}71.0-rank-3").mkdir()
    assert read_dumps([str(tmp_path / f"{DUMP}71.0-rank-{rank}") for rank in (1, 2, 3, 4)]) == []


def cause_of(log: Path, text: str, **facts: Any) -> Cause:
    log.write_text(text)
    found = diagnose([str(log)], Facts(exit_code=1, **facts))
    assert found is not None
    return found


def test_a_collective_that_timed_out_is_explained_by_the_dumps_in_the_run(tmp_path: Path) -> None:
    (tmp_path / "debug").mkdir()
    for rank in range(3):
        dump(tmp_path / "debug", rank, until(41, "completed") if rank == 2 else until(42, "started"))
    text = WATCHDOG.format(0) + WATCHDOG.format(1)
    assert dumps_in(tmp_path, "71", 1) == dumps_in(tmp_path, "7", 0) == []
    cause = cause_of(tmp_path / "71.out", text, dumps=tuple(dumps_in(tmp_path, "71", 0)))
    assert (cause.kind, cause.rank, cause.certain) == ("nccl-timeout", 2, True)
    assert (
        "rank 2 did not come to all_reduce number 42 (train.py, line 12); its last was all_reduce number 41"
        in cause.what
    )
    without = cause_of(tmp_path / "71.out", text)
    assert "which rank did not come is not told" in without.what


def test_a_dump_that_the_log_names_is_read_unless_a_later_job_wrote_over_it(tmp_path: Path) -> None:
    paths = [dump(tmp_path, rank, until(42 - rank, "completed" if rank else "started")) for rank in range(2)]
    wrote = "".join(f"[rank0]: Finished writing Flight Recorder debug info to {path}\n" for path in paths)
    text = WATCHDOG.format(0) + wrote
    assert cause_of(tmp_path / "71.out", text).rank == 1
    later = time.time() + 3600
    for path in paths:
        os.utime(path, (later, later))
    assert "not told" in cause_of(tmp_path / "71.out", text).what
