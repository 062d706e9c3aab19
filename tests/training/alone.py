"""A Python with torch alone, made of links into this one.

    python tests/training/alone.py FOLDER

makes a virtual environment in the folder, with torch and pytest and what these require, for the tests beside it.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import venv
from pathlib import Path

__all__ = ["python_with"]


def python_with(folder: Path, *packages: str) -> Path:
    """The interpreter of a new virtual environment with these packages and those they require, and no others."""
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    wanted, linked = list(packages), set()
    while wanted:
        name = wanted.pop()
        if name in linked:
            continue
        linked.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if name in packages:
                raise
            continue  # required on another system only
        for top in {Path(str(file)).parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            target = site / top
            if not target.exists():
                target.symlink_to(Path(str(distribution.locate_file(top))))
        requirements = [each for each in distribution.requires or [] if "extra ==" not in each]
        wanted += [re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in requirements]
    return folder / "bin" / "python"


if __name__ == "__main__":
    print(python_with(Path(sys.argv[1]), "torch", "pytest", "pytest-timeout"))
