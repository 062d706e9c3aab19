"""Which jobs wait for which, as Slurm and job files write it."""

from __future__ import annotations

import pytest

from slurmgpu.jobs.view import After, read_dependency
from slurmgpu.web.related import connected, layers


@pytest.mark.parametrize(
    ("text", "jobs"),
    [
        ("", []), ("singleton", []), ("afterok:12", [("afterok", 12, "")]),
        ("afterok:12:13_4,afterany:14", [("afterok", 12, ""), ("afterok", 13, ""), ("afterany", 14, "")]),
        ("afterok:12(unfulfilled)?afternotok:13_*(failed)", [("afterok", 12, "unfulfilled"), ("afternotok", 13, "failed")]),
        ("after:14+5(unfulfilled),singleton(unfulfilled)", [("after", 14, "unfulfilled")]),
        ("afterok:,afterok:x:12;rm,expand:12,:::,(", []), ("afterok:_1", [("afterok", None, "")]),
        ("afterok:" + "9" * 19, [("afterok", None, "")]),
    ],
)  # fmt: skip
def test_a_dependency_names_the_jobs_before(text: str, jobs: list[tuple[str, int | None, str]]) -> None:
    found = read_dependency(text)
    assert [(one.kind, one.number, one.how) for one in found] == jobs


def test_an_id_keeps_its_tasks_and_minutes() -> None:
    assert read_dependency("after:14+5,aftercorr:13_2") == [
        After("after", "14+5"),
        After("aftercorr", "13_2"),
    ]


BEFORE = {2: {1}, 3: {1}, 4: {2, 3}, 6: {5}, 7: {99}}


def test_a_job_belongs_to_all_before_and_behind_it_and_to_no_others() -> None:
    assert connected(3, BEFORE) == {1, 2, 3, 4}
    assert connected(5, BEFORE) == {5, 6}
    assert connected(8, BEFORE) == {8}


def test_each_job_is_drawn_behind_all_that_it_waits_for() -> None:
    assert layers({1, 2, 3, 4}, BEFORE) == [[1], [2, 3], [4]]
    assert layers({7}, BEFORE) == [[7]]
    assert [sorted(column) for column in layers({1, 2}, {1: {2}, 2: {1}})] == [[1, 2]]
