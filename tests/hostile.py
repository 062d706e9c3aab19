"""Values that break careless quoting: each must come back from Slurm equal, or be refused by name."""

from __future__ import annotations

from pathlib import Path

from ruamel.yaml import YAML

VALUES: dict[str, str] = YAML(typ="safe").load(Path(__file__).parent / "data" / "hostile.yaml")
VALUES |= {"long": "x" * 900, "very_long": "x" * 5000}
