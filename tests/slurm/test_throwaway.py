"""What the other tests rely on: the throwaway Slurm is a real one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from tests.slurm.throwaway import ThrowawaySlurm

pytestmark = [pytest.mark.slurm, pytest.mark.long]


def processes_that_mention(folder: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            about = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            links = [entry / "cwd", *(entry / "fd").iterdir()]
        except OSError:
            continue
        # A step daemon may write its title over its environment.
        targets = []
        for link in links:
            with suppress(OSError):
                targets.append(str(link.readlink()))
        if folder.encode() in about or any(target.startswith(f"{folder}/") for target in targets):
            with suppress(OSError):  # it may end while it is looked at
                found.append(f"{entry.name} {(entry / 'comm').read_text().strip()}")
    return found


def test_four_idle_nodes_have_four_gpus_each(slurm: ThrowawaySlurm) -> None:
    slurm.wait_until_idle()
    rows = slurm.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %T %G %c %m"]).stdout.splitlines()
    assert [row.split() for row in rows] == [
        [f"node{number}", "idle", "gpu:a100:4", "16", "64000"] for number in (1, 2, 3, 4)
    ]
