from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmgpu.models.run import JobState
from slurmgpu.slurm.text import (
    SEPARATOR,
    JobId,
    expand_pattern,
    first_host,
    gpus_of_job,
    known,
    moment,
    read_gpus,
    rows,
    seconds,
    size,
    unread,
    whole,
)


def test_of_very_many_rows_that_cannot_be_read_the_first_are_named_and_the_rest_counted() -> None:
    notes = unread("squeue", ["x" * 1000] * 30_000)
    assert (len(notes), notes[-1]) == (6, "squeue: 29,995 more rows that cannot be read were left out")
    assert max(map(len, notes)) < 300
    assert len(unread("squeue", ["x"] * 5)) == 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0:00", 0), ("59:38", 3578), ("1:00:00", 3600), ("2-00:00:00", 172800), ("1-02:03:04", 93784),
        ("00:00:06", 6), ("00:00.123", 0), ("UNLIMITED", None), ("NOT_SET", None), ("INVALID", None),
        ("Partition_Limit", None), ("", None), ("90", None),
    ],
)  # fmt: skip
def test_durations_are_read_as_seconds(text: str, expected: int | None) -> None:
    assert seconds(text) == expected


def test_a_moment_is_read_from_seconds_since_1970() -> None:
    assert moment("1795232892") == datetime(2026, 11, 21, 3, 48, 12, tzinfo=timezone.utc)


def test_a_moment_is_read_from_local_time() -> None:
    assert moment("2026-11-21T03:48:12") == datetime(2026, 11, 21, 3, 48, 12).astimezone(timezone.utc)


@pytest.mark.parametrize("text", ["", "N/A", "Unknown", "None", "0", "2026-13-01T00:00:00", "9" * 40, "٣"])
def test_what_is_no_moment_is_none(text: str) -> None:
    assert moment(text) is None


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("4988928", "", 4988928), ("1234K", "", 1234 * 1024), ("1.50G", "", 3 * 2**29), ("16", "M", 16 * 2**20),
        ("4000Mn", "", 4000 * 2**20), ("", "", None), ("many", "", None),
    ],
)  # fmt: skip
def test_sizes_are_read_as_bytes(text: str, unit: str, expected: int | None) -> None:
    assert size(text, unit) == expected


@pytest.mark.parametrize("text", ["N/A", "(null)", "", " ", "Unknown", "None"])
def test_slurms_ways_of_saying_nothing_are_none(text: str) -> None:
    assert known(text) is None


@pytest.mark.parametrize("text", ["-1", "1_000", "٣", "1.5", "9" * 40])
def test_what_is_no_whole_number_is_none(text: str) -> None:
    assert whole(text) is None


@pytest.mark.parametrize(
    ("text", "count", "types"),
    [
        ("cpu=1,mem=1000M,node=1,billing=1,gres/gpu=2", 2, {}),
        ("billing=4,cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=8G,node=1", 2, {"a100": 2}),
        ("gres/gpu:a100=2,gres/gpu:h100=1", 3, {"a100": 2, "h100": 1}), ("gpu:2", 2, {}),
        ("gpu:a100:4", 4, {"a100": 4}), ("gres:gpu:4", 4, {}), ("gres:gpu:a100:1", 1, {"a100": 1}),
        ("gres/gpu:4", 4, {}), ("gres/gpu:a100:4", 4, {"a100": 4}), ("gpu", 1, {}), ("gres:gpu", 1, {}),
        ("gpu:a100", 1, {"a100": 1}), ("gpu:a100:2(IDX:0,1),lscratch:100", 2, {"a100": 2}),
        ("gpu:a100_1g.5gb:3", 3, {"a100_1g.5gb": 3}),
    ],
)  # fmt: skip
def test_gpus_are_counted_in_every_releases_spelling(text: str, count: int, types: dict[str, int]) -> None:
    found = read_gpus(text)
    assert (found.count, found.types) == (count, types)


@pytest.mark.parametrize(
    "text", ["", "N/A", "cpu=1,mem=1000M", "gres:gpumem:100", "gres/gpuutil=50", "lscratch:100"]
)
def test_a_list_without_gpus_names_none(text: str) -> None:
    assert read_gpus(text) is None


def test_gpus_per_node_count_on_every_node() -> None:
    found = gpus_of_job("cpu=2,node=2", "N/A", "gres:gpu:a100:4", 2)
    assert (found.count, found.types) == (8, {"a100": 8})


def test_a_job_that_is_known_and_has_no_gpu_has_zero() -> None:
    found = gpus_of_job("cpu=2,node=2", "N/A", "N/A", 2)
    assert found.count == 0


def test_a_job_of_which_nothing_is_known_has_no_number_of_gpus() -> None:
    assert gpus_of_job("", "N/A", "N/A", None) is None


@pytest.mark.parametrize(
    ("wanted", "shown", "expected"),
    [
        ("112", "112", True), ("112", "112_3", True), ("112", "112_[0-4%2]", True), ("112", "113", False),
        ("112_3", "112_3", True), ("112_3", "112_4", False), ("112_3", "112_[0-4%2]", True),
        ("112_3", "112_[0-2,4]", False), ("112_6", "112_[0-10:2]", True), ("112_5", "112_[0-10:2]", False),
        ("112_3", "112", False), ("112_[0-4]", "112_3", True), ("112_[0-4%2]", "112_[3-9]", True),
        ("112_[0-4]", "112_[5-9]", False), ("112_[0-4]", "112_5", False), ("113", "113+1", True),
        ("113+1", "113+1", True), ("113+1", "113+0", False),
    ],
)  # fmt: skip
def test_an_id_asks_for_its_parts(wanted: str, shown: str, expected: bool) -> None:
    one, other = JobId.parse(wanted), JobId.parse(shown)
    assert other is not None
    assert one.covers(other) is expected


@pytest.mark.parametrize("text", ["", "abc", "12a", "_3", "12.batch", "1 2", "٣"])
def test_what_is_no_job_id_is_none(text: str) -> None:
    assert JobId.parse(text) is None


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("node1", "node1"), ("n[001-004,7],login1", "n001"), ("a1,b2", "a1"), ("r[1]x", "r1x"), ("", "")],
)
def test_the_first_host_of_a_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def expand(pattern: str, job: str, raw: int | None = None, nodes: str | None = "n[01-02]") -> str | None:
    job_id = JobId.parse(job)
    assert job_id is not None
    return expand_pattern(pattern, job_id=job_id, raw_id=raw, name="my run", user="ada", node_list=nodes)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("logs/output_%j.log", "logs/output_1.log"),
        ("%x_%u_%A_%5j_%N_%t%n", "my run_ada_1_00001_n01_00"),
        ("a%%b%q", "a%b%q"),
        ("plain", "plain"),
        (r"no\%j", "no%j"),
        # As the real 22.05 wrote it for a job that is not an array.
        ("%a", "4294967294"),
    ],
)
def test_the_pattern_of_a_log_is_expanded_as_slurm_does(pattern: str, expected: str) -> None:
    assert expand(pattern, "1") == expected


def test_the_one_log_of_a_heterogeneous_job_is_that_of_its_first_component() -> None:
    assert [expand("%j.out", job, raw) for job, raw in (("113+0", 113), ("113+1", 114))] == ["113.out"] * 2
    assert [expand("%N.out", job) for job in ("113+0", "113+1")] == ["n01.out", None]


@pytest.mark.parametrize("pattern", ["100%", "%5q", "a%5", "a%5%j-%5%", "%b", "%r", "%3b"])
def test_a_log_that_each_release_names_in_its_own_way_is_not_known(pattern: str) -> None:
    assert expand(pattern, "1") is None


def test_the_log_of_tasks_that_wait_together_is_not_known_yet() -> None:
    assert expand("x_%A_%a", "4_[2-5%2]", raw=4) is None


def test_the_log_on_a_node_is_not_known_before_there_is_one() -> None:
    assert expand("%N.log", "1", nodes=None) is None


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("CANCELLED by 0", JobState.CANCELLED), ("CANCELLED+", JobState.CANCELLED),
        ("OUT_OF_ME+", JobState.UNKNOWN), ("CG", JobState.COMPLETING), ("OOM", JobState.OUT_OF_MEMORY),
        ("RESIZING", JobState.RUNNING), ("SPECIAL_EXIT", JobState.REQUEUED), ("completed", JobState.COMPLETED),
        ("", JobState.UNKNOWN), ("SOMETHING_NEW", JobState.UNKNOWN),
    ],
)  # fmt: skip
def test_states_are_read_into_one_vocabulary(text: str, state: JobState) -> None:
    assert JobState.parse(text) is state


def test_neither_unknown_nor_completing_is_an_end() -> None:
    assert not JobState.UNKNOWN.is_final
    assert not JobState.COMPLETING.is_final
    assert JobState.COMPLETED.is_final


def test_a_row_with_a_newline_in_its_name_is_one_row() -> None:
    text = f"1{SEPARATOR}1{SEPARATOR}two\nlines{SEPARATOR}\n2{SEPARATOR}2{SEPARATOR}b{SEPARATOR}\n"
    assert rows(text, 3) == ([["1", "1", "two\nlines"], ["2", "2", "b"]], [])


def test_a_spoilt_row_does_not_take_the_next_one_with_it() -> None:
    text = f"1{SEPARATOR}1{SEPARATOR}cut\n2{SEPARATOR}2{SEPARATOR}b{SEPARATOR}\n"
    good, bad = rows(text, 3)
    assert good == [["2", "2", "b"]]
    assert bad == [f"1{SEPARATOR}1{SEPARATOR}cut"]


def test_a_banner_is_no_row() -> None:
    good, bad = rows(f"Welcome to the cluster\n1{SEPARATOR}1{SEPARATOR}b{SEPARATOR}\n", 3)
    assert good == [["1", "1", "b"]]
    assert bad == ["Welcome to the cluster"]


@given(st.lists(st.text(st.characters(exclude_characters="\x1f", codec="utf-8"), max_size=20), max_size=5))
def test_any_name_without_the_separator_survives(jobs: list[str]) -> None:
    text = "".join(f"{i}{SEPARATOR}{i}{SEPARATOR}{name}{SEPARATOR}\n" for i, name in enumerate(jobs, 1))
    assert rows(text, 3) == ([[str(i), str(i), name] for i, name in enumerate(jobs, 1)], [])


@given(st.text())
def test_no_text_breaks_a_small_parser(text: str) -> None:
    for read in (seconds, moment, size, whole, known, read_gpus, JobId.parse, JobState.parse, first_host):
        read(text)  # type: ignore[operator]
    expand(text, "4_3", raw=7)
