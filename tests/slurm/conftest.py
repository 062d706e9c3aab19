"""The real Slurm that the tests in this folder share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.slurm.throwaway import ThrowawaySlurm, missing_programs


def need_slurm() -> None:
    """Skip the test without Slurm's programs; in CI (CI=true) or with SLURMGPU_REQUIRE_SLURM=1 fail it."""
    missing = missing_programs()
    if missing:
        reason = (
            f"Slurm is not complete here (no {', '.join(missing)}); to install it: sudo .ci/install-slurm"
        )
        if os.environ.get("CI") == "true" or os.environ.get("SLURMGPU_REQUIRE_SLURM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def slurm() -> Iterator[ThrowawaySlurm]:
    """A throwaway Slurm with 4 nodes of 4 pretend GPUs; without Slurm's programs the test is skipped."""
    need_slurm()
    with ThrowawaySlurm() as running:
        yield running
