"""Heterogeneous jobs: what Slurm hands down from one component to the next, and what it counts together."""

from __future__ import annotations

import re

import pytest

from tests.slurm.sandbox_user import wait_until
from tests.slurm.tool import Tool

pytestmark = pytest.mark.slurm


def test_a_component_without_memory_has_that_of_the_one_before_it_and_the_plan_says_so(tool: Tool) -> None:
    tool.file(
        "box.yaml",
        "name: box\npartitions: {gpu: {nodes: [{count: 4, gpus: 4, gpu_type: a100, cpus: 16}]}}\n",
    )
    first = "resources: {partition: gpu, nodes: 1, time: 5, memory: 300M}\n"
    job = "script: 'sleep 1'\ncomponents: [{resources: {partition: gpu, nodes: 1}}]\n"
    tool.file("job.yaml", first + job)
    said = tool("plan", "job.yaml", "--cluster", "./box.yaml").stdout
    assert "the component before it asks for memory, and Slurm would hand that down" in said
    done = tool.submit("job.yaml", "--cluster", "./box.yaml")
    script = (done.run_dir / "script.sbatch").read_text()
    assert script.count("#SBATCH --mem=300M") == 2
    # What Slurm does with a script that states it for the first component alone:
    again = tool.file(
        "again.sh", "hetjob\n".join(script.replace("#SBATCH --mem=300M\n", "", 2).split("hetjob\n"))
    )
    first_line, rest = again.read_text().split("\n", 1)
    again.write_text(f"{first_line}\n#SBATCH --mem=300M\n{rest}")
    job_id = tool.slurm.run(["sbatch", "-H", "--parsable", str(again)]).stdout.strip()
    shown = tool.slurm.run(["scontrol", "show", "job", job_id]).stdout
    assert re.findall(r"MinMemoryNode=(\S+)", shown) == ["300M", "300M"], shown
    tool.slurm.run(["scancel", job_id])


def test_slurm_hands_time_and_excluded_nodes_down_to_the_next_component(tool: Tool) -> None:
    text = "#!/bin/bash\n#SBATCH -n1 -t 7 --mem=300M --exclude=node4\n#SBATCH hetjob\n#SBATCH -n1\nsleep 1\n"
    script = tool.file("handed.sh", text)
    job_id = tool.slurm.run(["sbatch", "-H", "--parsable", str(script)]).stdout.strip()
    shown = tool.slurm.run(["scontrol", "show", "job", job_id]).stdout
    assert re.findall(r"TimeLimit=(\S+)", shown) == ["00:07:00", "00:07:00"], shown
    assert re.findall(r"ExcNodeList=(\S+)", shown) == ["node4", "node4"], shown
    tool.slurm.run(["scancel", job_id])


def test_what_a_user_may_have_counts_for_all_components_together(tool: Tool) -> None:
    user = tool.slurm.run(["id", "-un"]).stdout.strip()
    for words in (
        "add qos fewgpus set MaxTRESPerUser=gres/gpu=4",
        f"modify user {user} set qos+=fewgpus",
    ):
        tool.slurm.run(["sacctmgr", "-i", *words.split()]).check_returncode()
    tool.file(
        "box.yaml",
        "name: box\nqos: {fewgpus: {limits: {per_user: {gpus: 4}}}}\n"
        "partitions: {gpu: {nodes: [{count: 4, gpus: 4, gpu_type: a100, cpus: 16, memory: 60G}]}}\n",
    )
    part = "partition: gpu, qos: fewgpus, nodes: 1, time: 5, memory: 300M, gpus_per_node: 3"
    tool.file(
        "job.yaml",
        f"script: 'sleep 1'\nresources: {{{part}}}\ncomponents: [{{resources: {{{part}}}}}]\n",
    )
    refused = tool.submit_refused("job.yaml", "--cluster", "./box.yaml")
    assert "QOS 'fewgpus' allows at most 4 GPUs a user, 6 are asked for by the components together" in refused
    done = tool("submit", "job.yaml", "--cluster", "./box.yaml", "--force")
    if done.returncode:  # 26.05 refuses it at once
        assert "Job violates accounting/QOS policy" in done.stderr
        return
    job_id = done.stdout.strip()

    def reasons() -> str:
        return tool.slurm.run(["squeue", "-h", "-j", job_id, "-o", "%r"]).stdout

    wait_until(lambda: "QOSMaxGRESPerUser" in reasons(), 120, seen=reasons)
    tool.slurm.run(["scancel", job_id])
