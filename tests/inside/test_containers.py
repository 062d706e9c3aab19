"""Container runtimes in real jobs: Charliecloud itself, and stand-ins that know the documented words of the others."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurmgpu.sandbox.programs import program
from tests.inside.apptainer import host_binds, root_folder
from tests.inside.stand_ins.runtimes import write
from tests.inside.test_launchers import FOUR, HOW, SCRIPTS, ranks
from tests.slurm.conftest import absent
from tests.slurm.tool import Tool

Executed = Callable[..., None]
InRuntime = Callable[..., str]
TWO_BY_TWO = ("--nodes", "2", "--gpus-per-node", "2")
ONE = ("--gpus", "1")


@pytest.fixture
def in_runtime(tool: Tool, tmp_path: Path) -> InRuntime:
    """Run a command in a runtime's stand-in, in a job: what it printed when it ended in that state."""

    def run(
        runtime: str, *command: str, size: tuple[str, ...] = ONE, state: str = "COMPLETED", **container: Any
    ) -> str:
        for file in SCRIPTS.iterdir():
            shutil.copy(file, tool.work)
        write(tmp_path / "bin", runtime)
        env = {"PATH": f"{tmp_path / 'bin'}:{tool.env['PATH']}", "STAND_IN_SRUN": program("srun")}
        fields = json.dumps({"container": {"runtime": runtime, **container}})
        words = (*size, "--cpus-per-gpu", "2", "-t", "10", "--set", f"environment={fields}", "--", *command)
        job = tool.submit(*words, env=env)
        assert tool.slurm.wait_for(job.job_id, timeout=300) == state, job.log
        return job.log

    return run


def asked(log: str) -> list[dict[str, Any]]:
    """What the stand-ins were asked for, entry by entry."""
    return [json.loads(line) for line in log.splitlines() if line.startswith('{"runtime"')]


IMAGES = {
    "pyxis": "docker://nvcr.io/nvidia/pytorch:25.01-py3",
    "podman-hpc": "docker://pytorch/pytorch:2.9.0",
    "shifter": "pytorch/pytorch:2.9.0",
    "uenv": "pytorch/v2.8.0:v1",
}
ARRIVES = {
    "pyxis": {"container-image": ["nvcr.io#nvidia/pytorch:25.01-py3"]},
    "podman-hpc": {"image": ["pytorch/pytorch:2.9.0"], "rm": [""], "gpu": [""]},
    "shifter": {"image": ["docker:pytorch/pytorch:2.9.0"], "module": ["gpu"]},
    "uenv": {"uenv": ["pytorch/v2.8.0:v1"]},
}


@pytest.mark.parametrize("launch", ["torchrun", "srun"])
@pytest.mark.parametrize("runtime", IMAGES)
def test_two_nodes_meet_inside(runtime: str, launch: str, in_runtime: InRuntime, executed: Executed) -> None:
    size = (*TWO_BY_TWO, "--launch", launch)
    log = in_runtime(runtime, "python", "ranks.py", size=size, image=IMAGES[runtime])
    assert ranks(log) == FOUR, log
    entries = asked(log)
    assert len(entries) == (2 if launch == "torchrun" else 4)  # one entry a task
    assert all(ARRIVES[runtime].items() <= entry.items() for entry in entries), entries
    executed("container", f"{runtime}, {launch} inside", "as documented", HOW, stand_in=True)


@pytest.mark.parametrize("runtime", IMAGES)
def test_a_word_that_the_documentation_does_not_know_is_refused(runtime: str, in_runtime: InRuntime) -> None:
    log = in_runtime(runtime, "true", image=IMAGES[runtime], options=["--no-such-word"], state="FAILED")
    assert re.search(r"no-such-word", log)
    assert asked(log) == []


@pytest.mark.parametrize("runtime", ["pyxis", "podman-hpc", "shifter"])
def test_folders_are_as_the_job_asks(runtime: str, in_runtime: InRuntime, tool: Tool, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    inside = "/inside" if runtime != "shifter" else str(tmp_path / "data")
    fields = {"binds": [f"{tmp_path}/data:{inside}:ro", str(tool.config)], "workdir": inside}
    log = in_runtime(runtime, "pwd", image=IMAGES[runtime], **fields)
    (entry,) = asked(log)
    said = json.dumps(entry)
    assert f"{tmp_path}/data:{inside}:ro" in said
    assert f"{tool.config}:{tool.config}" in said
    assert log.splitlines()[-1] == f"{tmp_path}/data"


def test_pyxis_keeps_a_named_container_that_may_be_written(in_runtime: InRuntime) -> None:
    log = in_runtime("pyxis", "true", image="pytorch/pytorch:2", name="torch", writable=True)
    (entry,) = asked(log)
    assert entry["container-name"] == ["torch"]
    assert "container-writable" in entry


def test_podman_hpc_passes_what_the_job_sets_and_nothing_else(in_runtime: InRuntime, tool: Tool) -> None:
    tool.env["OF_THE_HOST"] = "out"
    size = (*ONE, "--set", "variables={MINE: 'a b'}")
    words = 'echo "$MINE, ${OF_THE_HOST-}, $SLURM_NTASKS"'
    assert "a b, , 1" in in_runtime("podman-hpc", "sh", "-c", words, size=size, image="i")


EDF = """\
image = "nvcr.io#nvidia/pytorch:25.01-py3"
mounts = ["${{PWD}}:${{PWD}}"]
workdir = "${{PWD}}"
[env]
OF_THE_EDF = "{value}"
"""


needs_toml = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="the stand-in reads TOML by Python 3.11's library"
)


@needs_toml
@pytest.mark.parametrize("image", ["torch", "torch.toml", "$EDF_PATH/torch.toml"])
def test_two_nodes_meet_in_an_edf(image: str, in_runtime: InRuntime, tool: Tool, executed: Executed) -> None:
    tool.file("torch.toml", EDF.format(value="seen"))
    tool.env["EDF_PATH"] = str(tool.work)
    log = in_runtime("edf", "python", "ranks.py", image=image, size=TWO_BY_TWO)
    assert ranks(log) == FOUR, log
    assert len(asked(log)) == 2
    executed("container", "edf", "as documented", HOW, stand_in=True)


@needs_toml
def test_a_definitions_variables_are_there(in_runtime: InRuntime, tool: Tool) -> None:
    tool.file("torch.toml", EDF.format(value="seen"))
    assert "of the EDF: seen" in in_runtime(
        "edf", "sh", "-c", 'echo "of the EDF: $OF_THE_EDF"', image="./torch.toml"
    )


def test_a_view_of_a_uenv_is_asked_for(in_runtime: InRuntime, executed: Executed) -> None:
    log = in_runtime("uenv", "true", image="pytorch/v2.8.0:v1", view="default,tools:modules")
    assert asked(log)[0]["view"] == ["default,tools:modules"]
    executed("container", "uenv --view", "as documented", "a job on a node", stand_in=True)


def test_two_nodes_meet_in_an_oci_bundle(in_runtime: InRuntime, tool: Tool, executed: Executed) -> None:
    mounts = [{"destination": str(tool.work), "source": str(tool.work)}]
    config = {"process": {"cwd": str(tool.work)}, "mounts": mounts, "root": {"path": "rootfs"}}
    tool.file("bundle/config.json", json.dumps(config))
    log = in_runtime("oci-bundle", "python", "ranks.py", size=TWO_BY_TWO, image=str(tool.work / "bundle"))
    assert ranks(log) == FOUR, log
    executed("container", "oci-bundle", "as documented", HOW, stand_in=True)


# Charliecloud


def test_charliecloud_makes_missing_folders(in_runtime: InRuntime, tool: Tool, executed: Executed) -> None:
    tool.file("image/etc/passwd", "")
    image = str(tool.work / "image")
    log = in_runtime("charliecloud", "python", "ranks.py", size=TWO_BY_TWO, image=image, writable=True)
    assert ranks(log) == FOUR, log
    assert [entry["write-fake"] for entry in asked(log)] == [[""], [""]]
    executed("container", "charliecloud --write-fake", "as documented for 0.38", HOW, stand_in=True)


@pytest.fixture
def charliecloud(tool: Tool, tmp_path: Path) -> Callable[..., str]:
    """Run a command in a folder by the real ch-run, in a job: what it printed once it has COMPLETED."""
    if shutil.which("ch-run") is None:
        absent("no Charliecloud here; to install it: sudo .ci/install-slurm --inside")
    tool.env["USER"] = "somebody"  # ch-run asks for it, and a CI's environment may have none

    def run(*command: str, size: tuple[str, ...] = ONE, binds: tuple[str, ...] = (), **container: Any) -> str:
        for file in SCRIPTS.iterdir():
            shutil.copy(file, tool.work)
        image = root_folder(tmp_path / "image")
        binds = (*host_binds(), *binds)
        for folder in (*binds, str(tool.work)):
            (image / folder.rpartition(":")[2].lstrip("/")).mkdir(parents=True, exist_ok=True)
        fields = json.dumps(
            {"container": {"runtime": "charliecloud", "image": str(image), "binds": binds, **container}}
        )
        words = (*size, "--cpus-per-gpu", "2", "-t", "10", "--set", f"environment={fields}", "--", *command)
        job = tool.submit(*words)
        assert tool.slurm.wait_for(job.job_id, timeout=300) == "COMPLETED", job.log
        return job.log

    return run


def ch_run_version() -> str:
    env = {**os.environ, "USER": "somebody"}
    done = subprocess.run(["ch-run", "--version"], env=env, capture_output=True, text=True, check=True)
    return (done.stdout + done.stderr).split()[-1]


def test_two_nodes_meet_by_charliecloud(charliecloud: Callable[..., str], executed: Executed) -> None:
    assert ranks(charliecloud(sys.executable, "ranks.py", size=TWO_BY_TWO)) == FOUR
    executed("container", "charliecloud, torchrun inside", ch_run_version(), HOW)


def test_charliecloud_binds_folders_and_starts_in_the_one_that_is_asked_for(
    charliecloud: Callable[..., str], tmp_path: Path, executed: Executed
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("of the host\n")
    binds = (f"{tmp_path}/data:/opt/data",)
    log = charliecloud("sh", "-c", "pwd; cat file /marked/image", binds=binds, workdir="/opt/data")
    assert "/opt/data\nof the host\nthe image of the tests\n" in log
    executed("container", "charliecloud --bind, --cd", ch_run_version(), "a job on a node")
