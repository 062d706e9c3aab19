"""Start one stand-in: ``python -I -S .../standins/__main__.py NAME FOLDER ARGUMENTS...``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main() -> int:
    """Import the module of the stand-in that is named and hand it its folder and arguments."""
    # Last on the path: a module beside slurmgpu must not take the place of the standard library's.
    sys.path.append(str(Path(__file__).resolve().parents[3]))
    name, folder, *arguments = sys.argv[1:]
    module = importlib.import_module(f"slurmgpu.local.standins.{name}")
    code: int = module.main(folder, arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
