"""The options of torchrun, of torch 2.1 to 2.13, with those of ``python -m torch.distributed.launch``."""

from __future__ import annotations

from collections.abc import Sequence

from .options import table

__all__ = ["MODULES", "RENDEZVOUS", "TORCHRUN", "torchrun_at"]

MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch"})
"""What ``python -m`` starts it by."""

RENDEZVOUS = "--rdzv-backend=c10d --rdzv-endpoint=$(scontrol show hostnames | head -n 1):29500"
"""Options by which the nodes of a job meet; scontrol takes the job's nodes from SLURM_JOB_NODELIST."""

_REQUIRED = """
nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf max-restarts monitor-interval start-method
event-log-handler role log-dir redirects tee local-ranks-filter duplicate-stdout-filters duplicate-stderr-filters
node-rank master-addr master-port local-addr logs-specs numa-binding signals-to-handle shutdown-timeout
"""
_NONE = "help standalone module no-python run-path virtual-local-rank use-env"

_LETTERS = {"h": "help", "m": "module", "r": "redirects", "t": "tee"}
TORCHRUN = table(_REQUIRED, _NONE, _LETTERS, abbreviates=True, underscores=True)
"""torchrun's options; what follows them is the script or module with its arguments."""


def torchrun_at(words: Sequence[str]) -> int | None:
    """The index at which torchrun's own arguments begin; None in a command without torchrun."""
    for index, word in enumerate(words):
        if word.rsplit("/", 1)[-1] == "torchrun" or (word in MODULES and index and words[index - 1] == "-m"):
            return index + 1
    return None
