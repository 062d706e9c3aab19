"""`slurmgpu checkpoint replay --on` on the real Slurm: an interval is trained again on the nodes that were named."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from slurmgpu.runs.replay_verdict import starts
from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import ROOT, Submitted, Tool

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(600)]

JOB = f"""\
name: flipped
resources: {{nodes: 2, gpus: 2, time: "10"}}
train: {{task: "{ROOT}/tests/training/flipped.py:Flipped", batch_size: 10, max_steps: 12, log_every: 4, workers: 0,
  checksum_steps: 1, checkpoint_steps: 5, checkpoint_share: null, keep: 9, sanity: false}}
"""


class Runs(NamedTuple):
    """Two runs of the same training, the second with a flipped bit in step 7, on rank 1."""

    tool: Tool
    clean: Submitted
    flipped: Submitted


@pytest.fixture(scope="module")
def runs(slurm: ThrowawaySlurm, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    tool = Tool(slurm, tmp_path_factory.mktemp("replay"))
    tool.file("job.yaml", JOB)
    flips = ("", "gradient:7:1:3:20")
    with ThreadPoolExecutor(2) as pool:
        clean, flipped = pool.map(
            lambda flip: tool.submit("job.yaml", "--wait", env={"REPLAY_FLIP": flip}), flips
        )
    assert clean.code == flipped.code == 0, clean.log + flipped.log
    return Runs(tool, clean, flipped)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def replay(tool: Tool, run: Submitted, *nodes: str) -> tuple[int, dict[str, Any], str]:
    on = [word for one in nodes for word in ("--on", one)]
    done = tool("checkpoint", "replay", str(run.run_dir), "--from", "5", "--json", *on)
    assert done.stdout.startswith("{"), done
    return done.returncode, json.loads(done.stdout), done.stderr


def test_a_flipped_bit_is_found_on_the_nodes_named_and_a_clean_run_is_equal_there(runs: Runs) -> None:
    tool, clean, flipped = runs
    before = everything(clean.run_dir)
    with ThreadPoolExecutor(2) as pool:
        well = pool.submit(replay, tool, clean, "node[3-4]")
        wrong = pool.submit(replay, tool, flipped, "node1", "node4")

    code, found, _ = well.result()
    assert (code, found["verdict"], found["to"]) == (0, "equal", 12), found
    assert {part["count"] for part in found["parts"].values()} == {0}
    (job,) = found["jobs"]
    (told,) = tool.status(job["job_id"])
    assert (told["state"], told["node_list"], job["nodes"]) == ("COMPLETED", "node[3-4]", "node[3-4]")
    assert everything(clean.run_dir) == before

    code, found, said = wrong.result()
    assert (code, found["verdict"]) == (1, "differs"), found
    difference = found["difference"]
    assert (difference["earliest"], difference["latest"], difference["ranks"]) == (7, 7, [1])
    assert [job["nodes"] for job in found["jobs"]] == ["node[1,4]"] * 2
    kept = [Path(job["run_dir"]) for job in found["jobs"]]
    assert all(f"are in {folder}" in said for folder in kept)
    places: Any = starts(kept[0])[0].values["ranks"]
    assert [rank["host"] for rank in places] == ["node1", "node4"]
    # Of a replay nothing is left that a later command would take for a run with checkpoints.
    there = [path for path in clean.run_dir.parent.iterdir() if path not in kept]
    assert sorted(there) == sorted([clean.run_dir, flipped.run_dir])
    assert not any((folder / "checkpoints").exists() for folder in kept)


def test_nodes_that_the_run_cannot_have_are_refused_before_anything_is_submitted(runs: Runs) -> None:
    tool, clean, _ = runs
    abroad = tool.work / "abroad"
    shutil.copytree(clean.run_dir, abroad)
    record = (abroad / "run.json").read_text().replace('"cluster": "throwaway"', '"cluster": "other"')
    (abroad / "run.json").write_text(record)
    done = tool("checkpoint", "replay", str(abroad), "--on", "node[1-2]")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is of cluster other, and Slurm here is that of throwaway" in done.stderr
    before = sorted(clean.run_dir.parent.iterdir())
    for nodes, message in (
        ("node[1-3]", "3 nodes named, and the run had 2 nodes"),
        ("node3", "1 node named, and the run had 2 nodes"),
        ("node[4-5]", "Slurm knows no node node5"),
    ):
        done = tool("checkpoint", "replay", str(clean.run_dir), "--on", nodes)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr
    assert sorted(clean.run_dir.parent.iterdir()) == before


def test_ctrl_c_cancels_the_job_and_says_so(runs: Runs) -> None:
    tool, clean, _ = runs
    in_the_way = tool.submit("--gpus=4", "-t", "5", "--sbatch", "nodelist=node2", "--", "sleep", "300")
    command = [sys.executable, "-m", "slurmgpu", "checkpoint", "replay", str(clean.run_dir), "--on", "node[1-2]"]  # fmt: skip
    with subprocess.Popen(
        command, cwd=tool.work, env=tool.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as waiting:
        assert waiting.stderr is not None
        said = ""
        while "PENDING" not in said:
            said += (line := waiting.stderr.readline())
            assert line, said
        waiting.send_signal(signal.SIGINT)
        rest = waiting.communicate(timeout=120)
    tool("cancel", str(in_the_way.job_id))
    assert (waiting.returncode, rest[0]) == (130, "")
    job = re.findall(r"job (\d+) trains", said)[0]
    assert re.search(rf"job {job}\b.*cancel", rest[1]), rest
    tool.wait_for_state(job, "CANCELLED")
