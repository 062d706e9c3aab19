"""Which GPUs have the memory that a training was worked out to take."""

from __future__ import annotations

from slurmgpu.cli.train import fits


def test_a_gpu_of_unknown_memory_is_neither_large_enough_nor_too_small() -> None:
    row = {"total": 30 << 30, "fixed": 20 << 30, "per_sample": 1 << 30}
    assert fits(row, None) == {"fits": None, "micro_batch": None}
    assert fits(row, 40 << 30) == {"fits": True, "micro_batch": 15}
    assert fits(row, 24 << 30) == {"fits": False, "micro_batch": 0}
