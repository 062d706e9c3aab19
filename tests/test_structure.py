"""The package keeps to its own rules: no circle of files, and a contract that lists every command."""

from __future__ import annotations

import keyword
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from slurmgpu.cli.group import COMMANDS

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

PACKAGE = Path(__file__).parents[1] / "slurmgpu"


def test_no_file_imports_one_that_imports_it() -> None:
    graph = grimp.build_graph("slurmgpu", exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # CycleError names the files


def test_the_contract_on_commands_lists_every_module_that_holds_one() -> None:
    text = (PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    (listed,) = (one["modules"] for one in contracts if one["name"] == "No command imports another")
    modules = [f"{name}_" if keyword.iskeyword(name) else name for name in COMMANDS]
    assert sorted(listed) == sorted(f"slurmgpu.cli.{module}" for module in modules)
