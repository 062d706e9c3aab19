"""why and cluster gpus as they are typed, on the Slurm that the other tests share; the reasons are in test_why.py."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Tool

pytestmark = pytest.mark.slurm


@pytest.fixture
def tool(slurm: ThrowawaySlurm, tmp_path: Path) -> Tool:
    made = Tool(slurm, tmp_path)
    made.env["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    return made


def shown(tool: Tool, job: str, text: str) -> str:
    """Wait until ``why`` shows the text of a job; all that it shows then."""
    deadline = time.monotonic() + 180
    while text not in (found := tool("why", job)).stdout:
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
    return found.stdout


def test_a_job_is_explained_by_id_by_name_and_by_its_run_directory(slurm: ThrowawaySlurm, tool: Tool) -> None:
    slurm.wait_until_idle()
    (tool.work / "sleep.sh").write_text("#!/bin/bash\nsleep 600\n")
    holder = slurm.run(
        ["sbatch", "--parsable", "-o", "/dev/null", "-w", "node1", "--gres=gpu:3", "-t", "30", "sleep.sh"],
        cwd=tool.work,
    ).stdout.strip()
    job = tool.submit(
        "--nodes", "4", "--gpus-per-node", "4", "-t", "10", "--mem", "1G", "-J", "big", "--", "sleep", "600"
    )
    try:
        deadline = time.monotonic() + 180
        while True:
            done = tool("why", str(job.run_dir), "--json")
            assert done.returncode == 0, done
            (one,) = json.loads(done.stdout)["jobs"]
            facts = {fact["what"]: fact for fact in one["facts"]}
            if one["job"]["reason"] == "Resources" and facts.get("room", {}).get("free") == 13:
                break
            assert time.monotonic() < deadline, one
            time.sleep(0.5)
        assert one["verdict"] == "waits"
        assert (facts["request"]["gpus"], facts["request"]["nodes"]) == (16, 4)
        assert (facts["room"]["total"], facts["room"]["block"]) == (16, 4)
        assert (facts["next"]["job_id"], facts["next"]["gpus"]) == (holder, 3)
        assert facts["queue"]["ahead"] == 0
        # While Slurm looks anew, a node may be planned for the job, or the reason may be another one for a moment.
        by_name = shown(tool, "big", f"job {job.job_id} (big) is waiting; Slurm's reason: Resources\n")
        assert "  - 13 " in by_name
        # Slurm takes its estimate back while it looks anew, and has the next one a moment later.
        shown(tool, str(job.job_id), "your last look")
        (a100,) = json.loads(tool("cluster", "gpus", "--json").stdout)["types"]
        # Those on the other nodes may be kept for the job that waits (22.05: IDLE+PLANNED).
        assert (a100["total"], a100["used"], a100["free"] + a100["away"].get("planned", 0)) == (16, 3, 13)
    finally:
        slurm.run(["scancel", str(job.job_id)])
        slurm.wait_for(job.job_id)  # else it could start on what the other gives back
        slurm.run(["scancel", holder])
    # Slurm is not asked again within a few seconds, and scancel tells nobody.
    shown(
        tool, str(job.job_id), f"job {job.job_id} (big) was cancelled\n  cancelled by you, before it started"
    )
