"""A Python environment on the nodes' own disks: packed once, unpacked on each node, and gone when the job is."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.throwaway import ThrowawaySlurm
from tests.slurm.tool import Submitted, Tool

pytestmark = pytest.mark.slurm

SHOWN = """\
import os, subprocess, sys, tool
from pathlib import Path
for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
    Path(os.environ[name]).mkdir(parents=True, exist_ok=True)
    print("found" if (Path(os.environ[name]) / "kernel").exists() else "made", flush=True)
    (Path(os.environ[name]) / "kernel").touch()
said = subprocess.run(["shown"], stdout=subprocess.PIPE, text=True).stdout.strip()
print(f"rank {os.environ.get('SLURM_PROCID')}: {sys.prefix} {sys.base_prefix} {tool.__file__} {said}", flush=True)
"""


@pytest.fixture
def tool(slurm: ThrowawaySlurm, tmp_path: Path) -> Tool:
    """A work folder with an environment that has a module and a program, and a disk of the nodes' own beside it."""
    tool = Tool(slurm, tmp_path)
    tool.env.pop("PYTHONPATH")  # of the tests
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "venv"], cwd=tool.work, check=True)
    (packages,) = tool.work.glob("venv/lib/python3*/site-packages")
    (packages / "tool.py").write_text("")
    program = tool.file("venv/bin/shown", f"#!{tool.work}/venv/bin/python\nimport sys; print(sys.prefix)\n")
    program.chmod(0o755)
    (tmp_path / "disk").mkdir()
    tool.env["TMPDIR"] = str(tmp_path / "disk")
    tool.file("slurmgpu.yaml", f"packed: {tmp_path}/packed\n")
    tool.file("show.py", SHOWN)
    return tool


def submitted(tool: Tool, *command: str, wait: bool = True, **resources: Any) -> Submitted:
    job = {
        "environment": {"python": {"venv": "venv", "stage": "node"}},
        "command": command or ("python", "show.py"),
        "resources": {"gpus_per_node": 1, "tasks_per_node": 1, **resources},
        "launch": "srun",
    }
    return tool.submit(str(tool.file("job.yaml", json.dumps(job))), *(["--wait"] if wait else []))


def left(tool: Tool) -> list[str]:
    return [path.name for path in Path(tool.env["TMPDIR"]).iterdir()]


def test_every_process_on_two_nodes_starts_from_its_nodes_disk_and_nothing_is_packed_twice(tool: Tool) -> None:
    first, second = submitted(tool, nodes=2), submitted(tool, nodes=2)
    for run in (first, second):
        assert run.code == 0, run.log
        lines = [line for line in run.log.splitlines() if line.startswith("rank")]
        assert len(lines) == 2, run.log
        for rank, line in enumerate(sorted(lines)):
            disk = f"{tool.env['TMPDIR']}/slurmgpu-{run.job_id}/n{rank + 1}/python"
            _, _, prefix, base, module, said = line.split()
            assert (prefix, said) == (f"{disk}/env", f"{disk}/env")
            assert module.startswith(f"{disk}/env/lib/")
            assert base in (f"{disk}/base", "/usr")
    assert "packing " in first.stderr
    assert "packing " not in second.stderr
    assert left(tool) == []


def test_on_one_node_compiled_kernels_are_kept_for_the_next_start(tool: Tool) -> None:
    run = submitted(tool)
    assert run.log.count("made") == 2, run.log
    assert (run.run_dir / "state" / "compiled.tar").exists()
    again = tool("resume", str(run.run_dir), "--json")
    job_id = json.loads(again.stdout)["job_id"]
    tool.wait_for_state(job_id, "COMPLETED")
    assert (run.run_dir / "logs" / f"{job_id}.out").read_text().count("found") == 2
    assert left(tool) == []


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_cancelled_job_leaves_nothing_on_the_disk(tool: Tool, nodes: int) -> None:
    run = submitted(tool, "bash", "-c", "echo at work; sleep 300", wait=False, nodes=nodes)
    deadline = time.monotonic() + 60
    tool.wait_for_state(run.job_id, "RUNNING")
    while run.log.count("at work") < nodes:
        assert time.monotonic() < deadline, run.log
        time.sleep(0.2)
    assert left(tool) == [f"slurmgpu-{run.job_id}"]
    subprocess.run(["scancel", str(run.job_id)], env=tool.env, check=True)
    tool.wait_for_state(run.job_id, "CANCELLED")
    assert left(tool) == []


@pytest.mark.parametrize("nodes", [1, 2])
def test_without_the_archive_the_shared_environment_is_used_and_a_line_says_so(tool: Tool, nodes: int) -> None:
    run = submitted(tool, wait=False, nodes=nodes, **{"time": 5})
    tool.wait_for_state(run.job_id, "COMPLETED")
    (archive,) = (tool.work.parent / "packed").iterdir()
    archive.write_bytes(archive.read_bytes()[:-100])
    broken = submitted(tool, nodes=nodes)
    archive.unlink()
    gone = tool("resume", str(broken.run_dir), "--json")
    job_id = json.loads(gone.stdout)["job_id"]
    tool.wait_for_state(job_id, "COMPLETED")
    for log, why in (
        (broken.log, "could not be unpacked"),
        ((broken.run_dir / "logs" / f"{job_id}.out").read_text(), f"{archive} is not there"),
    ):
        assert log.count(why) == nodes, log
        assert f": {tool.work}/venv " in log
    assert left(tool) == []
