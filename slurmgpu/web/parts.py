"""The parts of a page without a server that slurmgpu does not have: Python for browsers, and pydantic's core for it.

Both are pinned by version and SHA-256. They are downloaded where somebody asks for it, and by npm and pip alone.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from slurmgpu.errors import InvalidInput, SlurmGpuError

__all__ = ["Part", "download", "find", "parts"]

_PYODIDE = "314.0.7"
_PYODIDE_SHA256 = "66b7949e5a0cba2250b586d7e368bf12fb482800748d182c4618254b685ffaa0"
_ABI, _PYTHON = "pyemscripten_2026_0_wasm32", "3.14"
# What there is for that Python; pydantic takes one exact release.
_CORES = {
    "2.47.0": "cdf4dc2cdd0eacad1bd81c4d25422b4c25b206acae095d2d64e5d5cb7facc6b3",
    "2.48.0": "4fc45a49334c54541cbc97bf416d9300b4b1d3b2840dfb079b1123dc3f9ef5a6",
    "2.49.0": "62535ce2294441c986da1aeb743f7255ac99f3e0a3119bd8c44b36406d9f3721",
    "2.50.0": "ab3f95f737fc1b258b8210308fc02ce1442cf5950cf6d30b09ad89ab9e8afebd",
    "2.50.1": "99ba9bc2b8062ea0c326a990f7f00e6530c23579de66dd246e72c4cafef950a5",
    "2.50.2": "9a8a62281fd9c6a373b3fd3d473685e6838d43341eecde5f47729748e2c11ee3",
    "2.50.4": "e6da138a1ecc1341c8b788a5ee822670b03788e1f5decf7af9d461de6e508b8e",
    "2.50.5": "b2910ec0fa5aeb9bef70156f2b79f4783978fdcfaa7b2f1b5d1814458d2e79a1",
}


class Part(NamedTuple):
    """A file that is needed, and the command that downloads it into the folder that it runs in."""

    name: str
    sha256: str
    command: tuple[str, ...]


def parts() -> tuple[Part, Part]:
    """Pyodide and pydantic's core; InvalidInput where there is no core for the pydantic that is installed here."""
    core = version("pydantic_core")
    if core not in _CORES:
        raise InvalidInput(
            f"pydantic {version('pydantic')} is installed here, and its core {core} is not known to run in browsers; "
            f"known: {', '.join(_CORES)}",
            hint="make the page from a virtual environment with another one: pip install 'pydantic==2.14.3'",
        )
    pip = (
        "pip", "download", "--no-deps", "--only-binary", ":all:", "--platform", _ABI, "--python-version", _PYTHON,
        "--implementation", "cp", f"pydantic-core=={core}",
    )  # fmt: skip
    wheel = f"pydantic_core-{core}-cp314-cp314-{_ABI}.whl"
    return (
        Part(f"pyodide-{_PYODIDE}.tgz", _PYODIDE_SHA256, ("npm", "pack", f"pyodide@{_PYODIDE}")),
        Part(wheel, _CORES[core], pip),
    )


def find(part: Part, folder: Path) -> bytes:
    """Return a part's file; InvalidInput where it is not there, or is another one."""
    path = folder / part.name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read: {error.strerror}; a page without a server needs it, and it does not come with slurmgpu",
            hint=_ways(folder),
        ) from None
    found = hashlib.sha256(data).hexdigest()
    if found != part.sha256:
        raise InvalidInput(
            f"{path} is not the file that it should be: its SHA-256 is {found}, where {part.sha256} is expected",
            hint=f"remove it; {_ways(folder)}",
        )
    return data


def _ways(folder: Path) -> str:
    commands = "; ".join(" ".join(part.command) for part in parts())
    return (
        f"with a network: add --fetch, which downloads into {folder}; or run these elsewhere, and name the folder with "
        f"--parts: {commands}"
    )


def download(part: Part, folder: Path) -> None:
    """Download a part that is not in the folder yet; SlurmGpuError where that fails."""
    if (folder / part.name).is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    program = [sys.executable, "-m", "pip"] if part.command[0] == "pip" else [_npm(folder)]
    # In a new folder: in this one, which may be shared, Python would import modules, and npm read its settings.
    with tempfile.TemporaryDirectory(prefix="slurmgpu-") as own:
        Path(own, "package.json").write_bytes(b"{}")  # npm looks for none in the folders above
        try:
            done = subprocess.run(
                [*program, *part.command[1:]],
                cwd=own,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
            )
            if not done.returncode:
                with (folder / part.name).open("xb") as file:  # and not through a link
                    file.write(Path(own, part.name).read_bytes())
        except OSError as error:
            raise SlurmGpuError(
                f"{' '.join(part.command)} has failed: {error.strerror}", hint=_elsewhere(part, folder)
            ) from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "error" in line.lower()] or ["it says nothing"]
        raise SlurmGpuError(
            f"{' '.join(part.command)} has failed: {said[-1].strip()}", hint=_elsewhere(part, folder)
        )


def _npm(folder: Path) -> str:
    found = shutil.which("npm")
    if found is None:
        raise SlurmGpuError(
            "npm, which --fetch downloads Pyodide with, is not installed here",
            hint=_elsewhere(parts()[0], folder),
        )
    return found


def _elsewhere(part: Part, folder: Path) -> str:
    return f"run it on a machine with a network: {' '.join(part.command)}; then put {part.name} into {folder}"
