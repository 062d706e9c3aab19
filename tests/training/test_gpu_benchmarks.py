"""The benchmarks for GPUs start and end where there is none, and what they check there holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from .conftest import ROOT, clean_environment

pytestmark = pytest.mark.long


def test_every_gpu_benchmark_runs_on_a_cpu_with_tiny_sizes(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="pictures are made with Pillow")
    command = [sys.executable, ROOT / "benchmarks" / "gpu" / "run.py", "--tiny", "--out", tmp_path]
    environment = clean_environment(tmp_path) | {"CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=550)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (file,) = tmp_path.glob("gpu-*.json")
    assert file.name == "gpu-cpu.json"
    document = json.loads(file.read_text())
    results = document["results"]
    assert (document["tiny"], document["machine"]["device"]) == (True, "CPU")
    together, alone = ["resume", "parallel", "own", "edges"], ["sampling", "overhead", "stall", "amp"]
    assert list(results) == [*together, *alone, "speed", "verdict", "finder"]
    rates = (
        results["speed"]["gpt2"]["tokens_per_second"],
        results["speed"]["resnet from memory"]["images_per_second"],
    )
    assert [each.keys() for each in rates] == [{"bare", "slurmgpu"}] * 2
    assert {"bare", "slurmgpu"} == results["speed"]["resnet from JPEG files"]["images_per_second"].keys()
    assert results["verdict"]["many small layers"]["verdict"]["device"] == "cpu"
    assert ["left_out" in results[name] for name in ("finder", "sampling")] == [True, True]
    assert results["resume"]["exact"] is True
    resumed = results["resume"]["fp16-SIGKILL" if hasattr(torch.amp, "GradScaler") else "fp32-SIGKILL"]
    assert (resumed["exact"], resumed["steps"]) == (True, 24)
    assert 0 < int(resumed["resumed_from"].removeprefix("step-")) < 24
    assert (results["own"]["exact"], results["own"]["said"]) == (True, "device cpu backend gloo")
    assert results["overhead"]["small"]["parameters"] < results["overhead"]["large"]["parameters"]
    assert [len(results["overhead"][size]["ratio"]) for size in ("small", "large")] == [3, 3]
    assert [save["step"] for save in results["stall"]["saves"]] == [8, 16]
    assert all(save["bytes"] > 10_000 for save in results["stall"]["saves"])
    parallel = results["parallel"]
    assert parallel["copies_ahead"]["equal"] is True
    assert [parallel["data_parallel"][name]["close"] for name in ("fp32", "bf16")] == [True, True]
    assert parallel["group_of_one"] == {"backend": "gloo", "right": True}
    assert "needs 2 GPUs" in parallel["two_ranks"]["left_out"]
    assert len(results["edges"]["right"]) == 3
    assert results["amp"]["left_out"] == ["tf32", "fp16"]
    assert all(set(results["amp"][case]["speedup"]) == {"fp32", "bf16"} for case in ("decoder", "residual"))
