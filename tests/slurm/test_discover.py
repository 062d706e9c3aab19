"""Discovery against a real Slurm: what is declared is discovered."""

from __future__ import annotations

import getpass
import grp
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmgpu.clusters.discover import discover
from slurmgpu.sandbox.programs import slurm_release, slurm_version
from slurmgpu.slurm import Slurm
from tests.slurm.conftest import need_slurm
from tests.slurm.declared import (
    DeclaredSlurm,
    declared_profile,
    declared_slurm,
    differences,
    discovered_profile,
    reserve,
)
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Tool

pytestmark = pytest.mark.slurm
GROUP = grp.getgrgid(os.getgid()).gr_name


@pytest.fixture(scope="module")
def declared(release: str | None) -> Iterator[DeclaredSlurm]:
    need_slurm()
    with declared_slurm(slurm_release(slurm_version()), getpass.getuser(), GROUP) as running:
        reserve(running, "cpu03")
        yield running


def test_what_is_declared_is_discovered_field_by_field(declared: DeclaredSlurm) -> None:
    """A hundred nodes and more, with at most ten commands."""
    slurm = Slurm(env=declared.env)
    discovered = discover(slurm, environ={})
    assert discovered.calls == len(slurm.asked) <= 10
    found = discovered_profile(discovered)
    profile = declared_profile(slurm_release(slurm_version()), group=GROUP)
    assert differences(found, profile) == []


def test_a_saved_profile_is_planned_on_and_follows_slurm_without_losing_a_hand_written_line(
    slurm: ThrowawaySlurm, tmp_path: Path
) -> None:
    tool = Tool(slurm, tmp_path)
    saved = tool("cluster", "discover", "--save", "--name", "here")
    assert (saved.returncode, saved.stdout) == (0, "")
    assert "asked Slurm 8 times in " in saved.stderr
    assert tool("cluster", "use", "here").returncode == 0
    plan = tool("plan", "--gpus", "2", "-p", "gpu", "-t", "10:00", "--json", "--", "true")
    assert json.loads(plan.stdout)["cluster"] == "here", plan
    path = tmp_path / "config" / "slurmgpu" / "clusters" / "here.yaml"
    lines = path.read_text().replace("  gpus: gres # guessed", "  gpus: gpus-per-node # as the site says")
    path.write_text(lines + "environments:\n  torch: {modules: {load: [pytorch]}} # mine\n")
    before = slurm.run(["scontrol", "update", "partition=debug", "maxtime=00:20:00"])
    try:
        done = tool("cluster", "refresh")
    finally:
        slurm.run(["scontrol", "update", "partition=debug", "maxtime=00:30:00"])
    assert before.returncode == 0
    assert done.stdout == 'partition debug: limits.max_time "00:30:00" -> "00:20:00"\n', done
    assert "  gpus: gpus-per-node # as the site says\n" in path.read_text()
    assert path.read_text().endswith("environments:\n  torch: {modules: {load: [pytorch]}} # mine\n")
    again = tool("cluster", "refresh", "--json")
    assert [change["after"] for change in json.loads(again.stdout)["changes"]] == ["00:30:00"]
