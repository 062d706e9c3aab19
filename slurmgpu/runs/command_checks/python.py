"""Files and modules that the Python of a command cannot read or import, by asking that Python."""

from __future__ import annotations

import ast
import builtins
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from slurmgpu.errors import SlurmUnreachable
from slurmgpu.files.trust import is_confined, read_regular, text_of
from slurmgpu.launchers import launcher_module, program_starting
from slurmgpu.lines.command import PythonCommand, python_command, runner_length
from slurmgpu.runs.command_checks.command import Command, Slip, is_python, near_word, run_here
from slurmgpu.runs.command_checks.environment import environment_here
from slurmgpu.runs.command_checks.script import code_of, modules_in
from slurmgpu.script.shell import Command as Text
from slurmgpu.script.shell import simple_commands

if TYPE_CHECKING:
    from slurmgpu.slurm import Runner

__all__ = [
    "MOST_MODULES", "OWN_PYTHON", "missing_imports", "parse_python", "syntax_fault", "unreadable_documents",
    "unreadable_python",
]  # fmt: skip


TIMEOUT = 5.0
"""Seconds after which nothing is said: a Python may lie on a slow file system."""
# The top module as Python finds it; what is below it by the names of files, since to ask Python would import it.
_ASK = """
import sys
sys.path[:1] = sys.path[0] and sys.path[:1]  # never the current folder: anybody may have put a module there
import os
from difflib import get_close_matches
from importlib.machinery import all_suffixes
from importlib.util import find_spec
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    top, *rest = name.split(".")
    try:
        spec = find_spec(top)
        folders = list(spec.submodule_search_locations or ()) if spec else None
    except Exception:
        continue
    if folders is None:
        print(name, "")
    for one in rest if folders else ():
        names = {each.partition(".")[0] if each.endswith(tuple(all_suffixes())) else each
                 for folder in folders if os.path.isdir(folder) for each in os.listdir(folder)}
        if one not in names:
            print(name, *get_close_matches(one, names, 1))
            break
        folders = [os.path.join(folder, one) for folder in folders]
"""

_READ = """
import sys
code = sys.argv[2] or open(sys.argv[1], "rb").read()
compile(code, sys.argv[1], "exec")
"""


@lru_cache(maxsize=64)
def parse_python(code: str | bytes) -> ast.Module:
    """Return the tree of Python code, which nobody may change; several of the checks read the same file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a remark on an escape in a string is for the job's Python
        return ast.parse(code)


OWN_PYTHON = ".".join(map(str, sys.version_info[:2]))
"""The release of Python that runs slurmgpu."""


def syntax_fault(error: SyntaxError | ValueError) -> tuple[str, str]:
    """Return the line at which Python cannot read a text, empty where it names none, and why."""
    if isinstance(error, SyntaxError):
        return str(error.lineno or ""), error.msg
    return "", str(error)


def unreadable_python(command: Command, code: str | Path, shown: str, run: Runner = run_here) -> Slip | None:
    """Return the slip of Python code, or of a file of it, whose syntax the job's Python does not take; None where it does.

    It is sure where the job's own Python can be asked; else the Python that runs slurmgpu judges, and a newer one may
    read more. ``shown`` names the code.
    """
    try:
        text = code if isinstance(code, str) else read_regular(code)
    except OSError:
        return None
    try:
        tree = parse_python(text)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(tree, shown, "exec", dont_inherit=True)
        return _fails_at_once(command, tree, shown)
    except (RecursionError, MemoryError):
        return None  # nested too deeply for this parser, which says nothing of the job's Python
    except (SyntaxError, ValueError) as error:
        line, why = syntax_fault(error)
    python = None if _unknown_python(command) else _python(command)
    if python is not None:
        try:
            answer = run(
                [python, "-I", "-c", _READ, str(code), code if isinstance(code, str) else ""],
                timeout=TIMEOUT,
                env=command.environ,
            )
        except SlurmUnreachable:  # it cannot be started
            python = None
        else:
            if answer.rc == 0:
                return None
            judged = re.search(r"(?m)^(?:Syntax|Indentation|Tab|Value|UnicodeDecode)Error", answer.stderr)
            python = python if judged else None
    reader = "its Python" if python else f"Python {OWN_PYTHON}"
    newer = "" if python else "; only a newer Python may read it, and the job fails at once otherwise"
    said = f"command: {shown}:{line and f' line {line}:'} {reader} cannot read it ({why})"
    return Slip(said, f"mend this line{newer}", sure=python is not None and not command.blind)


def unreadable_documents(command: Command, commands: tuple[Text, ...]) -> Iterator[tuple[int, Slip]]:
    """Yield the here-documents that Python is to read and cannot: ``python <<'EOF'``."""
    for one in commands:
        readers = [simple for simple in simple_commands(one) if simple.name.startswith("python")]
        if (
            len(one.documents) != 1
            or len(readers) != 1
            or any(not word.startswith("-") for word in readers[0].words[1:])
        ):
            continue
        (document,) = one.documents
        if document.expands and any(re.search(r"[$`\\]", line) for line in document.lines):
            continue  # the shell makes another text of it
        inner = command._replace(words=(readers[0].words[0], "-c", ""))
        slip = unreadable_python(inner, "\n".join(document.lines), "<<")
        if slip is not None:
            yield one.line, slip


def _fails_at_once(command: Command, tree: ast.Module, shown: str) -> Slip | None:
    """Return why the first lines of readable code raise under any Python: imports, and names of ``-c`` that nothing sets."""
    nodes = list(ast.walk(tree))
    packaged = any(isinstance(node, ast.Name) and node.id == "__package__" for node in nodes)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level and shown.endswith(".py") and not packaged:
            *package, stem = Path(shown).with_suffix("").parts
            below = package[:1] == ["src"]
            named = ".".join([*package[below:], stem])
            imports = f"from {'.' * node.level}{node.module or ''} import"
            said = f"command: {shown} line {node.lineno}: {imports} ...: a file that is run by its path is in no package"
            hint = f"run it as a module: python -m {named}" + ", with --set variables.PYTHONPATH=src" * below
            return Slip(said, hint, sure=not command.blind)
        for one in node.names if isinstance(node, ast.Import) else ():
            if one.name.endswith(".py"):
                said = f"{shown} line {node.lineno}: import {one.name}: import takes a module's name, not a file's"
                return Slip(f"command: {said}", f"write import {one.name.removesuffix('.py')}")
    if shown != "-c" or any(isinstance(node, ast.alias) and node.name == "*" for node in nodes):
        return None
    known = {"__name__", "__file__", "__doc__", *dir(builtins)}
    for inner in nodes:
        if isinstance(inner, ast.alias):
            known.add(inner.asname or inner.name.partition(".")[0])
        elif isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
            known.add(inner.id)
        elif isinstance(inner, (ast.arg, ast.FunctionDef, ast.ClassDef, ast.ExceptHandler)):
            known.add(getattr(inner, "arg", None) or getattr(inner, "name", None) or "")
    for statement in tree.body:
        for inner in ast.walk(statement) if isinstance(statement, (ast.Expr, ast.Assign)) else ():
            if isinstance(inner, ast.Name) and inner.id not in known:
                said = f"command: -c: nothing sets {inner.id!r} in this code"
                return Slip(said, f"import it first: import {inner.id}; ...")
    return None


def _unknown_python(command: Command) -> bool:
    """Return whether the job's Python cannot be found here: it is in a container, or modules or a login shell bring it.

    That of somebody else's request is not asked: it would be a program of their choice.
    """
    environment = command.plan.environment
    elsewhere = environment.container is not None or environment.modules is not None or is_confined()
    return command.folder is None or command.blind or command.plan.login_shell or command.brought or elsewhere


def missing_imports(command: Command, run: Runner = run_here) -> Slip | None:
    """Return what the command's script imports, or runs by ``-m``, and its Python does not have; a guess.

    The script and the modules beside it that it imports are read and not run. Nothing is said where the job's Python is
    another one than can be found here.
    """
    if command.folder is None or _unknown_python(command) or "PYTHONPATH" in command.plan.variables:
        return None
    python = _python(command)
    script, wanted = _imports(command, command.folder)
    if python is None or not wanted:
        return None
    beside = (command.folder / script).parent if script not in {"", "-c"} else command.folder
    try:
        answer = run(
            [python, "-c", _ASK, str(beside), *wanted],
            timeout=TIMEOUT,
            env=command.environ,
            cwd=command.folder,
        )
    except SlurmUnreachable:  # it cannot be started
        return None
    near = {
        line.partition(" ")[0]: line.partition(" ")[2]
        for line in answer.stdout.splitlines()
        if answer.rc == 0
    }
    missing = list(near)
    if script.endswith(".py") and "sys.path" in text_of(command.folder / script):
        bases = (command.folder, command.folder.parent, beside.parent)  # it may look further than Python does
        missing = [
            one
            for one in missing
            if not any([*base.glob(f"{one}*"), *base.glob(f"*/{one}*")] for base in bases)
        ]
    if not missing:
        return None
    lines = ", ".join(f"{name} ({wanted[name]})" if wanted[name] else name for name in missing[:5])
    what = f"{script} imports {lines}, and" if script else f"-m {missing[0]}:"
    full = f"{missing[0].rpartition('.')[0]}.{near[missing[0]]}"
    guess = f"did you mean {full}? else " if near[missing[0]] else ""
    top = missing[0].partition(".")[0]
    own = next((one for one in ("src", "lib") if (command.folder / one / top).is_dir()), None)
    here = script.endswith(".py") and "/" in script and _local(missing[0].partition(".")[0], command.folder)
    if here:
        named = str(Path(script).with_suffix("")).replace("/", ".")
        guess = f"it is in the work folder, where a file in {Path(script).parent} does not look: python -m {named}; else "
    elif own is not None:
        guess = f"it is in {own}: --set variables.PYTHONPATH={own}; else "
    elif not guess and (similar := near_word(missing[0].partition(".")[0], modules_in(command.folder))):
        guess = f"did you mean {similar}, which is here? else "
    return Slip(
        f"command: {what} its Python here ({python}) has no such {'module' if len(missing) == 1 else 'modules'}",
        f"{guess}activate the environment that has all it needs, or name it: --set environment.python.venv=FOLDER, or "
        "environment.python.conda=NAME",
        sure=False,
    )


def _python(command: Command) -> str | None:
    """Return the interpreter that would run the command here; None where this machine does not know it."""
    words = command.words
    python = python_command(words)
    first = words[runner_length(words)] if words else ""
    if python is None and is_python(first):  # python -c CODE
        python = PythonCommand(first, (), None, None, (), words[: runner_length(words)])
    if python is not None and (python.by_runner or python.runner or "/" in python.interpreter):
        return python.interpreter if python.interpreter.startswith("/") and not python.runner else None
    if python is None and program_starting(words) != "torchrun":
        return None
    activated = command.plan.environment.python.activated
    if activated is not None:
        assert command.folder is not None
        path, slip = environment_here(command.plan.environment.python, command.folder, command.environ)
        inside = None if path is None or slip is not None else path / "bin" / "python"
        return str(inside) if inside is not None and inside.exists() else None
    program = python.interpreter if python is not None else "torchrun"
    found = shutil.which(program, path=command.environ.get("PATH"))
    if python is None and found is not None:
        found = str(Path(found).with_name("python"))
    return found if found is not None and Path(found).exists() else None


def _imports(command: Command, folder: Path) -> tuple[str, dict[str, str]]:
    """Return the script, and the libraries that it imports in any case, each with its place; of ``-m`` the module."""
    python = python_command(command.words)
    if (
        python is not None
        and launcher_module(python.module) not in {None, "torchrun"}
        and python.module is not None
    ):
        return "", {python.module.partition(".")[0]: ""}
    if python is not None and python.module is not None and launcher_module(python.module) is None:
        return "", {} if _local(python.module.partition(".")[0], folder) else {python.module: ""}
    script = python.script if python is not None else None
    if script is None:
        script = next((word for word in command.words[1:] if word.endswith(".py")), None)
    code = code_of(command.words) if script is None else None
    if script is None and code is None:
        return "", {}
    found: dict[str, str] = {}
    first: Path | bytes = folder / script if script is not None else (code or "").encode()
    beside = (folder / script).parent if script is not None else folder
    by_path = beside != folder and program_starting(command.words) in {None, "torchrun"}
    waiting, seen = [first], {first}
    for path in waiting:  # grows by the project's own modules
        try:
            body = parse_python(read_regular(path) if isinstance(path, Path) else path).body
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        for node in body:  # what stands in try or if may be missing
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
            for name in (one.partition(".")[0] for one in names):
                local = _local(name, beside, folder)
                if local is not None and by_path and _local(name, beside) is None:
                    found.setdefault(
                        name, f"line {node.lineno}"
                    )  # of the work folder, where Python does not look
                if local is None and name not in sys.stdlib_module_names and name != "slurmgpu":
                    # slurmgpu: submission copies what a loop needs of it
                    file = f"{path.name} " if isinstance(path, Path) and path != first else ""
                    found.setdefault(name, f"{file}line {node.lineno}")
                elif local is not None and local not in seen and len(seen) < MOST_MODULES:
                    seen.add(local)
                    waiting.append(local)
    return script or "-c", found


MOST_MODULES = 50
"""A project's own modules; what is beyond is not looked at."""


def _local(name: str, *folders: Path) -> Path | None:
    """Return a module's file in these folders, of a package its ``__init__.py``, which need not be there; None: it is in none."""
    for one in folders:
        if (one / f"{name}.py").is_file():
            return one / f"{name}.py"
        if (one / name).is_dir():
            return one / name / "__init__.py"
    return None
