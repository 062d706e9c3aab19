"""What is installed is what is meant: the wheel's exact files, found from where they lie."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from slurmgpu import __version__

ROOT = Path(__file__).resolve().parent.parent
DATA = {"templates": "templates", "jobs": "jobs", "examples/clusters": "clusters"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def expected_files() -> set[str]:
    """The package's sources and, under _data, the templates, jobs and profiles."""
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "slurmgpu").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and "_data" not in path.parts
    }
    data = {
        f"slurmgpu/_data/{name}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, name in DATA.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    }
    about = f"slurmgpu-{__version__}.dist-info"
    return (
        package
        | data
        | {
            f"{about}/{name}"
            for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
        }
    )


def test_the_wheel_holds_exactly_the_package_and_its_data(wheel: Path) -> None:
    assert set(zipfile.ZipFile(wheel).namelist()) == expected_files()


def test_the_installed_package_renders_from_its_own_data(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    zipfile.ZipFile(wheel).extractall(site)
    stale = tmp_path / "stale" / "slurmgpu" / "_data" / "templates"
    stale.mkdir(parents=True)
    (stale / "script.sh.j2").write_text("stale")
    path = os.pathsep.join([str(site), str(tmp_path / "stale")])
    done = subprocess.run(
        [sys.executable, "-m", "slurmgpu", "render", "uva-pytorch", "--cluster", "uva-afton"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (ROOT / "tests" / "golden" / "scripts" / "uva-pytorch.sbatch").read_text()


def test_the_version_is_printed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "slurmgpu", "--version"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == f"slurmgpu, version {__version__}\n"
