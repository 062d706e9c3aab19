"""The recorded answers themselves: all releases under test have them, each with the command that made it."""

from __future__ import annotations

import json

import pytest

from slurmgpu.slurm import squeue
from tests.recorded import FOLDER, RELEASES, recorded
from tests.slurm import releases


def test_every_release_under_test_has_its_recordings() -> None:
    assert set(releases.RELEASES) == set(RELEASES)


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_has_the_recordings_that_all_have_and_names_its_version(release: str) -> None:
    names = {path.name for path in (FOLDER / release).iterdir()}
    assert names == {path.name for path in (FOLDER / RELEASES[0]).iterdir()}
    assert (FOLDER / release / "version").read_text().startswith(f"{release}.")


@pytest.mark.parametrize("release", RELEASES)
def test_each_recording_has_the_command_that_made_it(release: str) -> None:
    for path in (FOLDER / release).glob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        assert set(content) == {"argv", "rc", "stdout", "stderr"}, path
        # Named after its command, and then what was special.
        assert content["argv"][0] == path.stem.partition("_")[0], path
    assert recorded("sstat", release).argv == tuple(squeue.live_use_command([1, 9]))
