"""Data on a node's own disk, and results that come back from there, however the job ends."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.sandbox_user import wait_until
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Submitted, Tool

pytestmark = pytest.mark.slurm

WORK = 'cat "$SLURMGPU_STAGE/data/x" && mkdir "$SLURMGPU_STAGE/results" && echo made >"$SLURMGPU_STAGE/results/y"; '


@pytest.fixture
def tool(slurm: ThrowawaySlurm, tmp_path: Path) -> Tool:
    """A work folder with data, and a node's own disk that lies beside it."""
    tool = Tool(slurm, tmp_path)
    tool.file("data/x", "the data\n")
    (tmp_path / "disk").mkdir()
    tool.env["TMPDIR"] = str(tmp_path / "disk")
    return tool


def job(tool: Tool, end: str, stage: dict[str, Any] | None = None, **resources: Any) -> str:
    """A job file whose command works in the staging folder, and then does ``end``."""
    staged = stage or {"in": ["data"], "out": [{"from": "results", "to": "kept"}]}
    asked = {"gpus_per_node": 1, **resources}
    text = json.dumps(
        {"stage": staged, "command": ["bash", "-c", WORK + end], "resources": asked, "launch": "srun"}
    )
    return str(tool.file("job.yaml", text))


def left(tool: Tool) -> tuple[list[str], list[str]]:
    """What has been brought back, and what is left on the nodes' disk."""
    kept = sorted(str(path.relative_to(tool.work)) for path in (tool.work / "kept").rglob("*"))
    return kept, [path.name for path in Path(tool.env["TMPDIR"]).iterdir()]


def submitted(tool: Tool, file: str) -> Submitted:
    return tool.submit(file, "--wait")


def test_data_is_there_and_results_come_back(tool: Tool) -> None:
    done = submitted(tool, job(tool, "echo $SLURMGPU_STAGE"))
    assert done.code == 0
    # With a number that nobody can know beforehand: who made a folder of this name could keep the job from it.
    assert re.fullmatch(rf"the data\n{tool.env['TMPDIR']}/slurmgpu-{done.job_id}-\d+\n", done.log)
    assert left(tool) == (["kept/results", "kept/results/y"], [])
    assert (done.run_dir / f"exit_code.{done.job_id}").read_text() == "0\n"


def test_what_a_failed_command_leaves_has_a_name_of_its_own(tool: Tool) -> None:
    tool.file("kept/results/earlier", "complete\n")
    done = submitted(tool, job(tool, "exit 7"))
    assert done.code == 7
    partial = f"kept/results.partial-{done.job_id}"
    assert left(tool) == (["kept/results", partial, f"{partial}/y", "kept/results/earlier"], [])
    assert f"what it left of results is {partial}" in done.log


def test_complete_results_take_the_place_of_earlier_ones_which_are_kept(tool: Tool) -> None:
    tool.file("kept/results/earlier", "complete\n")
    done = submitted(tool, job(tool, "true"))
    before = next((tool.work / "kept").glob("results.before-*"))
    assert (before / "earlier").exists()
    assert (tool.work / "kept/results/y").read_text() == "made\n"
    assert f"slurmgpu: the earlier kept/results is kept/{before.name} now" in done.log


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("sleep 300", id="ends"),
        pytest.param("trap '' TERM; while :; do sleep 1; done", id="deaf", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_cancelled_job_still_brings_its_results_back(tool: Tool, end: str, nodes: int) -> None:
    run = tool.submit(job(tool, f"echo at work; {end}", nodes=nodes))
    run.wait_for_log("at work", nodes)
    subprocess.run(["scancel", str(run.job_id)], env=tool.env, check=True)
    tool.wait_for_state(run.job_id, "CANCELLED")
    run.wait_for_exit_code()
    names = [f".n{node}" for node in (1, 2)] if nodes > 1 else [""]
    kept, on_disk = left(tool)
    partial = [path for path in kept if path.endswith("/y")]
    assert len(partial) == len(names), (kept, run.log)
    assert all(f".partial-{run.job_id}" in path for path in partial)
    assert on_disk == []


SLOW_COPY = """\
#!/bin/bash
# cp -RL, file by file, as on a slow file system
[ "$1" = -RL ] || exec /bin/cp "$@"
mkdir -p "$3/$2"
for file in "$2"/*; do /bin/cp "$file" "$3/$2/"; sleep 0.5; done
"""


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_job_that_ends_while_its_data_is_copied_brings_nothing_back(tool: Tool, nodes: int) -> None:
    for number in range(60):
        tool.file(f"data/{number}", "data\n")
    tool.file("programs/cp", SLOW_COPY).chmod(0o755)
    tool.env["PATH"] = f"{tool.work}/programs:{tool.env['PATH']}"
    run = tool.submit(job(tool, "true", {"in": ["data"], "out": ["data"]}, nodes=nodes))
    wait_until(lambda: len(list(Path(tool.env["TMPDIR"]).rglob("data/*"))) >= 4 * nodes)
    subprocess.run(["scancel", str(run.job_id)], env=tool.env, check=True)
    tool.wait_for_state(run.job_id, "CANCELLED")
    code = run.wait_for_exit_code()
    assert left(tool)[1] == [], run.log
    assert [path.name for path in tool.work.glob("data*")] == ["data"]
    assert len(list((tool.work / "data").iterdir())) == 61
    assert code == 143


def test_tasks_of_an_array_bring_back_each_its_own(tool: Tool) -> None:
    file = job(tool, 'echo "$SLURM_ARRAY_TASK_ID" >"$SLURMGPU_STAGE/results/$SLURM_ARRAY_TASK_ID"')
    done = tool.submit(file, "--array", "1-4", "--wait")
    assert done.code == 0, done.stderr
    kept, on_disk = left(tool)
    assert [path for path in kept if path.count("/") == 1] == [f"kept/results.{task}" for task in range(1, 5)]
    assert all(f"kept/results.{task}/{task}" in kept for task in range(1, 5))
    assert on_disk == []


def test_each_of_two_nodes_has_its_own_copy_and_its_own_results(tool: Tool) -> None:
    done = submitted(tool, job(tool, 'echo "$SLURMGPU_STAGE" | sed s,.*/,,', nodes=2))
    assert done.code == 0, done.log
    lines = done.log.splitlines()
    nodes = sorted(line for line in lines if line != "the data")
    assert (lines.count("the data"), len(set(nodes))) == (2, 2), done.log
    assert left(tool) == (sorted(f"kept/results.{node}{end}" for node in nodes for end in ("", "/y")), [])


@pytest.mark.parametrize("nodes", [1, 2])
def test_data_that_is_missing_ends_the_job_before_its_command(tool: Tool, nodes: int) -> None:
    done = tool.submit(job(tool, "true", {"in": ["$HOME/no-such"]}, nodes=nodes), "--wait")
    assert done.code == 1
    assert "no-such" in done.log
    assert "\nslurmgpu: the data could not be copied to " in done.log
    assert left(tool) == ([], [])


@pytest.mark.parametrize("end", [".tar", ".tar.gz"])
def test_an_archive_is_unpacked_where_it_is_needed(tool: Tool, end: str) -> None:
    subprocess.run(["tar", "-caf", f"set{end}", "data"], cwd=tool.work, check=True)
    done = submitted(tool, job(tool, "true", {"in": [{"from": f"set{end}", "unpack": True}]}))
    assert (done.code, done.log) == (0, "the data\n")
