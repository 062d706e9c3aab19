"""A real Apptainer in real jobs: an image that the tests build, what gets in, and a training over two nodes inside it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.inside.apptainer import OPTIONS, docker_archive, host_binds, root_folder
from tests.inside.test_launchers import FOUR, HOW, SCRIPTS, ranks
from tests.slurm.tool import ROOT, Tool

Executed = Callable[..., None]
InImage = Callable[..., str]


@pytest.fixture(scope="session")
def version(apptainer: Path) -> str:
    said = subprocess.run(
        [apptainer / "apptainer", "--version"], capture_output=True, text=True, check=True
    ).stdout
    return said.split()[-1]


@pytest.fixture
def in_image(tool: Tool, apptainer: Path, image: Path) -> InImage:
    """Run a command in the image, in a job: what it printed once it has COMPLETED."""

    def run(
        *command: str, size: tuple[str, ...] = ("--gpus", "1"), state: str = "COMPLETED", **container: object
    ) -> str:
        for file in SCRIPTS.iterdir():
            shutil.copy(file, tool.work)
        binds = [*host_binds(tool.work), *map(str, container.pop("binds", []))]  # type: ignore[call-overload]
        fields = {"image": str(image), "binds": binds, "options": OPTIONS} | container
        environment = f"environment={json.dumps({'container': fields})}"
        env = {"PATH": f"{apptainer}:{tool.env['PATH']}"}
        job = tool.submit(
            *size, "--cpus-per-gpu", "2", "-t", "10", "--set", environment, "--", *command, env=env
        )
        assert tool.slurm.wait_for(job.job_id, timeout=300) == state, job.log
        return job.log

    return run


def test_a_command_runs_in_the_image(in_image: InImage, version: str, executed: Executed) -> None:
    assert "the image of the tests" in in_image("cat", "/marked/image")
    executed("container", "apptainer exec", version, "a SIF built by the test")


def test_an_images_runscript_gets_the_commands_words(
    in_image: InImage, apptainer: Path, tmp_path: Path, version: str, executed: Executed
) -> None:
    root = root_folder(tmp_path / "root")
    scripts = root / ".singularity.d"
    scripts.mkdir()
    (scripts / "runscript").write_text('#!/bin/sh\necho "runscript: $*"\n')
    (scripts / "runscript").chmod(0o755)
    sif = tmp_path / "run.sif"
    subprocess.run([apptainer / "apptainer", "build", sif, root], capture_output=True, check=True)
    assert "runscript: one two" in in_image("one", "two", image=str(sif), mode="run")
    executed("container", "apptainer run", version, "a SIF with a runscript of its own")


def test_nv_is_harmless_without_a_gpu(in_image: InImage, version: str, executed: Executed) -> None:
    assert "the image of the tests" in in_image("cat", "/marked/image", gpu="nvidia")
    executed("container", "apptainer --nv", version, "on a machine without a GPU")


def test_folders_are_bound_and_may_be_read_only(
    in_image: InImage, tmp_path: Path, version: str, executed: Executed
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("of the host\n")
    words = "cat /inside/file; touch /inside/new || echo read-only; ls /inside"
    log = in_image("sh", "-c", words, binds=[f"{tmp_path}/data:/inside:ro"])
    assert "of the host" in log
    assert "read-only" in log
    assert not (tmp_path / "data" / "new").exists()
    executed("container", "apptainer --bind", version, "HOST:INSIDE:ro")


def test_an_overlay_is_used(in_image: InImage, tmp_path: Path, version: str, executed: Executed) -> None:
    upper = tmp_path / "overlay" / "upper" / "marked"
    upper.mkdir(parents=True)
    (upper / "added").write_text("from the overlay\n")
    log = in_image("sh", "-c", "cat /marked/image /marked/added", overlay=str(tmp_path / "overlay"))
    assert "the image of the tests\nfrom the overlay" in log
    executed("container", "apptainer --overlay", version, "a folder")


def test_a_clean_environment_works(in_image: InImage, version: str, executed: Executed) -> None:
    size = ("--nodes", "2", "--gpus-per-node", "2")
    log = in_image(sys.executable, "ranks.py", size=size, clean_env=True)
    assert ranks(log) == FOUR, log
    executed("container", "apptainer --cleanenv, torchrun inside", version, HOW)


def test_a_clean_environment_has_nothing_else_of_the_host(in_image: InImage) -> None:
    size = ("--gpus", "1", "--set", "variables={MINE: 'a b'}")
    log = in_image("sh", "-c", 'echo "$MINE, $XDG_CONFIG_HOME, $SLURM_NTASKS"', size=size, clean_env=True)
    assert "a b, , 1" in log


def pulled_files(tool: Tool) -> list[Path]:
    """The images that ``submit`` has pulled, and whatever else lies beside them."""
    return sorted((tool.work / "images").iterdir())


def test_an_address_is_pulled_once_before_the_jobs_that_use_it(
    in_image: InImage, tool: Tool, tmp_path: Path, version: str, executed: Executed
) -> None:
    address = docker_archive(root_folder(tmp_path / "root"), tool.work / "torch.tar")
    tool.file("slurmgpu.yaml", f"images: {tool.work}/images\n")
    assert "the image of the tests" in in_image("cat", "/marked/image", image=address)
    (pulled,) = pulled_files(tool)
    assert pulled.suffix == ".sif"
    (tool.work / "torch.tar").unlink()
    assert "the image of the tests" in in_image("cat", "/marked/image", image=address)
    assert pulled_files(tool) == [pulled]
    executed("container", "apptainer pull before submission", version, "docker-archive:, two jobs")


def test_two_submissions_at_once_pull_once(
    apptainer: Path, tool: Tool, tmp_path: Path, version: str, executed: Executed
) -> None:
    address = docker_archive(root_folder(tmp_path / "root"), tool.work / "torch.tar")
    tool.file("slurmgpu.yaml", f"images: {tool.work}/images\n")
    fields = json.dumps({"container": {"image": address, "options": OPTIONS, "binds": host_binds(tool.work)}})
    words = ("--gpus", "1", "-t", "5", "--set", f"environment={fields}", "--", "cat", "/marked/image")
    env = {"PATH": f"{apptainer}:{tool.env['PATH']}"}
    with ThreadPoolExecutor() as pool:
        jobs = list(pool.map(lambda _: tool.submit(*words, env=env), range(2)))
    for job in jobs:
        assert tool.slurm.wait_for(job.job_id, timeout=300) == "COMPLETED", job.log
    assert "".join(job.stderr for job in jobs).count("Creating SIF file") == 1
    assert [file.suffix for file in pulled_files(tool)] == [".sif"]
    executed("container", "apptainer pull, two submissions at once", version, "docker-archive:")


DEFINITION = """\
Bootstrap: docker-archive
From: {archive}
%files
    added /marked/added
%environment
    export BUILT=by-the-definition
"""


def test_an_image_is_built_from_its_definition_before_the_job(
    in_image: InImage, tool: Tool, tmp_path: Path, version: str, executed: Executed
) -> None:
    docker_archive(root_folder(tmp_path / "root"), tmp_path / "torch.tar")
    tool.file("torch.def", DEFINITION.format(archive=tmp_path / "torch.tar"))
    tool.file("added", "from the work folder\n")
    log = in_image("sh", "-c", 'cat /marked/added; echo "$BUILT"', image="torch.sif", build="torch.def")
    assert "from the work folder\nby-the-definition\n" in log
    assert not list(tool.work.glob(".torch.sif*"))
    executed("container", "apptainer build before submission", version, "a definition file")


def test_a_definition_that_cannot_be_built_submits_nothing(apptainer: Path, tool: Tool) -> None:
    tool.file("torch.def", "Bootstrap: docker-archive\nFrom: nowhere.tar\n")
    fields = json.dumps({"container": {"image": "torch.sif", "build": "torch.def"}})
    env = {"PATH": f"{apptainer}:{tool.env['PATH']}"}
    said = tool.submit_refused("--gpus", "1", "--set", f"environment={fields}", "--", "true", env=env)
    assert "environment.container.build: apptainer could not build" in said
    assert "nowhere.tar" in said  # Apptainer's own words
    assert [file.name for file in tool.work.iterdir()] == ["torch.def"]


@pytest.mark.heavy
def test_the_digits_are_learnt_in_an_image_as_well_as_outside(
    digits: Callable[..., str], apptainer: Path, image: Path, tool: Tool, version: str, executed: Executed
) -> None:
    tool.env["PATH"] = f"{apptainer}:{tool.env['PATH']}"
    fields = {"image": str(image), "binds": host_binds(tool.work, ROOT), "options": OPTIONS}
    inside = digits({"container": fields, "python": {"interpreter": sys.executable}})
    assert inside == digits({})
    executed(
        "container", "apptainer: the digits example", version, f"{HOW}, accuracy {inside} in and outside"
    )
