"""The table of the releases of torch and Python that were run says what was found."""

from __future__ import annotations

import json

from .training.matrix import PAGE, RESULTS, page_with, table


def test_the_table_in_the_docs_is_that_of_the_results() -> None:
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    page = PAGE.read_text(encoding="utf-8")
    assert page_with(page, rows) == page
    assert table(rows) in page


def test_what_failed_is_named_and_what_could_not_be_had_says_why() -> None:
    ran = {
        "torch": "2.6.0+cu124", "python": "3.12.1", "passed": 9, "failed": 1, "left_out": 2, "when": "2026-11-25",
    }  # fmt: skip
    told = table(
        [{**ran, "failures": ["test_a.py::test_b"]}, {"torch": "2.1.0", "python": "3.14", "why": "no Python"}]
    )
    assert "| 2.6.0 | 3.12.1 | 9 | 1: `test_a.py::test_b` | 2 | 2026-11-25 |" in told
    assert "| 2.1.0 | 3.14 | | | | not run: no Python |" in told
