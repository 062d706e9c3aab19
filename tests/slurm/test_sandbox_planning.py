"""A sandbox's own profile: slurmgpu plans in it as its Slurm would judge."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from slurmgpu.files.yaml import read_yaml
from tests.slurm.sandbox_user import User

pytestmark = pytest.mark.slurm


def yaml(text: str) -> dict[str, Any]:
    return dict(read_yaml(text, "a profile").data)


@pytest.mark.parametrize("accounting", [True, False])
def test_a_sandbox_plans_with_the_profile_that_discovery_writes_of_it(user: User, accounting: bool) -> None:
    user.do("up", *([] if accounting else ["--no-accounting"]))
    try:
        discovered = yaml(user.slurmgpu("cluster", "discover"))
        planned_with = yaml((user.folder() / "cluster.yaml").read_text())
        assert planned_with == discovered
        assert set(planned_with["partitions"]) == {"gpu", "debug", "preempt"}
        assert ("qos" in planned_with) is accounting
    finally:
        user.do("down", "default")


@pytest.mark.long
def test_memory_is_not_watched_and_up_says_so(user: User) -> None:
    said = user.do("up")
    try:
        assert "memory      is counted when a job starts, not watched" in said
        twice = ("-c", "import time; held = b'x' * 200_000_000; time.sleep(6); print(len(held))")
        assert user.ask("srun", "--mem=100M", sys.executable, *twice) == "200000000"
    finally:
        user.do("down", "default")
