"""What long comparisons share: results that grow portion by portion, the release of Slurm, the commit."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from slurmgpu.sandbox.programs import slurm_release, slurm_version  # noqa: E402
from tests.slurm.releases import RELEASES, first_on_path, root_for  # noqa: E402

__all__ = ["RELEASES", "Portions", "commit", "installed", "on_release"]

ABOUT = ("profile", "slurm", "seed", "requests")
"""What tells one portion from another."""


def installed() -> str:
    """The release of this machine's own Slurm, such as 22.05."""
    year, month = slurm_release(slurm_version())
    return f"{year}.{month:02}"


def on_release(release: str) -> AbstractContextManager[None]:
    """Within it, a sandbox is one of this release of Slurm."""
    return nullcontext() if release == installed() else first_on_path(root_for(release))


def commit() -> str:
    """The commit that was measured; with a + where files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "slurmgpu", "examples/clusters")
    return git("rev-parse", "--short=8", "HEAD") + ("+" if changed else "")


class Portions:
    """A file of results with a row for each portion; several processes may add to it."""

    def __init__(self, name: str) -> None:
        self.path = ROOT / "benchmarks" / "results" / name

    @contextmanager
    def _locked(self) -> Iterator[list[dict[str, Any]]]:
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield json.loads(self.path.read_text())["portions"] if self.path.exists() else []

    def rows(self) -> list[dict[str, Any]]:
        """All portions."""
        with self._locked() as rows:
            return rows

    def has(self, **about: Any) -> bool:
        """Whether a portion is done, with nothing that differs or failed."""
        return any(
            all(row[key] == about[key] for key in ABOUT) and not row["differing"] and not row.get("failed")
            for row in self.rows()
        )

    def add(self, row: dict[str, Any]) -> None:
        """Write a portion down, in place of an earlier one of the same requests."""
        with self._locked() as rows:
            rows = [one for one in rows if any(one[key] != row[key] for key in ABOUT)]
            rows = sorted([*rows, row], key=lambda one: [str(one[key]) for key in ABOUT])
            data = {"machine": f"{platform.machine()}, {os.cpu_count()} CPUs", "portions": rows}
            self.path.with_suffix(".part").write_text(json.dumps(data, indent=1) + "\n")
            self.path.with_suffix(".part").replace(self.path)
