"""The real Slurm that the tests in this folder share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from tests.slurm.releases import RELEASES, ReleaseUnavailable, first_on_path, root_for
from tests.slurm.throwaway import ThrowawaySlurm, missing_programs
from tests.slurm.tool import Tool

if TYPE_CHECKING:
    from tests.slurm.sandbox_user import User

# Blank-separated, such as "20.11 24.11", or "all": every test of this folder runs once on each, in place of the
# installed one.
_NAMED = os.environ.get("SLURMGPU_TEST_RELEASES", "").split()
_RAN: list[str] = []


@pytest.fixture(scope="session", autouse=True, params=list(RELEASES) if _NAMED == ["all"] else _NAMED or None)
def release(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The release of Slurm that comes first on PATH; None for the installed one, whatever it is.

    One that cannot be had skips the test; in CI (CI=true) or with SLURMGPU_REQUIRE_SLURM=1 it fails it.
    """
    name: str | None = getattr(request, "param", None)
    if name is None:
        yield None
        return
    try:
        root = root_for(name)
    except ReleaseUnavailable as error:
        absent(str(error))
    with first_on_path(root):
        yield name


@pytest.fixture(scope="session")
def slurm(release: str | None) -> Iterator[ThrowawaySlurm]:
    """A throwaway Slurm with 4 nodes of 4 pretend GPUs; without Slurm's programs as `need_slurm` says."""
    need_slurm()
    with ThrowawaySlurm() as running:
        _RAN.append(running.version)
        yield running


@pytest.fixture
def tool(slurm: ThrowawaySlurm, tmp_path: Path) -> Tool:
    """The command line against it, in a work folder of the test's own."""
    return Tool(slurm, tmp_path)


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    """Somebody with sandboxes of their own."""
    from tests.slurm.sandbox_user import a_user  # which needs need_slurm, below

    with a_user() as someone:
        yield someone


@pytest.fixture(scope="module")
def box(user: User) -> User:
    """The user, with the default sandbox up."""
    user.do("up")
    return user


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which Slurm it was."""
    if _RAN:
        terminalreporter.write_line(f"Slurm that ran: {', '.join(_RAN)}")


def need_slurm() -> None:
    """Skip the test without Slurm's programs; in CI (CI=true) or with SLURMGPU_REQUIRE_SLURM=1 fail it."""
    missing = missing_programs()
    if missing:
        absent(f"Slurm is not complete here (no {', '.join(missing)}); to install it: sudo .ci/install-slurm")


def absent(reason: str) -> NoReturn:
    """Skip the test for want of something; in CI (CI=true) or with SLURMGPU_REQUIRE_SLURM=1 fail it."""
    if os.environ.get("CI") == "true" or os.environ.get("SLURMGPU_REQUIRE_SLURM") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
