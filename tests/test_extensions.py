"""A launcher, or a container runtime, is one module: the shipped ones, and those of a folder that the settings name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurmgpu.cli.group import run
from slurmgpu.containers import runtime
from slurmgpu.launchers import launcher
from slurmgpu.models.base import LAUNCHERS, RUNTIMES

GUIDE = (Path(__file__).parents[1] / "docs/extending.md").read_text(encoding="utf-8")
Render = Callable[..., str]


@pytest.fixture(autouse=True)
def _shipped_again() -> Iterator[None]:
    yield
    for kind in (LAUNCHERS, RUNTIMES):
        kind._own.clear()
        kind._loaded.clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of extensions that the user's settings name, beside them."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slurmgpu").mkdir()
    (tmp_path / "slurmgpu/config.yaml").write_text("extensions: own\n", encoding="utf-8")
    for name in ("launchers", "containers"):
        (tmp_path / "slurmgpu/own" / name).mkdir(parents=True)
    return tmp_path / "slurmgpu/own"


@pytest.fixture
def of_the_guide(folder: Path) -> Path:
    """Both modules that docs/extending.md shows."""
    for text in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL):
        kind, name = ("launchers", "pmix") if "Launcher" in text else ("containers", "podman")
        (folder / kind / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def render(capsys: pytest.CaptureFixture[str]) -> Render:
    """A script as `slurmgpu render` prints it, or what is said in its place."""

    def rendered(*words: str) -> str:
        with pytest.raises(SystemExit):
            run(["render", *words])
        said = capsys.readouterr()
        return said.out or said.err

    return rendered


@pytest.mark.parametrize("name", LAUNCHERS.names())
def test_each_shipped_launcher_answers_by_its_name(name: str) -> None:
    assert launcher(name).template.startswith("launcher/")


@pytest.mark.parametrize("name", RUNTIMES.names())
def test_each_shipped_container_runtime_answers_by_its_name(name: str) -> None:
    assert runtime(name)


def test_the_launcher_of_the_guide_starts_a_job(of_the_guide: Path, render: Render) -> None:
    script = render("--gpus-per-node", "4", "--launch", "pmix", "--", "./simulate", "input.toml")
    assert "--ntasks-per-node=4 --kill-on-bad-exit=1 --mpi=pmix \\\n    ./simulate input.toml\n" in script
    assert "MASTER_ADDR" not in script


def test_the_container_runtime_of_the_guide_enters_an_image(of_the_guide: Path, render: Render) -> None:
    image = "environment={container: {runtime: podman, image: torch, binds: [/data]}}"
    script = render("--gpus", "1", "--set", image, "--", "python", "train.py")
    assert (
        "\npodman run --rm --network=host --device=nvidia.com/gpu=all --volume=/data:/data --env='SLURM*'"
        in script
    )


def test_an_environment_of_the_settings_may_use_an_own_runtime(of_the_guide: Path, render: Render) -> None:
    settings = of_the_guide.parent / "config.yaml"
    environment = "environments: {torch: {container: {runtime: podman, image: torch}}}\n"
    settings.write_text(settings.read_text() + environment, encoding="utf-8")
    assert "\npodman run" in render("--environment", "torch", "--", "python", "train.py")


def test_an_unknown_launcher_is_told_which_there_are(of_the_guide: Path, render: Render) -> None:
    assert (
        "'pnix' is not a launcher; did you mean 'pmix'? valid: auto, accelerate, deepspeed, mpi, mpirun, plain, pmix, ray, srun, "
        "torchrun" in render("--launch", "pnix", "--", "python", "train.py")
    )


def test_the_schema_lists_own_ones_too(of_the_guide: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["schema", "job"])
    assert '"pmix"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "LAUNCHER = 3\n",
            "own/launchers/mine.py: LAUNCHER is 3, which is not a slurmgpu.launchers.Launcher",
        ),
        ("import nothing_of_that_name\n", "it cannot be imported: ModuleNotFoundError"),
        ("def (\n", "it cannot be imported: SyntaxError"),
    ],
)
def test_a_module_that_is_no_launcher_is_named(folder: Path, render: Render, text: str, said: str) -> None:
    (folder / "launchers/mine.py").write_text(text, encoding="utf-8")
    assert said in render("--launch", "mine", "--", "python", "train.py")


def test_a_strangers_module_in_a_project_is_not_run(folder: Path, tmp_path: Path, render: Render) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to somebody else")
    (folder.parent / "config.yaml").unlink()
    (tmp_path / "slurmgpu.yaml").write_text("extensions: slurmgpu/own\n", encoding="utf-8")
    (folder / "launchers/mine.py").write_text("raise SystemExit('it was run')\n", encoding="utf-8")
    os.chown(folder / "launchers/mine.py", 54321, 54321)
    assert "launcher '" in (said := render("--launch", "mine", "--", "python", "train.py"))
    assert "it belongs to" in said


def test_a_folder_that_is_not_there_is_said(folder: Path, render: Render) -> None:
    (folder.parent / "config.yaml").write_text("extensions: elsewhere\n", encoding="utf-8")
    assert "elsewhere' is not a folder" in render("--", "python", "train.py")
