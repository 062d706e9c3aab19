"""docs/features.md: what it says of slurmgpu has a test in each row, and the test is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "features.md"


def rows() -> list[list[str]]:
    """The cells of each row."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines if line[:9] != "| feature"]


@cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_each_row_names_tests_that_are_there() -> None:
    named = [
        (row[0], re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", one))
        for row in rows()
        for one in row[-1].split(", ")
    ]
    assert len({feature for feature, _ in named}) > 30
    assert [feature for feature, found in named if found is None] == []
    assert [found[0] for _, found in named if found and found[2] not in functions_of(found[1])] == []


def test_each_row_says_something_of_all_four() -> None:
    assert [row[0] for row in rows() if len(row) != 6 or not all(row)] == []
