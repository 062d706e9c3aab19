"""Images that are pulled or built before a job is submitted: once, whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmgpu.cli.group import run
from slurmgpu.errors import PlanError
from slurmgpu.models.cluster import GENERIC
from slurmgpu.models.job import Job
from slurmgpu.models.plan import Plan
from slurmgpu.planning.planner import make_plan
from slurmgpu.planning.settled import Surroundings
from slurmgpu.runs.images import image_to_make, make_image, with_pulled_image

Does = Callable[[str], Path]
MAKES = 'echo hsqs >"$2"'
DOCKER = "docker://a/b:1"


@pytest.fixture
def apptainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Does:
    """A program of that name which does what a line of shell says; the file with its calls."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")

    def made(does: str) -> Path:
        program, calls = tmp_path / "bin/apptainer", tmp_path / "calls"
        program.write_text(f'#!/bin/sh\necho "$@" >>{calls}\n{does}\n')
        program.chmod(0o755)
        return calls

    return made


@pytest.fixture
def without_apptainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")


def planned(**container: str) -> Plan:
    given = {
        "resources": {"gpus": 1, "account": "lab"},
        "command": ["true"],
        "environment": {"container": container},
    }
    return make_plan(Job.model_validate(given), GENERIC, Surroundings("/work"))


def make(plan: Plan, images: Path, folder: Path | None = None) -> list[str]:
    """Make the plan's image, if it is to be made: what the user is told."""
    said: list[str] = []
    making = image_to_make(plan, images, folder, said.append)
    if making is not None:
        make_image(making, said.append)
    return said


def test_an_image_is_pulled_once_and_the_script_uses_its_file(apptainer: Does, tmp_path: Path) -> None:
    calls, plan = apptainer(MAKES), planned(image=DOCKER)
    assert make(plan, tmp_path / "images")[0].startswith(f"pulling {DOCKER} to ")
    assert make(plan, tmp_path / "images") == []
    container = with_pulled_image(plan, tmp_path / "images").environment.container
    assert Path(container.image).read_text() == "hsqs\n"
    assert len(calls.read_text().splitlines()) == 1


TWICE = """
import sys
from pathlib import Path
from tests.test_images import make, planned
print(make(planned(image="docker://a/b:1"), Path(sys.argv[1])))
"""


def test_two_submissions_at_once_pull_once(apptainer: Does, tmp_path: Path) -> None:
    calls = apptainer(f"sleep 0.7; {MAKES}")
    command = [sys.executable, "-c", TWICE, str(tmp_path / "images")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = "".join(one.communicate()[0] for one in both)
    assert "another submission is making this image" in said or said.count("[]") == 1
    assert len(calls.read_text().splitlines()) == 1
    assert [file.suffix for file in (tmp_path / "images").iterdir()] == [".sif"]


def test_addresses_that_differ_only_beyond_a_file_name_are_two_images(
    apptainer: Does, tmp_path: Path
) -> None:
    apptainer(MAKES)
    for image in (DOCKER, "docker://a-b-1", "library://a/b:1", "oci-archive:a/b:1"):
        make(planned(image=image), tmp_path / "images")
    assert len(list((tmp_path / "images").glob("*.sif"))) == 4


@pytest.mark.parametrize("end", ["exit 1", "kill -INT $PPID; sleep 5"])
def test_a_pull_that_breaks_off_leaves_nothing(end: str, apptainer: Does, tmp_path: Path) -> None:
    apptainer(f'echo half >"$2"; {end}')
    with pytest.raises((PlanError, KeyboardInterrupt)):
        make(planned(image=DOCKER), tmp_path / "images")
    assert list((tmp_path / "images").iterdir()) == []


@pytest.mark.usefixtures("without_apptainer")
def test_without_the_program_the_nodes_pull_and_the_user_is_told_how_to_do_it_once(tmp_path: Path) -> None:
    plan = planned(image=DOCKER)
    (said,) = make(plan, tmp_path / "images")
    assert f"in a job: srun --account=lab --time=60 apptainer pull {tmp_path}/images/a-b-1-" in said
    assert with_pulled_image(plan, tmp_path / "images") == plan


@pytest.mark.parametrize(
    "container",
    [
        {"runtime": "pyxis", "image": "docker://a/b"},
        {"image": "$S/t.sif"},
        {"image": "instance://x"},
        {"image": "t.sif"},
    ],
)
def test_what_the_runtime_finds_by_itself_is_not_pulled(container: dict[str, str], tmp_path: Path) -> None:
    assert image_to_make(planned(**container), tmp_path, tmp_path, print) is None


def test_an_image_is_built_where_it_is_absent(apptainer: Does, tmp_path: Path) -> None:
    calls = apptainer(f"pwd >>{tmp_path}/calls; {MAKES}")
    (tmp_path / "t.def").touch()
    make(planned(image="t.sif", build="t.def"), tmp_path / "images", tmp_path)
    call, folder = calls.read_text().splitlines()
    assert call.startswith(f"build {tmp_path}/.t.sif.")
    assert call.endswith(f" {tmp_path}/t.def")
    assert folder == str(tmp_path)
    assert (tmp_path / "t.sif").read_text() == "hsqs\n"


def test_an_image_older_than_its_definition_is_warned_of_and_kept(apptainer: Does, tmp_path: Path) -> None:
    calls = apptainer("true")
    for name, time in (("t.sif", 1000), ("t.def", 2000)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time, time))
    (said,) = make(planned(image="t.sif", build="t.def"), tmp_path, tmp_path)
    assert "is older than" in said
    assert f"rm {tmp_path}/t.sif, and submit again" in said
    assert not calls.exists()


@pytest.mark.parametrize("here", [True, False])
def test_where_an_image_cannot_be_built_the_user_gets_the_job_that_builds_it(
    here: bool, apptainer: Does, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apptainer("exit 1")
    if not here:
        monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "t.def").touch()
    with pytest.raises(PlanError) as refused:
        make(planned(image="t.sif", build="t.def"), tmp_path, tmp_path)
    command = f"srun --account=lab --time=60 apptainer build {tmp_path}/t.sif {tmp_path}/t.def"
    assert command in str(refused.value.hint)


# The commands


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apptainer: Does) -> Path:
    """A user's folder with a job in an image of a registry; the settings name a folder for images."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "j.yaml").write_text(
        "resources: {gpus: 1}\ncommand: ['true']\nenvironment: {container: 'docker://a/b:1'}\n"
    )
    (work / "slurmgpu.yaml").write_text("images: $STORE/images\n")
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.write_text("#!/bin/sh\necho 7\n")
    sbatch.chmod(0o755)
    monkeypatch.chdir(work)
    for name in ("STORE", "HOME", "XDG_CONFIG_HOME", "SLURMGPU_SITE"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.delenv("SLURMGPU_CLUSTER", raising=False)
    return work


def code(*words: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        run(list(words))
    return ended.value.code


@pytest.mark.parametrize("command", ["plan", "render", "submit --dry-run"])
def test_commands_that_show_say_what_submit_would_pull_and_pull_nothing(
    command: str, desk: Path, apptainer: Does, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = apptainer(MAKES)
    code(*command.split(), "j.yaml")
    assert f"`slurmgpu submit` pulls it first: apptainer pull {desk.parent}/store/images/a-b-1-" in (
        capsys.readouterr().err
    )
    assert not calls.exists()


def test_submit_pulls_and_the_script_that_is_submitted_has_the_file(desk: Path, apptainer: Does) -> None:
    apptainer(MAKES)
    assert code("submit", "j.yaml") == 0
    (image,) = (desk.parent / "store" / "images").iterdir()
    (script,) = desk.glob("runs/*/script.sbatch")
    assert f"apptainer exec --nv {image} true" in script.read_text()


def test_no_pull_leaves_it_to_the_nodes(desk: Path, apptainer: Does) -> None:
    calls = apptainer(MAKES)
    assert code("submit", "j.yaml", "--no-pull") == 0
    assert not calls.exists()
    (script,) = desk.glob("runs/*/script.sbatch")
    assert "apptainer exec --nv docker://a/b:1 true" in script.read_text()


def test_nothing_is_pulled_for_a_job_that_cannot_be_submitted(
    desk: Path, apptainer: Does, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = apptainer(MAKES)
    assert code("submit", "j.yaml", "--set", "secrets=[NOT_SET_HERE]") == 1
    assert "NOT_SET_HERE" in capsys.readouterr().err
    assert not calls.exists()
