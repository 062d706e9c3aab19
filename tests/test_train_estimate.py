"""Which GPUs have the memory that a training was worked out to take."""

from __future__ import annotations

import json
from pathlib import Path

from slurmgpu.cli.actions.train_estimate import fits


def test_a_gpu_of_unknown_memory_is_neither_large_enough_nor_too_small() -> None:
    row = {"total": 30 << 30, "fixed": 20 << 30, "per_sample": 1 << 30}
    assert fits(row, None) == {"fits": None, "micro_batch": None}
    assert fits(row, 40 << 30) == {"fits": True, "micro_batch": 15}
    assert fits(row, 24 << 30) == {"fits": False, "micro_batch": 0}


def test_the_page_on_strategies_has_what_was_measured() -> None:
    root = Path(__file__).resolve().parent.parent
    page = (root / "docs" / "strategies.md").read_text()
    found = json.loads((root / "benchmarks" / "results" / "estimate.json").read_text())
    for name, case in found["cases"].items():
        if "layers split" in name:
            continue  # tensor_parallel, which has been removed
        estimated, measured = case["estimate"]["total"] / 2**20, case["measured"] / 2**20
        assert f"| {name} | {estimated:.0f} | {measured:.0f} | {case['ratio']:.2f} |" in page
