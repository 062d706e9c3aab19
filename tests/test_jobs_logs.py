"""Logs: which files, which lines, as they grow, and what of them a terminal gets."""

from __future__ import annotations

import os
import re
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmgpu.jobs.log_files import (
    LONGEST_LINE,
    Log,
    last_lines_from,
    lines_of,
    logs_of,
    nothing_in,
    pieces_of,
)
from slurmgpu.jobs.logs import GrowingLogs, LineFilter, Wanted, rank_of, time_of
from slurmgpu.models.run import JobState, JobStatus
from slurmgpu.printable import Harmless


def follow(*paths: Path) -> tuple[GrowingLogs, list[str]]:
    """Logs that are followed, and what they have written so far."""
    logs = GrowingLogs(several=len(paths) > 1)
    for path, stream in zip(paths, ("stdout", "stderr"), strict=False):
        logs.add(Log("7", path, stream))
    return logs, []


def add(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_one_log_comes_as_it_is_half_lines_included(tmp_path: Path) -> None:
    logs, written = follow(tmp_path / "log")
    for piece in (b"50 %", b"\r100 %\n"):
        add(tmp_path / "log", piece)
        logs.pass_on(written.append)
    assert written == ["50 %", "\r100 %\n"]


def test_lines_of_several_logs_are_never_torn(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    logs, written = follow(out, err)
    add(out, b"half a ")
    add(err, b"whole\n")
    logs.pass_on(written.append)
    add(out, b"line\nno newline")
    logs.pass_on(written.append)
    logs.pass_on(written.append, last=True)
    heads = [
        f"==> job 7, {(path.name == 'out' and 'stdout') or 'stderr'}: {path} <==\n" for path in (out, err)
    ]
    assert written == [heads[1], "whole\n", heads[0], "half a line\n", "no newline"]


def test_a_letter_that_is_written_in_two_pieces_is_one_letter(tmp_path: Path) -> None:
    logs, written = follow(tmp_path / "log")
    for piece in ("ü".encode()[:1], "ü".encode()[1:]):
        add(tmp_path / "log", piece)
        logs.pass_on(written.append)
    assert "".join(written) == "ü"


def test_a_header_begins_a_line_of_its_own(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    logs, written = follow(out, err)
    add(out, b"no newline")
    logs.end(Log("7", out))
    logs.pass_on(written.append)
    add(err, b"whole\n")
    logs.pass_on(written.append)
    assert f"\n==> job 7, stderr: {err} <==\n" in written
    add(out, b"late\n")
    logs.pass_on(written.append)
    assert "late\n" not in "".join(written)


# ---- what becomes of a file that is followed


def test_a_log_that_a_requeue_begins_anew_is_followed_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "7.out"
    growing, seen = follow(path)
    growing.pass_on(seen.append)  # it is not there yet
    path.write_text("first run, step 1\nfirst run, step 2\n")
    growing.pass_on(seen.append)
    path.write_text("second run\n")
    for _ in range(2):
        growing.pass_on(seen.append)
    assert "".join(seen).endswith(f"step 2\n==> job 7, stdout: {path} <== (begun anew)\nsecond run\n")


def test_a_log_that_was_cut_and_has_grown_beyond_where_one_was_is_seen_to_be_another(tmp_path: Path) -> None:
    path = tmp_path / "7.out"
    growing, seen = follow(path)
    path.write_text("first\n")
    growing.pass_on(seen.append)
    path.write_text("second run, and long already\n")
    growing.pass_on(seen.append)
    assert "".join(seen).endswith("second run, and long already\n")
    assert "begun anew" in "".join(seen)


def test_a_log_that_is_replaced_by_another_file_is_followed_there(tmp_path: Path) -> None:
    path, other = tmp_path / "7.out", tmp_path / "other"
    growing, seen = follow(path)
    path.write_text("first, some text\n")
    growing.pass_on(seen.append)
    other.write_text("2nd\n")
    other.rename(path)
    for _ in range(2):
        growing.pass_on(seen.append)
    assert seen[-1] == "2nd\n"


def test_a_log_that_is_shorter_at_one_look_only_is_old_news_of_a_network_disk(tmp_path: Path) -> None:
    path = tmp_path / "7.out"
    growing, seen = follow(path)
    path.write_text("one\ntwo\n")
    growing.pass_on(seen.append)
    path.write_text("one\n")
    growing.pass_on(seen.append)
    path.write_text("one\ntwo\nthree\n")
    growing.pass_on(seen.append)
    assert "".join(seen) == "one\ntwo\nthree\n"


def test_each_line_can_begin_with_who_wrote_it(tmp_path: Path) -> None:
    growing, seen = GrowingLogs(prefixes=True), list[str]()
    for rank in (0, 1):
        path = tmp_path / str(rank)
        path.write_text(f"hello of {rank}\n 10%\r 90%\rdone\n")
        growing.add(Log("7", path, "stdout", f"task {rank}"))
    growing.pass_on(seen.append)
    assert "".join(seen) == "".join(
        f"task {rank}, stdout | hello of {rank}\ntask {rank}, stdout | done\n" for rank in (0, 1)
    )


# ---- which lines

RANKED = """\
[rank0]: Traceback (most recent call last):
\x1b[31m[rank3]:\x1b[0m RuntimeError: CUDA out of memory
[default3]:step 1
 3: loss 0.5
13: loss 0.6
no rank at all
3:no label of srun's
"""


def chosen(text: str, wanted: Wanted, **how: Any) -> list[str]:
    return list(LineFilter(wanted, **how).lines(lines_of([text])))


def test_the_lines_of_a_rank_are_found_by_what_torch_torchrun_and_srun_write_before_them() -> None:
    assert [rank_of(line) for line in RANKED.splitlines()] == [0, 3, 3, 3, 13, None, None]
    assert len(chosen(RANKED, Wanted(rank=3))) == 3
    assert chosen("anything\n", Wanted(rank=3), rank=3) == ["anything\n"]
    assert chosen("anything\n", Wanted(rank=3), rank=2) == []


def test_grep_shows_context_and_parts_groups() -> None:
    text = "".join(f"{'hit' if number in (3, 5, 12) else 'line'} {number}\n" for number in range(20))
    pattern = re.compile("hit")
    assert chosen(text, Wanted(pattern=pattern)) == ["hit 3\n", "hit 5\n", "hit 12\n"]
    found = chosen(text, Wanted(pattern=pattern, context=1))
    assert found == [
        "line 2\n", "hit 3\n", "line 4\n", "hit 5\n", "line 6\n", "--\n", "line 11\n", "hit 12\n", "line 13\n",
    ]  # fmt: skip
    assert chosen("\x1b[31mhi\x1b[0mt\n", Wanted(pattern=re.compile("^hit$"))) == ["\x1b[31mhi\x1b[0mt\n"]


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-21 12:00:00,123 - INFO - step",
        "[2026-11-21T12:00:00] step",
        "[rank3]: 2026/11/21 12:00:00 step",
        "11/21/2026 12:00:00 - INFO - step",
        "I1121 12:00:00.123456 123 file.py:7] step",
        "[rank0]:[E1121 12:00:00.123 ProcessGroupNCCL.cpp:616] step",
        "Nov 21 12:00:00 node1 step",
    ],
)
def test_the_times_that_loggers_write_are_read(line: str) -> None:
    here = datetime(2026, 11, 21, 12).astimezone()
    found = time_of(line, here + timedelta(hours=5))
    assert found == here


def test_a_time_with_a_zone_is_in_that_zone_and_one_without_a_year_is_not_in_the_future() -> None:
    now = datetime(2026, 1, 5, tzinfo=timezone.utc)
    assert time_of("2026-01-04T12:00:00+0200 x", now) == datetime(2026, 1, 4, 10, tzinfo=timezone.utc)
    assert time_of("2026-01-04 12:00:00Z x", now) == datetime(2026, 1, 4, 12, tzinfo=timezone.utc)
    found = time_of("Dec 30 12:00:00 x", now)
    assert found.year == 2025
    assert time_of("2026-02-31 12:00:00 x", now) is None
    assert time_of("step 7 of 100", now) is None


def test_since_takes_the_lines_after_a_moment_and_those_without_a_time_with_the_one_before() -> None:
    text = "2026-11-21 10:00:00 a\n  more of a\n2026-11-21 12:00:00 b\n  more of b\n"
    since = datetime(2026, 11, 21, 11).astimezone()
    assert chosen(text, Wanted(since=since)) == ["2026-11-21 12:00:00 b\n", "  more of b\n"]
    assert chosen("no time\n", Wanted(since=since), at_first=since - timedelta(hours=1)) == []
    going_on = LineFilter(Wanted(since=since), at_first=since - timedelta(hours=1))
    going_on.go_on()
    assert list(going_on.lines(["new\n"])) == ["new\n"]


@given(st.lists(st.text("ab\n"), max_size=20), st.integers(0, 8))
def test_the_last_lines_are_those_that_tail_shows(pieces: list[str], lines: int) -> None:
    text = "".join(pieces)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log")
        path.write_text(text)
        start = last_lines_from(path, lines, len(text))
    kept = text.split("\n")
    rest = [line + "\n" for line in kept[:-1]] + ([kept[-1]] if kept[-1] else [])
    assert text[start:] == "".join(rest[-lines:] if lines else [])


def test_the_last_lines_of_a_long_log_are_found_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"{number:0100}\n" for number in range(5000)))
    start = last_lines_from(path, 1500, path.stat().st_size)
    assert path.read_text()[start:].splitlines()[0] == f"{3500:0100}"


# ---- which files


def test_ranks_that_have_files_of_their_own_are_found_and_those_of_others_are_not(tmp_path: Path) -> None:
    ours = ("7.out", "7-rank0.out", "7-rank1.err", "7_task-11.log", "7_5_log.err", "x7rank3x")
    for name in (*ours, "17-rank2.out", "17_6_log.out", "rank4-7.out"):
        (tmp_path / name).write_text("x\n")
    (tmp_path / "7-rank9.out").symlink_to("/etc/hostname")
    job = JobStatus(
        job_id="7", raw_id=7, state=JobState.RUNNING, source="squeue", stdout=str(tmp_path / "7.out")
    )
    logs = logs_of(None, job)
    assert [(log.path.name, log.part, log.rank) for log in logs if log.path] == [
        ("7.out", "batch script", None),
        ("7-rank0.out", "rank 0", 0),
        ("7-rank1.err", "rank 1", 1),
        ("x7rank3x", "rank 3", 3),
        ("7_5_log.err", "rank 5", 5),
        ("7_task-11.log", "rank 11", 11),
    ]


# ---- what a terminal gets


@pytest.mark.parametrize(
    "text",
    [
        "plain\n",
        "\x1b[31mred\x1b[0m\n",
        "\x1b[1;38;5;208mloss\x1b[m",
        " 10%|#  |\r 20%|## |\r",
        "\x1b[A\x1b[2K\rbar",
        "tab\t\b",
    ],
)
def test_colours_and_progress_bars_reach_the_terminal(text: str) -> None:
    for pieces in ([text], list(text)):
        harmless = Harmless()
        assert "".join(map(harmless.text, pieces)) == text


@pytest.mark.parametrize(
    "text",
    [
        "\x1b]0;title\x07", "\x1b]52;c;cm0gLXJm\x1b\\", "\x1b[6n", "\x1b[c", "\x1bP+q\x1b\\", "\x1b[?1049h", "\x1b[2J\x1b[H",
        "\x1bc", "\x1b(0", "\x9b6n", "\x0e", "\x05", "\x1b[5i", "\x1b[20t", "\x7f", "\u202e",
    ],
)  # fmt: skip
def test_nothing_else_does(text: str) -> None:
    for pieces in ([text], list(text)):
        harmless = Harmless()
        shown = "".join(map(harmless.text, pieces)) + harmless.end()
        assert shown.isprintable(), shown


def test_a_colour_that_is_never_taken_back_ends_with_the_log() -> None:
    harmless = Harmless()
    assert harmless.text("\x1b[31mred") + harmless.end() == "\x1b[31mred\x1b[0m"
    assert Harmless(redraws=False).text("\x1b[31mred\x1b[A") == "\x1b[31mred\\x1b[A"
    assert Harmless().text("\0\0\0text") == "text"


@given(st.lists(st.text(st.sampled_from("\x1b[]0;31mAKn\x07\\P(\x9b\x00\r\nx"), max_size=8), max_size=8))
def test_no_text_in_any_pieces_gets_more_than_colours_and_moves_through(pieces: list[str]) -> None:
    harmless = Harmless()
    shown = "".join(map(harmless.text, pieces)) + harmless.end()
    rest = re.sub(r"\x1b\[[0-9;:]*[ABCDGKm]", "", shown)
    assert all(c.isprintable() or c in "\n\r\t\b" for c in rest)


# What is no log, and what no person wrote


def test_a_line_without_an_end_is_passed_on_in_pieces_and_not_kept_whole() -> None:
    found = list(lines_of("x" * 65536 for _ in range(640)))
    assert sum(len(line.rstrip("\n")) for line in found) == 640 * 65536
    assert max(map(len, found)) <= 2 * LONGEST_LINE


def test_a_line_without_an_end_that_grows_is_passed_on_beside_other_logs(tmp_path: Path) -> None:
    logs, written = follow(tmp_path / "out", tmp_path / "err")
    add(tmp_path / "out", b"x" * (3 * LONGEST_LINE))
    logs.pass_on(written.append)
    assert sum(text.count("x") for text in written) > LONGEST_LINE


def test_nothing_is_read_from_a_pipe_or_a_device_in_a_logs_place(tmp_path: Path) -> None:
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    with pipe.open("r+b", buffering=0) as both:  # without it, an open that waits would wait for ever
        both.write(b"secret\n")
        assert list(pieces_of(pipe, 0, 7)) == []
        logs, written = follow(pipe)
        logs.pass_on(written.append, last=True)
        assert written == []
    why = "cannot be read: a folder, a pipe or a device, not a file"
    for path in (pipe, Path("/dev/null"), tmp_path):
        assert nothing_in(Log("7", path)) == f"{path} {why}"


def test_a_time_beyond_the_calendar_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        now = datetime.now(timezone.utc)
        assert time_of("9999-12-31 23:59:59 for ever", now) is None
        assert time_of("0001-01-01 00:00:00 never", now) is None
    finally:
        monkeypatch.undo()
        time.tzset()


SENDS_ELSEWHERE = """#!/bin/bash
OUT=out/$SLURM_JOB_ID
srun --output=out/%x-%j-%t.log --error "out/err-%N.txt" python train.py
cd sub
python eval.py > eval.log 2>&1
python x.py 2> "$OUT/x err.txt" | tee -a all.txt
eval "$(conda shell.bash hook 2>/dev/null)"
source <(module shell 2>/dev/null)
srun bash -c 'python y.py > y.$SLURM_PROCID.log 2>&1'
nvidia-smi > smi.txt
torchrun t.py &> ../torch_$(date +%F).log &
python z.py > /dev/null
"""


def test_files_that_the_scripts_commands_write_to_are_logs(tmp_path: Path) -> None:
    named = ["out/tr-7-0.log", "out/tr-7-1.log", "out/err-n1.txt", "sub/eval.log", "sub/out/7/x err.txt", "sub/all.txt",
             "sub/y.0.log", "torch_2026-01-01.log"]  # fmt: skip
    for name in (*named, "out/tr-8-0.log", "sub/smi.txt", "slurm-7.out"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n")
    (tmp_path / "job.sh").write_text(SENDS_ELSEWHERE)
    start = datetime.now(timezone.utc)
    where: Any = {
        "name": "tr",
        "work_dir": str(tmp_path),
        "script": f"{tmp_path}/job.sh arg",
        "start": start,
        "user": None,
    }
    ended = JobStatus(
        job_id="7", raw_id=7, state=JobState.FAILED, source="sacct", stdout=f"{tmp_path}/slurm-7.out", **where
    )
    first, *others = logs_of(None, ended)
    assert first.part == "batch script"
    assert sorted(str(log.path) for log in others) == sorted(f"{tmp_path}/{name}" for name in named)
    later = ended.model_copy(update={"start": start + timedelta(hours=1)})
    assert len(logs_of(None, later)) == 1  # they are an earlier job's


def test_the_last_lines_of_a_log_without_any_are_looked_for_only_so_far(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.truncate(1 << 40)
    assert last_lines_from(tmp_path / "log", 5, 1 << 40) == (1 << 40) - (64 << 20)
