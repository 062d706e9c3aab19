"""What the ranks of a real job see of ``debug``, and which of them run under a profiler (a stand-in for nsys)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.slurm.test_resume import JOB, SLOW, wait_for_text
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Submitted, Tool
from tests.test_debug_and_profile import STAND_IN

pytestmark = pytest.mark.slurm

SHOW = """\
import json, os, resource
core = resource.getrlimit(resource.RLIMIT_CORE)
with open(f"{os.environ.get('RANK', '0')}.json", "w") as file:
    json.dump({**os.environ, "core": core[0] == core[1]}, file)
"""


@pytest.fixture
def tool(slurm: ThrowawaySlurm, tmp_path: Path) -> Tool:
    made = Tool(slurm, tmp_path)
    made.file("show.py", SHOW)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "nsys").symlink_to(STAND_IN)
    made.env["PATH"] = f"{programs}:{made.env['PATH']}"
    return made


def ended(tool: Tool, *arguments: str, state: str = "COMPLETED") -> Submitted:
    job = tool.submit("-t", "5", *arguments)
    assert tool.slurm.wait_for(job.job_id) == state, job.log
    return job


def reports(job: Submitted) -> list[str]:
    return sorted(path.name for path in (job.run_dir / "profiles").iterdir())


def test_the_ranks_see_what_debug_sets(tool: Tool) -> None:
    job = ended(
        tool, "--gpus", "2", "--launch", "srun", "--debug", "--set", "variables.NCCL_DEBUG=WARN",
        "--", "python3", "show.py",
    )  # fmt: skip
    for rank in range(2):
        seen = json.loads((tool.work / f"{rank}.json").read_text())
        assert (seen["NCCL_DEBUG"], seen["TORCH_DISTRIBUTED_DEBUG"]) == ("WARN", "DETAIL")
        assert (seen["TORCH_SHOW_CPP_STACKTRACES"], seen["PYTHONFAULTHANDLER"]) == ("1", "1")
        assert seen["NCCL_DEBUG_FILE"] == f"{job.run_dir}/debug/nccl-{job.job_id}.0-%h-%p.log"
        assert seen["core"]
    assert (job.run_dir / "debug").is_dir()
    assert "core dumps go to: " in job.log


@pytest.mark.parametrize(("ranks", "found"), [("one", [0]), ("all", [0, 1])])
def test_with_srun_each_rank_asked_for_writes_its_report(ranks: str, found: list[int], tool: Tool) -> None:
    profiled = ("--profile", "nsys", "--profile-ranks", ranks)
    job = ended(tool, "--gpus", "2", "--launch", "srun", *profiled, "--", "python3", "show.py")
    assert reports(job) == [f"{job.job_id}.0-rank{rank}.nsys-rep" for rank in found]
    assert (tool.work / "1.json").exists()


def test_a_command_that_starts_its_own_processes_is_profiled_as_a_whole(tool: Tool) -> None:
    tool.file("two.sh", "for rank in 0 1; do RANK=$rank python3 show.py & done; wait\n")
    job = ended(tool, "--gpus", "2", "--launch", "plain", "--profile", "nsys", "--", "bash", "two.sh")
    assert reports(job) == [f"{job.job_id}.0-rank0.nsys-rep"]
    assert (tool.work / "1.json").exists()


@pytest.mark.long
def test_a_profiled_training_that_is_cancelled_saves_and_goes_on_with_a_report_of_its_own(tool: Tool) -> None:
    tool.file("slow.py", SLOW)
    tool.file("job.yaml", JOB + "launch: srun\nprofile: {with: nsys, ranks: all}\n")
    first = tool.submit("job.yaml", "--gpus", "2")
    wait_for_text(first.run_dir / "logs" / f"{first.job_id}.out", "epoch 1/12")
    cancelled = tool("cancel", str(first.job_id))
    assert "continues from step" in cancelled.stderr, cancelled
    tool.wait_for_state(first.job_id, "CANCELLED")
    resumed = tool("resume", "--wait", str(first.job_id))
    assert resumed.returncode == 0, resumed.stderr
    assert "continues from step" in resumed.stderr
    jobs = (first.job_id, resumed.stdout.strip())
    assert reports(first) == [f"{job}.0-rank{rank}.nsys-rep" for job in jobs for rank in range(2)]
