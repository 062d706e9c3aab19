"""A Python environment on the nodes' own disks: packed once, unpacked on each node, and gone when the job is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.sandbox_user import wait_until
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


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with a module and a program, in a folder that all nodes share."""
    folder = tmp_path_factory.mktemp("shared")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    (packages,) = folder.glob("venv/lib/python3*/site-packages")
    (packages / "tool.py").write_text("")
    program = folder / "venv" / "bin" / "shown"
    program.write_text(f"#!{folder}/venv/bin/python\nimport sys; print(sys.prefix)\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def tool(slurm: ThrowawaySlurm, tmp_path: Path, shared: Path) -> Tool:
    """A work folder, and a disk of the nodes' own beside it."""
    tool = Tool(slurm, tmp_path)
    tool.env.pop("PYTHONPATH")  # of the tests
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        tool.env.pop(name, None)  # torch sets them where it has compiled, and a user's own are kept
    (tmp_path / "disk").mkdir()
    tool.env["TMPDIR"] = str(tmp_path / "disk")
    tool.file("slurmgpu.yaml", f"packed: {shared}/packed\n")
    tool.file("show.py", SHOWN)
    return tool


def submitted(tool: Tool, shared: Path, *command: str, **resources: Any) -> Submitted:
    job = {
        "environment": {"python": {"venv": f"{shared}/venv", "stage": "node"}},
        "command": command or ("python", "show.py"),
        "resources": {"gpus_per_node": 1, "tasks_per_node": 1, **resources},
        "launch": "srun",
    }
    return tool.submit(str(tool.file("job.yaml", json.dumps(job))), "--wait")


def left(tool: Tool) -> list[str]:
    return [path.name for path in Path(tool.env["TMPDIR"]).iterdir()]


def resumed(tool: Tool, run: Submitted) -> str:
    """The log of a further start in the same run directory."""
    done = tool("resume", str(run.run_dir), "--wait")
    return (run.run_dir / "logs" / f"{done.stdout.strip()}.out").read_text()


@pytest.mark.long
def test_every_process_on_two_nodes_starts_from_its_disk_and_nothing_is_packed_twice(
    tool: Tool, shared: Path
) -> None:
    is_new = not (shared / "packed").exists()
    first, second = submitted(tool, shared, nodes=2), submitted(tool, shared, nodes=2)
    for run in (first, second):
        assert run.code == 0, run.log
        lines = sorted(line for line in run.log.splitlines() if line.startswith("rank"))
        assert len(lines) == 2, run.log
        for rank, line in enumerate(lines):
            disk = f"{tool.env['TMPDIR']}/slurmgpu-{run.job_id}/node{rank + 1}/python"
            _, _, prefix, base, module, said = line.split()
            assert (prefix, said) == (f"{disk}/env", f"{disk}/env")
            assert module.startswith(f"{disk}/env/lib/")
            assert base in (f"{disk}/base", "/usr")
    assert ("packing " in first.stderr) == is_new
    assert "packing " not in second.stderr
    assert left(tool) == []


@pytest.mark.long
def test_compiled_kernels_are_kept_and_without_an_archive_the_shared_one_is_used(
    tool: Tool, shared: Path
) -> None:
    run = submitted(tool, shared, "bash", "-c", "python show.py; exit 7")
    assert (run.code, run.log.count("made")) == (7, 2), run.log
    assert (run.run_dir / "state" / "compiled.tar").exists()
    (archive,) = (shared / "packed").iterdir()
    whole = archive.read_bytes()
    try:
        archive.write_bytes(whole[:-100])
        broken = resumed(tool, run)
        archive.unlink()
        missing = resumed(tool, run)
    finally:
        archive.write_bytes(whole)
    for log, why in ((broken, f"{archive} could not be unpacked"), (missing, f"{archive} is not there")):
        assert f": {why}; it is used from {shared}/venv" in log
        assert f": {shared}/venv " in log
        assert log.count("found") == 2, log
    assert left(tool) == []


@pytest.mark.long
def test_a_cancelled_job_leaves_no_environment_on_the_disk(tool: Tool, shared: Path) -> None:
    job = {"environment": {"python": {"venv": f"{shared}/venv", "stage": "node"}}, "resources": {"gpus": 1},
           "command": ["bash", "-c", "echo at work; sleep 300"]}  # fmt: skip
    run = tool.submit(str(tool.file("job.yaml", json.dumps(job))))
    wait_until(lambda: run.log_file.exists() and "at work" in run.log)
    assert left(tool) == [f"slurmgpu-{run.job_id}"]
    subprocess.run(["scancel", str(run.job_id)], env=tool.env, check=True)
    tool.wait_for_state(run.job_id, "CANCELLED")
    wait_until(lambda: left(tool) == [])
