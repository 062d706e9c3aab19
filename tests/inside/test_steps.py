"""Steps side by side and heterogeneous jobs, for real: each step in a world of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from tests.inside.test_launchers import FOUR, HOW, SCRIPTS, ranks
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Tool

Executed = Callable[..., None]


def logs_of(tool: Tool, job: str) -> dict[str, str]:
    """What each step of a job printed, once the job has COMPLETED."""
    shutil.copy(SCRIPTS / "ranks.py", tool.work)
    tool.file("job.yaml", job)
    sent = tool.submit("job.yaml")
    state = tool.slurm.wait_for(sent.job_id, timeout=300)
    logs = sorted((sent.run_dir / "logs").glob(f"{sent.job_id}-*.out"))
    found = {path.stem.partition("-")[2]: path.read_text() for path in logs}
    assert state == "COMPLETED", f"{state}\n{sent.log}\n{found}"
    return found


def test_two_steps_side_by_side_are_two_worlds(tool: Tool, slurm: ThrowawaySlurm, executed: Executed) -> None:
    logs = logs_of(
        tool,
        "resources: {nodes: 2, gpus_per_node: 4, cpus_per_task: 8, time: 5}\n"
        "steps:\n"
        "  one: {command: [python, ranks.py], nodes: 2, gpus: 4, launch: torchrun}\n"
        "  two: {command: [python, ranks.py], nodes: 2, gpus: 4, launch: srun}\n",
    )
    assert {name: ranks(log) for name, log in logs.items()} == {"one": FOUR, "two": FOUR}
    executed("launcher", "steps side by side", slurm.version, f"2 steps of {HOW} each")


def test_each_heterogeneous_part_is_a_world(tool: Tool, slurm: ThrowawaySlurm, executed: Executed) -> None:
    logs = logs_of(
        tool,
        "resources: {nodes: 2, cpus_per_task: 2, time: 5}\n"
        "components: [{resources: {nodes: 2, gpus_per_node: 2, cpus_per_gpu: 2}}]\n"
        "steps:\n"
        "  loader: {command: [python, ranks.py], launch: srun}\n"
        "  trainer: {command: [python, ranks.py], component: 1}\n",
    )
    assert ranks(logs["loader"]) == [f"rank {rank} of 2" for rank in range(2)]
    assert ranks(logs["trainer"]) == FOUR
    executed("launcher", "heterogeneous job", slurm.version, f"2 components; {HOW} in the second")
