"""Run directories that version 0.1.0 left in the middle of a training go on to the bit.

``tests/data/earlier_runs`` has them, with the weights that 0.1.0 itself came to without a stop (``weights.json``). The
arithmetic of these trainings is exact on every machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import ready

from .conftest import ROOT, RunFolder, clean_environment, has_fsdp2

EARLIER = ROOT / "tests" / "data" / "earlier_runs"
WEIGHTS = json.loads((EARLIER / "weights.json").read_text())


def unpack(name: str, tmp_path: Path) -> RunFolder:
    with tarfile.open(EARLIER / f"{name}.tar.gz") as archive:
        archive.extractall(tmp_path)
    return RunFolder(tmp_path / name)


def last(run: RunFolder, name: str) -> dict[str, Any]:
    return torch.load(run.path / "checkpoints" / "step-24" / name, weights_only=True)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "processes"),
    [
        ("single", 1),
        ("ddp", 2),
        pytest.param("fsdp2", 2, marks=pytest.mark.skipif(not has_fsdp2(), reason="no fsdp2")),
    ],
)
def test_a_training_of_version_0_1_0_goes_on_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, processes: int
) -> None:
    run = unpack(name, tmp_path)
    monkeypatch.chdir(run.path)
    ended = run.ranks(processes)
    assert ended.codes == [0] * processes, ended.err
    assert "resuming from checkpoints/step-1" in ended.out
    if name == "fsdp2":
        shards = [last(run, f"shard-{rank}.pt")["model.pt['1.weight']"] for rank in range(2)]
        assert torch.cat(shards).tolist() == WEIGHTS[name]
    else:
        assert last(run, "model.pt")["1.weight"].tolist() == WEIGHTS[name]


def test_a_loop_of_ones_own_of_version_0_1_0_goes_on_to_the_bit(tmp_path: Path) -> None:
    run = unpack("own_loop", tmp_path)
    process = ready.start(
        [sys.executable, str(EARLIER / "loop.py")],
        clean_environment(run.path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    _, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    assert last(run, "state.pt")["model"]["1.weight"].tolist() == WEIGHTS["own_loop"]


def test_a_training_of_version_0_1_0_by_a_setting_that_has_gone_is_refused_with_the_way_out(
    tmp_path: Path,
) -> None:
    run = unpack("single", tmp_path)
    file = run.path / "train.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tensor_parallel": 2}))
    ended = run.ranks()
    assert ended.codes == [2]
    assert "tensor_parallel" in ended.err
    assert "torchtitan" in ended.err
