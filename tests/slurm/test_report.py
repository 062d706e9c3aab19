"""`slurmgpu report` on real jobs: what they used is told as it was, and what it proposes runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import Enforcing, Loader, Toy, begin_training, end_training, submit, tried
from tests.slurm.conftest import need_slurm
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Submitted, Tool

pytestmark = pytest.mark.slurm


@pytest.fixture
def tool(slurm: ThrowawaySlurm, tmp_path: Path) -> Tool:
    return Tool(slurm, tmp_path)


def reported(tool: Tool, *words: str) -> dict[str, Any]:
    answer = tool("report", *words, "--json")
    assert answer.returncode == 0, answer.stderr
    (job,) = json.loads(answer.stdout)["jobs"]
    return dict(job)


JOB = """\
name: short   # a test
resources:
  gpus: 1
  memory: 4G  # plenty
  time: 30
command: [sleep, "3"]
"""


def test_a_report_finds_the_run_and_its_job_file_and_proposes_nothing_from_seconds(tool: Tool) -> None:
    (tool.work / "job.yaml").write_text(JOB)
    done = tool.submit("job.yaml", "--wait")
    tool.slurm.wait_for(done.job_id, complete_row=True)
    record = json.loads((done.run_dir / "run.json").read_text())
    assert record["job_file"] == str(tool.work / "job.yaml")
    for word in (str(done.job_id), str(done.run_dir)):
        job = reported(tool, word)
        assert (job["state"], job["run_dir"], job["next"]) == ("COMPLETED", str(done.run_dir), [])
        assert job["asked"]["memory_per_node"] == 4 << 30
    applied = tool("report", str(done.job_id), "--apply")
    assert applied.returncode == 0, applied.stderr
    assert "nothing is proposed, and nothing is changed" in applied.stderr
    assert (tool.work / "job.yaml").read_text() == JOB
    week = tool("report", "--since", "1h", "--account", "mygroup", "--name", "short")
    assert week.returncode == 0
    assert "GPU-hours" in week.stdout
    check_without_accounting(tool, done)


def check_without_accounting(tool: Tool, done: Submitted) -> None:
    """Where Slurm keeps no accounting, what the queue and the samples tell is told, and the rest is said to be unknown."""
    conf = Path(tool.env["SLURM_CONF"]).read_text()
    kept = [line for line in conf.splitlines() if not line.startswith(("AccountingStorage", "JobAcctGather"))]
    (tool.work / "slurm.conf").write_text(
        "\n".join([*kept, "AccountingStorageType=accounting_storage/none", ""])
    )
    nowhere = {"SLURM_CONF": str(tool.work / "slurm.conf")}
    week = tool("report", "--since", "1h", env=nowhere)
    assert week.returncode == 3, week
    assert "no slurmdbd" in week.stderr
    assert "Nothing is known of jobs" in week.stderr
    one = tool("report", str(done.job_id), "--json", env=nowhere)
    assert one.returncode == 0, one
    (job,) = json.loads(one.stdout)["jobs"]
    assert (job["state"], job["run_dir"], job["next"]) == ("COMPLETED", str(done.run_dir), [])
    assert job["used"]["memory_peak_source"] == "samples"
    assert (job["used"]["cpu_seconds"], job["energy"]) == (None, None)
    assert any(doubt.startswith("CPUs: accounting has no steps of it") for doubt in job["not_known"]), job


@pytest.mark.long
def test_a_job_that_ran_out_of_time_asks_for_more_in_its_own_file(tool: Tool) -> None:
    text = JOB.replace("time: 30", "time: 1  # a try").replace('"3"', '"300"')
    (tool.work / "job.yaml").write_text(text)
    done = tool.submit("job.yaml")
    tool.slurm.wait_for(done.job_id, timeout=400, complete_row=True)
    (tool.work / "changed.yaml").write_text(text.replace("time: 1 ", "time: 3 "))
    refused = tool("report", str(done.job_id), "--apply", "changed.yaml")
    assert refused.returncode == 2
    assert "resources.time was 00:01:00, and is 00:03:00 there" in refused.stderr
    (tool.work / "other.yaml").write_text(text.replace("sleep", "true"))
    assert "its command is another one" in tool("report", str(done.job_id), "--apply", "other.yaml").stderr
    applied = tool("report", str(done.job_id), "--apply")
    assert applied.returncode == 0, applied.stderr
    assert (tool.work / "job.yaml").read_text() == text.replace("time: 1 ", 'time: "00:02:00" ')
    assert '+  time: "00:02:00"  # a try' in applied.stdout


@pytest.mark.long
def test_known_loads_are_told_within_5_percent_and_what_is_proposed_runs(tmp_path: Path) -> None:
    need_slurm()
    toys = [Toy(300, 0, 66), Toy(400, 8, 70), Toy(350, 6, 66, srun=True), Toy(260, 0, 66, tasks=2)]
    with Enforcing() as running:
        trainer = Tool(running, tmp_path)
        loaders = [
            (one, begin_training(trainer, one))
            for one in (Loader(0.038, 0.062), Loader(0.06, 0.04, waits=True))
        ]
        for one in tried(running, tmp_path, toys, at_once=4):
            assert (one["state"], one["state_again"]) == ("COMPLETED", "COMPLETED"), one
            assert one["memory_reported"] == pytest.approx(one["memory_true"], rel=0.05), one
            if one["cpu_true"] >= 5:
                assert one["cpu_reported"] == pytest.approx(one["cpu_true"], rel=0.05), one
            if one["memory_exact"]:
                assert 1.0 <= one["memory_proposed_over_need_and_head_room"] <= 1.1, one
        for loader, job in loaders:
            found = end_training(trainer, loader, job)
            assert found["wait_reported"] == pytest.approx(found["wait_true"], rel=0.05, abs=0.02), found
            if loader.waits:
                assert found["cpus_proposed"] == [], found
                ((_, _, why),) = found["workers_proposed"]
                assert "the loader waits" in why, found
        little = submit(running, tmp_path, Toy(400, 0, 60), ["--mem=200M", "--time=10"])
        assert running.wait_for(little, timeout=400) != "COMPLETED"
