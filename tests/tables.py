"""Rows of tests, by the name of the test: tests/data/tables.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

__all__ = ["TABLES"]

TABLES: dict[str, list[Any]] = YAML(typ="safe").load(
    Path(__file__).with_name("data").joinpath("tables.yaml").read_text(encoding="utf-8")
)
