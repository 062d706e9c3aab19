"""Several trainings one after the other by the same processes, which start and import torch once: ``python several.py RUN...``.

Each has a run directory with its ``train.json``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch.distributed as dist

from slurmgpu.training.processes import group as groups
from slurmgpu.training.processes.meeting import connect
from slurmgpu.training.processes.ranks import from_environment
from slurmgpu.training.settings import load
from slurmgpu.training.trainer import train


def main() -> None:
    ranks = from_environment(os.environ)
    with groups.join(ranks, 240, "cpu") as group:
        for folder in sys.argv[1:]:
            # What one has left in the store is not for the next.
            groups.connect = lambda timeout, name=folder: dist.PrefixStore(name, connect(timeout))
            os.environ["SLURMGPU_RUN_DIR"] = folder
            settings = load(Path(folder, "train.json"))
            train(settings, Path(folder), groups.Group(ranks, group.device), os.environ)
            sys.modules.pop("small", None)


if __name__ == "__main__":
    main()
