"""The package keeps to its own rules: no circle of files, and a contract that lists every command."""

from __future__ import annotations

import ast
import keyword
import shutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from slurmgpu.cli.group import COMMANDS
from slurmgpu.runs.directory import copy_entrypoint

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

PACKAGE = Path(__file__).parents[1] / "slurmgpu"


def test_no_file_imports_one_that_imports_it() -> None:
    graph = grimp.build_graph("slurmgpu", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # CycleError names the files


def test_the_contract_on_commands_lists_every_module_that_holds_one() -> None:
    text = (PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    (listed,) = (one["modules"] for one in contracts if one["name"] == "No command imports another")
    modules = [f"{name}_" if keyword.iskeyword(name) else name for name in COMMANDS]
    assert sorted(listed) == sorted(f"slurmgpu.cli.{module}" for module in modules)


def test_what_both_sides_agree_on_imports_the_standard_library_and_itself_alone() -> None:
    """So that any command may load it, and a job needs nothing else."""
    for file in (PACKAGE / "training" / "formats").glob("*.py"):
        graph = ast.walk(ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 9)))
        for node in graph:
            if isinstance(node, ast.Import):
                assert {each.name.partition(".")[0] for each in node.names} <= sys.stdlib_module_names, file
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 1 or str(node.module).partition(".")[0] in sys.stdlib_module_names, file
    ask = "import sys, slurmgpu.training.formats.settings; print({'torch', 'pydantic'} & sys.modules.keys())"
    asked = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert asked.stdout == "set()\n"


def test_what_both_sides_agree_on_travels_under_the_copy_s_own_name(tmp_path: Path) -> None:
    """As a folder in the run directory, and from a zip; nothing of the installed package is needed."""
    copy_entrypoint(tmp_path / "code")
    formats = sorted((tmp_path / "code" / "slurmgpu_training" / "formats").glob("*.py"))
    assert [file.name for file in formats] == sorted(
        file.name for file in (PACKAGE / "training" / "formats").glob("*.py")
    )
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "code")
    names = [f"slurmgpu_training.formats.{file.stem}" for file in formats if file.stem != "__init__"]
    ask = f"import sys, slurmgpu_training.settings, {', '.join(names)}; print('slurmgpu' in sys.modules)"
    for path in (tmp_path / "code", packed):
        command = [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(path)!r}); {ask}"]
        asked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert asked.stdout == "False\n", asked.stderr


def test_a_stand_in_for_slurm_loads_no_models() -> None:
    """Each command of a script that runs here starts one, and Pydantic would make each of them wait."""
    ask = "import sys, slurmgpu.local.standins.__main__; print({'pydantic', 'slurmgpu.models'} & sys.modules.keys())"
    asked = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert asked.stdout == "set()\n"
