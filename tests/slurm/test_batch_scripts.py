"""A batch script that is handed to slurmgpu is the same job to Slurm as one that is handed to sbatch."""

from __future__ import annotations

import re

import pytest

from tests.slurm.test_import import differing
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Tool

SCRIPT = """#!/bin/bash
#SBATCH -p gpu -N 2 --tasks-per-node=2   # four in all
#SBATCH --gres=gpu:a100:2
#SBATCH --mem=8G --time=00:10:00
#SBATCH --comment="a #1" --output=log-%j.txt
echo "$SLURM_JOB_NAME in $PWD with ($*) and $SLURM_NTASKS tasks"
"""
_OWN = re.compile(
    r"\b(JobId|SubmitTime|EligibleTime|AccrueTime|StartTime|EndTime|Deadline|LastSchedEval|Command|Priority|SubmitLine|AllocNode:Sid)"
    r"=\S*.*?(?=\s\S+=|$)",
    re.MULTILINE,
)


def shown(slurm: ThrowawaySlurm, job_id: str) -> list[str]:
    record = slurm.run(["scontrol", "show", "job", job_id]).stdout.replace(job_id, "ID")
    return [_OWN.sub(r"\1=", record)]


@pytest.mark.parametrize(
    "options", [[], ["--mem", "4G", "-J", "mine", "--time", "00:05:00", "--nodes", "1", "--comment", "b"]]
)
def test_it_is_the_job_that_sbatch_makes_of_it(slurm: ThrowawaySlurm, tool: Tool, options: list[str]) -> None:
    tool.file("train.slurm", SCRIPT)
    plain = slurm.run(["sbatch", "--parsable", "--hold", *options, "train.slurm"], cwd=tool.work)
    ours = tool("submit", "--hold", "train.slurm", *options)
    assert ours.returncode == 0, ours.stderr
    ids = [plain.stdout.strip(), ours.stdout.strip()]
    first, second = (shown(slurm, one) for one in ids)
    slurm.run(["scancel", *ids])
    assert "JobName=" + ("mine" if options else "train.slurm") in second[0]
    assert differing(first, second) == []


def test_it_runs_where_it_was_called_with_its_arguments(slurm: ThrowawaySlurm, tool: Tool) -> None:
    tool.file("scripts/train.slurm", SCRIPT)
    job = tool.submit("--", "scripts/train.slurm", "--lr", "0.1")
    assert slurm.wait_for(job.job_id) == "COMPLETED"
    log = tool.work / f"log-{job.job_id}.txt"
    assert log.read_text() == f"train.slurm in {tool.work} with (--lr 0.1) and 4 tasks\n"


def test_what_slurm_would_take_and_never_run_is_refused(slurm: ThrowawaySlurm, tool: Tool) -> None:
    def sent(wrapped: str, *options: str) -> str:
        words = ["sbatch", "--parsable", "-pgpu", "-t10", "--wrap", wrapped, *options]
        return slurm.run(words, cwd=tool.work.parent).stdout.strip()

    failed = sent("exit 3")
    assert slurm.wait_for(failed, complete_row=True) == "FAILED"
    options = [f"dependency=afterok:{failed}", "input=nosuch.txt", "deadline=now+5minutes"]
    lost = [sent("true", f"--{option}") for option in options]
    assert slurm.wait_for(lost[1]) == "FAILED"
    for option, why in zip(options, ("would never start", "is not there", "limit is 00:10:00"), strict=True):
        own = f"--{option}" if "dependency" in option else f"--sbatch={option}"
        assert why in tool.submit_refused("--gpus", "1", "-t", "10", own, "--", "true")
    slurm.run(["scancel", *lost])
