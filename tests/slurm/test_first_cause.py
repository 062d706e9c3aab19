"""What failed first, in real jobs: by the script at its end, in the log's last lines, and in `slurmgpu status`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.first_cause import FAULTS, PROGRAM
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Submitted, Tool

pytestmark = pytest.mark.slurm

# Without torch, which takes each process a second: one rank fails, and the others would go on for long.
RANKS = """
import os, signal, sys, time
if os.environ["RANK"] == "5":
    time.sleep(1)
    if sys.argv[1] == "exception":
        {}["labels"]
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(7)
time.sleep(600)
"""
ON_RANKS = ("-N", "2", "--gpus-per-node", "4", "-t", "10")


@pytest.fixture
def tool(slurm: ThrowawaySlurm, tmp_path: Path) -> Tool:
    made = Tool(slurm, tmp_path)
    made.file("ranks.py", RANKS)
    return made


def cause_of_run(made: Submitted) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((made.run_dir / f"cause.{made.job_id}.json").read_text())
    return found


@pytest.mark.parametrize(
    ("how", "kind", "what"),
    [
        ("exception", "python-exception", "KeyError: 'labels' (ranks.py, line 6)"),
        ("killed", "killed", "the process was killed (SIGKILL)"),
        ("code", "exit-code", "the process ended itself with exit code 7"),
    ],
)
def test_the_first_failure_of_eight_ranks_on_two_nodes_is_named(
    tool: Tool, how: str, kind: str, what: str
) -> None:
    made = tool.submit(*ON_RANKS, "--launch", "srun", "--wait", "--", "python", "ranks.py", how)
    tool.slurm.wait_for(made.job_id)
    found = cause_of_run(made)
    assert (found["rank"], found["kind"]) == (5, kind), made.log
    assert found["host"] in made.log.partition("srun: error: ")[2].split(": ")[0]
    assert found["what"].startswith(what)
    last = [line for line in made.log.splitlines() if line.startswith("slurmgpu: f")]
    assert last[0].startswith(f"slurmgpu: first cause: rank 5 on {found['host']}: {what}")
    assert last[1].startswith("slurmgpu: fix: ")
    assert int((made.run_dir / f"exit_code.{made.job_id}").read_text()) == made.code != 0
    if how == "exception":
        shown = tool("status", str(made.job_id)).stdout
        assert f"rank 5 on {found['host']}: KeyError: 'labels' (ranks.py, line 6)" in shown


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
@pytest.mark.parametrize("fault", ["exception", "segfault", "hang"])
def test_the_rank_that_failed_first_is_named_in_a_launchers_noise(
    tool: Tool, launcher: str, fault: str
) -> None:
    tool.file("fail.py", PROGRAM)
    command = ("python", "fail.py", fault, "6")
    made = tool.submit(*ON_RANKS, "--launch", launcher, "--wait", "--", *command)
    tool.slurm.wait_for(made.job_id)
    found = cause_of_run(made)
    assert found["rank"] == 6, made.log
    assert found["kind"] in FAULTS[fault], made.log
