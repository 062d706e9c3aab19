"""The settings of a training, as ``train:`` in a job file and as ``train.json``."""

from __future__ import annotations

__all__ = ["CHANGE_NO_BIT", "CHANGE_ONLY_ROUNDING"]

CHANGE_NO_BIT = frozenset({
    "epochs", "max_steps", "fit_head_room", "workers", "meta_device",
    "evaluate_every", "evaluate_steps", "best", "early_stop",
    "checkpoint_every", "checkpoint_steps", "checkpoint_shared_steps", "checkpoint_node_folder", "checkpoint_share",
    "keep", "keep_every", "resume", "sanity", "stop_margin", "hang_timeout", "timeout",
    "log_every", "checksum_steps", "verify_steps", "mismatch", "track", "peak_flops",
    "profile", "profile_after", "profile_steps", "profile_stacks", "profile_snapshot", "nvtx",
})  # fmt: skip
"""Settings that change how long a training is and what is done between its steps, and no step."""
CHANGE_ONLY_ROUNDING = frozenset({"strategy", "pipeline_stages", "pipeline_schedule"})
"""Settings with which a step computes the same in another order."""
