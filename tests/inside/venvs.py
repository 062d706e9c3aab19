"""Virtual environments with packages that only these tests need, kept between runs in a cache folder."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.slurm.conftest import absent

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slurmgpu-tests"
_VENVS = CACHE / "venvs"


def venv_with(*requirements: str, beside: bool = False) -> Path:
    """The folder of a venv that has these requirements, such as ``uv==0.9.2``; made once, then found again.

    ``beside``: it also sees the packages of the Python that runs the tests (torch among them), which are then not
    installed again. What cannot be installed here skips the test, and fails it in CI.
    """
    words = [sys.version, _ours() if beside else "", *requirements]
    folder = (
        _VENVS
        / f"{requirements[0].partition('=')[0]}-{hashlib.sha256(repr(words).encode()).hexdigest()[:12]}"
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            _make(folder, requirements, beside)
    return folder


def see_ours(venv: Path) -> None:
    """Have a venv see the packages of the Python that runs the tests."""
    (site,) = venv.glob("lib/python3*/site-packages")
    (site / "beside.pth").write_text(f"import site; site.addsitedir({_ours()!r})\n")


def _ours() -> str:
    return next(path for path in sys.path if path.endswith("site-packages"))


def _make(folder: Path, requirements: tuple[str, ...], beside: bool) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True)
    if beside:
        see_ours(folder)
    python = str(folder / "bin" / "python")
    done = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", "install", "-q", *requirements],
        capture_output=True,
        text=True,
        timeout=1500,
    )
    if done.returncode:
        absent(f"{' '.join(requirements)} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    (folder / "made").touch()
