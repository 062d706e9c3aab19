"""The gate gives one second chance in a whole run, and `make test-all` goes on where it stopped."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ONCE = """
from pathlib import Path

def test_{name}():
    seen = Path(__file__).with_name("{name}-was-run")
    if not seen.exists():
        seen.touch()
        raise AssertionError("the first time")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with the gate's programs and this Python."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    for name in ("one", "two"):
        (tmp_path / f"test_{name}.py").write_text(ONCE.format(name=name))
    (tmp_path / "test_never.py").write_text("def test_never():\n    assert False\n")
    return tmp_path


def run(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [
        "env",
        f"SECOND_CHANCE={project / 'taken'}",
        f"PATH={Path(sys.executable).parent}:/usr/bin:/bin",
    ]
    return subprocess.run([*command, *words], cwd=project, capture_output=True, text=True, timeout=100)


def test_one_test_of_the_whole_gate_may_fail_once(project: Path) -> None:
    first = run(project, ".ci/pytest", "-q", "test_one.py")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "FAILED AT FIRST, PASSED BY ITSELF: test_one.py::test_one" in first.stderr
    second = run(project, ".ci/pytest", "-q", "test_two.py")
    assert (second.returncode, "no second chance is left" in second.stderr) == (1, True)


def test_two_tests_that_fail_at_once_get_no_second_chance(project: Path) -> None:
    assert run(project, ".ci/pytest", "-q", "test_one.py", "test_two.py").returncode == 1
    assert not (project / "taken").exists()


def test_a_test_that_fails_again_fails_the_gate(project: Path) -> None:
    assert run(project, ".ci/pytest", "-q", "test_never.py").returncode == 1


def test_everything_goes_on_where_it_stopped(project: Path) -> None:
    path = project / ".ci" / "test-all"
    text = path.read_text()
    start = text.index('    """Return all parts, those that find most first."""')
    end = text.index("def on(release")
    parts = """
    return [
        Part("fails once", ("first",), ".venv/bin/python -m pytest -q test_one.py"),
        Part("passes", ("second",), ".venv/bin/python -m pytest -q test_one.py test_two.py --deselect test_two.py"),
    ]


"""
    path.write_text(text[:start] + parts + text[end:])
    first = run(project, ".ci/test-all")
    assert first.returncode == 1
    assert "test-all: 1 of 2 parts passed" in first.stdout
    assert "FAILED test_one.py::test_one" in first.stdout
    again = run(project, ".ci/test-all", "--again")
    assert again.returncode == 0, again.stdout
    assert "  passes: passed on unknown, skipped" in again.stdout
    assert "test-all: 2 of 2 parts passed" in again.stdout
    (project / ".test-all" / "results.json").write_text('{"passes": ')  # cut off
    assert "test-all: 2 of 2 parts passed" in run(project, ".ci/test-all", "--again").stdout
    unknown = run(project, ".ci/test-all", "--only", "third")
    assert (unknown.returncode, "choose from first, second" in unknown.stderr) == (2, True)
