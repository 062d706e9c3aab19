"""The package keeps to its own limits: no circle of files, no function that is too long or asks for too much."""

from __future__ import annotations

import ast
import keyword
import sys
from collections.abc import Iterator
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
MOST_LINES, MOST_PARAMETERS = 60, 7


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(PACKAGE.parent)}:{node.lineno} {node.name}", node


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


def test_no_function_is_longer_than_a_screen() -> None:
    lengths = {place: (node.end_lineno or 0) - node.lineno + 1 for place, node in functions()}
    assert {place: length for place, length in lengths.items() if length > MOST_LINES} == {}


def test_no_function_has_more_parameters_than_one_remembers() -> None:
    counts = {}
    for place, node in functions():
        of = node.args
        named = [
            one.arg for one in (*of.posonlyargs, *of.args, *of.kwonlyargs) if one.arg not in ("self", "cls")
        ]
        counts[place] = len(named) + bool(of.vararg) + bool(of.kwarg)
    assert {place: count for place, count in counts.items() if count > MOST_PARAMETERS} == {}
