"""why and cluster gpus on a real Slurm: jobs that wait for every reason that can be provoked, and what is said of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slurmgpu.cli.cluster import command as cluster_command
from slurmgpu.cli.why import command
from slurmgpu.slurm import Slurm
from tests.slurm.conftest import need_slurm
from tests.slurm.situations import Situations, situations
from tests.test_why import CASES

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.every_release]


@pytest.fixture(scope="module")
def waiting(release: str | None) -> Iterator[Situations]:
    need_slurm()
    with situations() as running:
        running.settle()
        yield running


@pytest.fixture
def client(waiting: Situations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "SLURMGPU_SITE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    return Slurm(env=waiting.env)


def why(client: Slurm, number: int, *options: str) -> dict[str, Any]:
    shown = CliRunner().invoke(command, [str(number), "--json", *options], obj=client, catch_exceptions=False)
    assert shown.exit_code == 0, shown
    one: dict[str, Any] = json.loads(shown.stdout)["jobs"][0]
    return one


def figures(one: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for fact in one["facts"]:
        found.setdefault(fact["what"], fact)
    return found


@pytest.mark.parametrize("word", CASES)
def test_each_reason_is_told_with_the_jobs_own_figures(word: str, waiting: Situations, client: Slurm) -> None:
    if word in waiting.refused:
        pytest.skip(f"this release takes no such job: {waiting.refused[word]}")
    one = why(client, waiting.jobs[word])
    verdict, expected = CASES[word]
    assert one["verdict"] == verdict, one
    found = figures(one)
    for key, value in expected.items():
        kind, _, name = key.partition(".")
        assert found[kind][name] == value, (key, found[kind])
    assert one["unknown"] == {}
    assert len(client.asked) <= 9, client.asked


def test_gpus_of_this_moment_are_told(client: Slurm) -> None:
    shown = CliRunner().invoke(cluster_command, ["gpus", "--json"], obj=client, catch_exceptions=False)
    document = json.loads(shown.stdout)
    (a100,) = document["types"]
    assert (a100["total"], a100["used"], a100["free"], a100["away"]) == (16, 11, 1, {"drained": 4})
    mine = {(one["partition"], one["type"]): one["gpus"] for one in document["mine"]}
    assert (mine["gpu", "a100"], mine["lim", "a100"], mine["part", "a100"]) == (0, 1, 1)
    assert document["unknown"] == {}


def test_shapes_are_slurms_own_estimates(waiting: Situations, client: Slurm) -> None:
    one = why(client, waiting.jobs["Resources"], "--shapes")
    shapes = {tuple(shape["options"]): shape for shape in one["shapes"]}
    assert shapes[()]["start"] is not None
    # Partition lim has one GPU free at once, and the job asks for two.
    smaller = next(
        shape for options, shape in shapes.items() if options and options[0].startswith("--gpus-per-node")
    )
    assert smaller["start"] is not None


def test_what_is_told_to_be_the_mend_lets_the_job_start(waiting: Situations, client: Slurm) -> None:
    number = waiting.jobs["QOSMaxWallDurationPerJobLimit"]
    one = why(client, number)
    words = one["mends"][0]["command"].split()
    waiting.must(*words)
    assert why(client, number)["job"]["limit"] == 600
    state = ""
    for _ in range(600):
        state, _reason = waiting.reasons()[number]
        if state in ("RUNNING", "COMPLETED"):
            break
        waiting.run("sleep", "0.2")
    assert state in ("RUNNING", "COMPLETED")
