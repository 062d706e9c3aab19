"""`plan --when` against the real Slurm: estimates, idle nodes and what the account has left, asked for politely."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Tool

pytestmark = pytest.mark.slurm

PROFILE = """
name: here
default_partition: gpu
partitions:
  gpu: {nodes: [{count: 4, gpus: 4, gpu_type: a100, cpus: 16, memory: 60G}], billing: {gpu: 2}}
  elsewhere: {nodes: [{count: 4, gpus: 4, gpu_type: a100, cpus: 16, memory: 60G}], billing: {gpu: 3}}
"""
JOB = ["--gpus", "2", "-t", "1:00:00", "--mem", "1G", "--cpus-per-gpu", "1", "--", "hostname"]


@pytest.fixture
def tool(slurm: ThrowawaySlurm, tmp_path: Path) -> Tool:
    made = Tool(slurm, tmp_path)
    (made.work / "here.yaml").write_text(PROFILE)
    return made


def test_each_partition_that_fits_is_asked_about(tool: Tool) -> None:
    shown = tool("plan", "--when", "--json", "--cluster", "./here.yaml", *JOB)
    assert shown.returncode == 0, shown.stderr
    document = json.loads(shown.stdout)
    first, second = document["when"]
    assert first["partition"] == "gpu"
    assert first["start"] is not None
    assert first["refused"] is None
    assert first["idle_nodes"] is not None
    assert (first["gpu_hours"], first["charge"]) == (2.0, 4.0)
    # The profile is wrong about the other one, and Slurm says so.
    assert second["partition"] == "elsewhere"
    assert "invalid partition" in second["refused"].lower()
    assert second["start"] is None
    assert document["balance"] == {"account": None, "left": {}, "why": "the job names no account"}
    assert tool.jobs_here() == [], "nothing is submitted"


def test_what_an_account_has_left_is_shown_where_slurm_knows_it(tool: Tool) -> None:
    shown = tool("plan", "--when", "--cluster", "./here.yaml", "-A", "nosuch", *JOB)
    assert "what account nosuch has left: unknown (" in shown.stdout
    assert "partition  idle nodes  would start" in shown.stdout


def test_a_site_can_forbid_estimates(tool: Tool, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "config.yaml").write_text("policy: {test_only: false}\n")
    for command in (["plan", "--when"], ["submit", "--dry-run"]):
        refused = tool(*command, "--cluster", "./here.yaml", *JOB)
        assert refused.returncode == 2
        assert "does not want `sbatch --test-only` to be asked" in refused.stderr
