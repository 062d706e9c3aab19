"""The stand-in for NVML, compiled."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def compiled(folder: Path) -> Path:
    """The folder with the stand-in in it, for LD_LIBRARY_PATH; skips the test where there is no compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here to compile the stand-in for NVML with")
    library, source = folder / "libnvidia-ml.so.1", Path(__file__).with_name("nvml.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return folder
