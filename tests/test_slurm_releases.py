"""Where other releases of Slurm come from; none is fetched here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm import releases
from tests.slurm.releases import ReleaseUnavailable, Root, root_for


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "slurmgpu-tests"


def pretend(release: str, root: Root) -> None:
    """Build a root with nothing but a slurmctld that knows its version."""
    root.bin.mkdir(parents=True)
    (root.bin / "slurmctld").write_text(f"#!/bin/sh\necho slurm-wlm {release}.9\n")
    (root.bin / "slurmctld").chmod(0o755)
    (root.folder / "complete").touch()


def test_a_root_is_built_once_and_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    monkeypatch.setattr(
        releases, "_build", lambda release, root: (built.append(release), pretend(release, root))
    )
    assert [root_for("24.11").version for _ in range(2)] == ["24.11.9"] * 2
    assert root_for("20.11").version == "20.11.9"
    assert built == ["24.11", "20.11"]


def test_what_an_interrupted_build_left_is_built_anew(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    def interrupted(release: str, root: Root) -> None:
        pretend(release, root)
        (root.folder / "complete").unlink()
        (root.folder / "half").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(releases, "_build", interrupted)
    with pytest.raises(KeyboardInterrupt):
        root_for("24.11")
    assert list(cache.glob("*/half"))
    monkeypatch.setattr(releases, "_build", pretend)
    assert root_for("24.11").version == "24.11.9"
    assert not list(cache.glob("*/half"))


def test_a_release_that_nobody_packages_is_named() -> None:
    with pytest.raises(ReleaseUnavailable, match=r"Slurm 19\.05, only for 20\.11, .*26\.05"):
        root_for("19.05")


def test_without_the_tools_the_command_that_installs_them_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "NEEDED", ("apt-get", "no-such-tool"))
    with pytest.raises(ReleaseUnavailable, match=r"no-such-tool.*install-slurm --releases"):
        root_for("24.11")


@pytest.mark.slurm
def test_without_a_network_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    if any(shutil.which(name) is None for name in releases.NEEDED) or not releases.KEYS.exists():
        pytest.skip("no apt or patchelf here: sudo .ci/install-slurm --releases")
    # Nobody listens at the discard port.
    monkeypatch.setattr(releases, "_mirrors", lambda: ["http://127.0.0.1:9/debian"])
    with pytest.raises(ReleaseUnavailable, match=r"Slurm 24\.11 cannot be fetched: trixie: .*127\.0\.0\.1"):
        root_for("24.11")


@pytest.mark.parametrize(("ci", "code", "outcome"), [("true", 1, "1 error"), ("", 0, "1 skipped")])
def test_a_release_that_cannot_be_had_fails_in_ci_and_else_skips_and_says_why(
    ci: str, code: int, outcome: str
) -> None:
    test = "tests/slurm/test_throwaway.py::test_four_idle_nodes_have_four_gpus_each"
    env = {name: value for name, value in os.environ.items() if name != "SLURMGPU_REQUIRE_SLURM"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test],
        cwd=Path(__file__).parents[1],
        env=env | {"SLURMGPU_TEST_RELEASES": "19.05", "CI": ci},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == code, done.stdout
    assert outcome in done.stdout.splitlines()[-1]
    assert "no Debian suite is known for Slurm 19.05" in done.stdout
