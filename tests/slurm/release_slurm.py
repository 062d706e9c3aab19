"""The throwaway Slurm in a release of choice, beside the one that is installed here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurmgpu.sandbox.programs import slurm_release, slurm_version
from tests.slurm.releases import ReleaseUnavailable, root_for
from tests.slurm.throwaway import ThrowawaySlurm, missing_programs

PATH_OF_JOBS = """\
#!/bin/sh
# A job that inherits no environment would call the commands of this machine's own Slurm.
case ":$PATH:" in *:{bin}:*) ;; *) echo "export PATH={bin}:${{PATH:-/usr/local/bin:/usr/bin:/bin}}" ;; esac
"""


class ReleaseSlurm(ThrowawaySlurm):
    """A running throwaway Slurm of one release (a key of ``releases.RELEASES``); used as ThrowawaySlurm is.

    Its commands stand first on ``env``'s PATH. Raises ReleaseUnavailable or SlurmStartError.
    """

    def __init__(self, release: str, start_timeout: float = 60) -> None:
        self.root = root_for(release)
        with _first_on_path(self.root.bin):
            if missing := missing_programs():
                raise ReleaseUnavailable(f"no {', '.join(missing)} here: sudo .ci/install-slurm --releases")
            super().__init__(start_timeout)

    def _configured(self) -> None:
        prolog = self.folder / "path.sh"
        prolog.write_text(PATH_OF_JOBS.format(bin=self.root.bin))
        prolog.chmod(0o755)
        for name in ("slurm.conf", "slurmdbd.conf"):
            path = self.folder / name
            text = f"{path.read_text()}PluginDir={self.root.plugins}\n"
            if name == "slurm.conf":
                text = spelled_for(slurm_release(slurm_version()), text) + f"TaskProlog={prolog}\n"
            path.write_text(text)


def spelled_for(release: tuple[int, int], conf: str) -> str:
    """The slurm.conf in the words of a release."""
    if release < (21, 8):
        # It counts one up before the first job.
        conf += "FirstJobId=0\n"
        conf = re.sub(r"(?m)^AccountingStoreFlags=.*", "AccountingStoreJobComment=YES", conf)
    return conf


@contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{folder}{os.pathsep}{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before
