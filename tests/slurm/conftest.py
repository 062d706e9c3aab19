"""The real Slurm that the tests in this folder share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NoReturn

import pytest

from tests.slurm.release_slurm import ReleaseSlurm
from tests.slurm.releases import ReleaseUnavailable
from tests.slurm.throwaway import ThrowawaySlurm, missing_programs

# Blank-separated, such as "20.11 24.11": every test that needs Slurm runs once on each, in place of the
# installed one.
RELEASES = os.environ.get("SLURMGPU_TEST_RELEASES", "").split() or None


@pytest.fixture(scope="session", params=RELEASES)
def slurm(request: pytest.FixtureRequest) -> Iterator[ThrowawaySlurm]:
    """A throwaway Slurm with 4 nodes of 4 pretend GPUs; without Slurm's programs the test is skipped.

    In CI (CI=true) or with SLURMGPU_REQUIRE_SLURM=1 their absence is a failure.
    """
    with _start(getattr(request, "param", None)) as running:
        yield running


def _start(release: str | None) -> ThrowawaySlurm:
    if release:
        try:
            return ReleaseSlurm(release)
        except ReleaseUnavailable as error:
            _absent(str(error))
    need_slurm()
    return ThrowawaySlurm()


def need_slurm() -> None:
    """Skip the test without Slurm's programs; in CI (CI=true) or with SLURMGPU_REQUIRE_SLURM=1 fail it."""
    missing = missing_programs()
    if missing:
        _absent(
            f"Slurm is not complete here (no {', '.join(missing)}); to install it: sudo .ci/install-slurm"
        )


def _absent(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true" or os.environ.get("SLURMGPU_REQUIRE_SLURM") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
