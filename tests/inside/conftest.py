"""What the tests in this folder share: a real Slurm, and the table of what has run for real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.inside.table import Row, write
from tests.slurm.conftest import pytest_terminal_summary, release, slurm
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Tool

__all__ = ["pytest_terminal_summary", "release", "slurm"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of this folder needs a real Slurm, and programs that few machines have."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.inside)
            item.add_marker(pytest.mark.slurm)


@pytest.fixture
def tool(slurm: ThrowawaySlurm, tmp_path: Path) -> Tool:
    """The command line, in an empty work folder."""
    return Tool(slurm, tmp_path)


@pytest.fixture
def executed(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """To be called at a test's end: what has run, in which version, and how; a row of docs/reference/what-has-run.md."""
    rows: list[Row] = []

    def done(kind: str, form: str, version: str, how: str, *, stand_in: bool = False) -> None:
        rows.append(Row(kind, form, version, how, stand_in))

    yield done
    write(rows, request.getfixturevalue("slurm").version)
