"""Which releases of Slurm CI tests on: .ci/releases, run in small repositories of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NEEDED = (".ci/releases", "tests/__init__.py", "tests/slurm/__init__.py", "tests/slurm/releases.py")
DAY = 86400
NOW = 1_800_000_000
ENDS = ["20.11", "26.05"]
"""With 22.05 installed."""


class Repository:
    """A clone of a project with the script, on a machine with Slurm 22.05."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        for name in NEEDED:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.folder / name)
        (folder / "bin").mkdir()
        self.install(folder / "bin" / "slurmctld", "slurm-wlm 22.05.8")
        nobody = {
            f"GIT_{role}_{what}": "a@b" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
        }
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            **nobody,
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "CI_BASE": "",
        }
        self.git("init", "-q", "-b", "main")

    def install(self, daemon: Path, says: str) -> None:
        daemon.write_text(f"#!/bin/sh\necho {says}\n")
        daemon.chmod(0o755)

    def git(self, *words: str, days: float = 0) -> str:
        """Git, as many days before now."""
        date = {"GIT_COMMITTER_DATE": f"{NOW - int(days * DAY)} +0000"}
        done = subprocess.run(
            ["git", *words], cwd=self.folder, env=self.env | date, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def commit(self, name: str, days: float) -> str:
        """A commit that changes one file, so many days old; its id."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write("# changed\n")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", name, days=days)
        return self.git("rev-parse", "HEAD")

    def chosen(self, where: Path | None = None, **env: str) -> list[str]:
        done = subprocess.run(
            [".ci/releases"], cwd=where or self.folder, env=self.env | env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith("releases: installed ")
        return done.stdout.split()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Its last commit that touched what is guarded is 10 days old; HEAD is new."""
    made = Repository(tmp_path)
    made.commit("README.md", days=11)
    made.commit("slurmgpu/slurm/squeue.py", days=10)
    made.commit("docs/new.md", days=0)
    return made


def test_a_change_elsewhere_is_tested_on_the_newest_besides_the_installed(repository: Repository) -> None:
    assert repository.chosen() == ["26.05"]


@pytest.mark.parametrize(
    "name", ["slurmgpu/slurm/new.py", "slurmgpu/sandbox/life.py", "tests/slurm/test_jobs.py"]
)
def test_a_change_of_what_talks_to_slurm_is_tested_on_the_oldest_too(
    repository: Repository, name: str
) -> None:
    repository.commit(name, days=0)
    assert repository.chosen() == ENDS
    # A later commit of something else does not hide it.
    repository.commit("README.md", days=0)
    assert repository.chosen() == ENDS


def test_a_file_that_is_gone_is_a_change(repository: Repository) -> None:
    repository.git("rm", "-q", "slurmgpu/slurm/squeue.py")
    repository.git("commit", "-q", "-m", "gone")
    assert repository.chosen() == ENDS


def test_a_change_that_is_not_committed_counts(repository: Repository) -> None:
    (repository.folder / "slurmgpu/slurm/squeue.py").write_text("")
    assert repository.chosen() == ENDS


def test_an_old_branch_that_was_merged_today_counts(repository: Repository) -> None:
    repository.git("checkout", "-q", "-b", "side", "HEAD~1")
    repository.commit("slurmgpu/sandbox/old.py", days=9)
    repository.git("checkout", "-q", "main")
    repository.git("merge", "-q", "--no-ff", "-m", "merge", "side", days=0)
    assert repository.chosen() == ENDS


def test_a_stated_base_wins(repository: Repository) -> None:
    assert repository.chosen(CI_BASE="HEAD~2") == ENDS
    repository.commit("slurmgpu/slurm/squeue.py", days=0)
    assert repository.chosen(CI_BASE="HEAD") == ["26.05"]
    assert repository.chosen(CI_BASE="0" * 40) == ENDS


@pytest.mark.parametrize("base", ["f" * 40, "--all", "no such"])
def test_a_base_that_is_not_here_means_the_oldest_too(repository: Repository, base: str) -> None:
    assert repository.chosen(CI_BASE=base) == ENDS


def test_a_shallow_clone_means_the_oldest_too(repository: Repository, tmp_path: Path) -> None:
    repository.git("clone", "-q", "--depth=1", f"file://{repository.folder}", str(tmp_path / "shallow"))
    assert repository.chosen(tmp_path / "shallow") == ENDS
    repository.git("clone", "-q", f"file://{repository.folder}", str(tmp_path / "whole"))
    assert repository.chosen(tmp_path / "whole") == ["26.05"]


def test_without_a_repository_the_oldest_too(repository: Repository) -> None:
    shutil.rmtree(repository.folder / ".git")
    assert repository.chosen(GIT_CEILING_DIRECTORIES=str(repository.folder.parent)) == ENDS


def test_the_installed_release_is_not_tested_twice(repository: Repository, tmp_path: Path) -> None:
    repository.install(tmp_path / "bin" / "slurmctld", "slurm-wlm 26.05.5")
    assert repository.chosen() == []
    assert repository.chosen(CI_BASE="HEAD~2") == ["20.11"]
    repository.install(tmp_path / "bin" / "slurmctld", "slurm 23.11.4")
    assert repository.chosen(CI_BASE="HEAD~2") == ENDS


def test_ci_runs_the_readmes_commands_and_then_the_chosen_releases(tmp_path: Path) -> None:
    """`make`, the choice and the browser are stand-ins; the first writes down how it is called."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    bodies = {
        "make": 'echo "$CI make $*" >>calls',
        ".ci/releases": "echo 24.11 26.05",
        ".ci/install-browser": "exit 3",
    }
    for name, body in bodies.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)

    def calls() -> list[str]:
        (tmp_path / "calls").unlink(missing_ok=True)
        env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        subprocess.run([tmp_path / ".ci" / "run"], env=env, check=True, capture_output=True)
        return (tmp_path / "calls").read_text().splitlines()

    # What the other releases run is left out of the long tests; without other releases they run whole.
    assert calls() == [
        "true make demo HERE=1",
        "true make slurm-packages",
        "true make test",
        "true make test-long QUICK=1",
        "true make test-torch-alone QUICK=1",
        "true make test-releases RELEASES=24.11 26.05 QUICK=1",
    ]
    (tmp_path / ".ci" / "releases").write_text("#!/bin/sh\necho\n")
    assert calls() == [
        "true make demo HERE=1",
        "true make slurm-packages",
        "true make test",
        "true make test-long",
        "true make test-torch-alone QUICK=1",
    ]
    (tmp_path / ".ci" / "install-browser").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(subprocess.CalledProcessError):
        calls()
    (tmp_path / ".ci" / "install-browser").write_text("#!/bin/sh\n")
    (tmp_path / ".ci" / "releases").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(subprocess.CalledProcessError):
        calls()
