"""Why a Python script fails in a job, or does nothing, found in its text: names, modules, files, a terminal."""

from __future__ import annotations

import ast
import builtins
import os
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath

from slurmgpu.files.trust import read_regular
from slurmgpu.launchers import launcher_module, python_files
from slurmgpu.lines.command import changes_folder, python_command, runner_length
from slurmgpu.runs.command_checks.command import (
    Command,
    Slip,
    is_python,
    is_there,
    meant,
    near_word,
    seen_from_here,
)
from slurmgpu.runs.command_checks.python import MOST_MODULES, parse_python, unreadable_python
from slurmgpu.runs.command_checks.script import code_of

__all__ = [
    "OF_SHELL",
    "Source",
    "code_slips",
    "is_conditional",
    "is_started",
    "literals",
    "name_of",
    "parents_of",
    "text_slips",
]


# Python may have these before it looks into the script's folder, some by a .pth file.
_AT_START = {
    *sys.builtin_module_names,
    "abc", "codecs", "collections", "contextlib", "encodings", "enum", "functools", "genericpath", "importlib", "io",
    "keyword", "ntpath", "operator", "os", "posixpath", "re", "reprlib", "runpy", "site", "stat", "types", "typing",
    "warnings", "zipimport",
}  # fmt: skip
# An empty file of such a name makes `import torch` fail (tried with 2.x).
_NEEDED_BY_TORCH = (
    "ast", "base64", "bisect", "cmath", "copy", "ctypes", "dataclasses", "datetime", "dis", "email", "http",
    "inspect", "json", "logging", "math", "mmap", "multiprocessing", "numbers", "pickle", "platform",
    "pprint", "queue", "random", "select", "selectors", "signal", "socket", "string", "struct", "subprocess",
    "tempfile", "textwrap", "threading", "timeit", "token", "tokenize", "traceback", "unittest",
)  # fmt: skip
_IMPORT_TORCH = {"lightning", "pytorch_lightning", "timm", "torch", "torchvision"}
_LIBRARIES = _IMPORT_TORCH | {
    "PIL", "accelerate", "cv2", "datasets", "deepspeed", "einops", "evaluate", "h5py", "jax", "matplotlib", "numpy",
    "omegaconf", "pandas", "peft", "scipy", "seaborn", "sklearn", "tensorboard", "tensorflow", "tokenizers", "tqdm",
    "transformers", "triton", "wandb", "yaml",
}  # fmt: skip
_KNOWN = sys.stdlib_module_names | _LIBRARIES
# Names that a program around the script binds: gettext, kernprof, pyspark, snakemake; and one of Windows.
_GIVEN = {"_", "WindowsError", "dbutils", "profile", "reveal_type", "sc", "snakemake", "spark"}
_BINDS_UNSEEN = re.compile(
    r"(?<![.\w])(?:exec|eval|execfile|globals|var)\s*\(|(?<![.\w])(?:locals|vars|dir)\s*\(\s*\)|\bbuiltins\b"
    r"|__builtins__|sys\.modules|import\s*\*|sympy\.var\b"
)
# The same of a module, for those who import from it.
_HAS_MORE = re.compile(
    r"(?<![.\w])(?:exec|eval|globals|locals|vars|setattr)\s*\(|sys\.modules|__dict__|import\s*\*|__getattr__|__path__"
    r"|import_module|__import__|(?i:lazy)"
)
_SET_BY_OTHERS = re.compile(
    r"(?:SLURM|CUDA|NCCL|OMP|KMP|MKL|PMI|MPI|OMPI|MV2|I_MPI|HOROVOD|ROCR|HIP|GPU|MASTER|GROUP|ROLE|TORCH|PBS|LSB|SGE"
    r"|PYTHON|CONDA|LD|LC|XDG|ACCELERATE|NODE|LOCAL|JOB|EB)\w*|\w*(?:RANK|WORLD_SIZE|SCRATCH|TE?MP|TE?MPDIR)|HOME|USER"
    r"|LOGNAME|SHELL|PATH|PWD|HOST|HOSTNAME|LANG|DISPLAY|TERM|WORK|PROJECT|STORE|VIRTUAL_ENV"
)
_READS = re.compile(
    r"(?:io\.)?open|(?:np|numpy)\.(?:load|loadtxt|genfromtxt)|(?:torch|joblib|OmegaConf)\.load|Image\.open"
    r"|(?:pd|pandas)\.read_(?:csv|json|parquet|pickle|excel|table|feather|hdf)"
)
_CONDITIONS = (
    ast.If, ast.IfExp, ast.BoolOp, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.ClassDef, ast.Lambda, ast.match_case,
    getattr(ast, "TryStar", ast.Try), ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip
_IMPORTS = (ast.Import, ast.ImportFrom)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Source:
    """A script's text, read once: its nodes without annotations, and what stands around each."""

    def __init__(self, data: bytes) -> None:
        self.text, self.tree = data.decode("utf-8", errors="replace"), parse_python(data)
        self.nodes: list[ast.AST] = [self.tree]
        self.above: dict[ast.AST, ast.AST] = {}
        for node in self.nodes:  # grows while it is read
            for field in node._fields:
                value = getattr(node, field, None)
                for one in value if isinstance(value, list) else (value,):
                    if isinstance(one, ast.AST) and field not in {"ctx", "op", "annotation", "returns"}:
                        self.above[one] = node
                        self.nodes.append(one)

    def around(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Yield each node around another, with the one within it that leads there."""
        while (outer := self.above.get(node)) is not None:
            yield outer, node
            node = outer

    def place(self, node: ast.AST) -> str | None:
        """Return the function that a node stands in, "" for none; None where a condition may keep it from running."""
        for outer, inner in self.around(node):
            if isinstance(outer, _FUNCTIONS):
                return outer.name if self.above[outer] is self.tree else None
            always = inner in (getattr(outer, "test", None), getattr(outer, "iter", None))
            always |= isinstance(outer, ast.If) and "'__main__'" in ast.dump(outer.test)
            if isinstance(outer, _CONDITIONS) and not always:
                return None
        return ""

    @cached_property
    def runs(self) -> set[str | None]:
        """Return the functions that the script calls in any case, and "" for what stands in none."""
        calls = [one for one in self.nodes if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)]
        edges = {(self.place(call), ast.unparse(call.func)) for call in calls}
        found: list[str] = [""]
        for one in found:
            found += {name for by, name in edges if by == one}.difference(found)
        return set(found)


def code_slips(command: Command, folder: Path, *, fed: bool = False) -> Iterator[Slip]:
    """Yield what is wrong in the Python that a command runs: a file, code behind ``-c``, a module of the work folder.

    ``fed``: a shell gives it an input.
    """
    words = command.words
    at, script, python = runner_length(words), code_of(words), python_command(words)
    if changes_folder(words[:at]) or "$" in (script or ""):
        return
    by_module = python is not None and python.module is not None and launcher_module(python.module) is None
    if script is not None:
        inline = python is None and is_python(words[at])
        if inline and re.fullmatch(r"[\w./-]+\.py", script) and is_there(folder / script):
            rest = (word for n, word in enumerate(words) if n != words.index("-c"))
            said = f"command: -c takes code, and {script!r} is a file"
            yield Slip(said, f"leave -c out: {command.instead(*rest)}", not command.blind)
            return
        slip = unreadable_python(command, script if inline else folder / script, "-c" if inline else script)
        if slip is not None or inline:
            yield from filter(None, [slip])
            return
    elif by_module:
        script = next((one for one in python_files(words) if (folder / one).is_file()), None)
    if script is None:
        return
    safe = python is not None and any(re.match(r"-\w*[IP]", one) for one in python.options)
    try:
        path = (folder / script).absolute()
        source = Source(read_regular(path))
        texts, found = {path: source.text}, list(text_slips(command, source, script, fed=fed))
        if not (command.blind or safe):
            found += _module_slips(command, path, source, folder if by_module else path.parent, texts)
        if not command.blind:
            found += _needed_slips(command, folder, source, texts, script)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    yield from found


def text_slips(command: Command, source: Source, shown: str, *, fed: bool = False) -> Iterator[Slip]:
    """Yield what fails wherever a script lies: names that nothing binds, no call at all, a terminal, a display."""
    tree, text, place = source.tree, source.text, source.place
    own, known = set[str](), {*dir(builtins), *_GIVEN}
    for node in source.nodes:
        if isinstance(node, ast.Name):
            own.update(() if isinstance(node.ctx, ast.Load) else (node.id,))
        elif isinstance(node, ast.alias):
            own.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            own.update(node.names)
        elif not isinstance(node, (ast.keyword, ast.Attribute)):
            given = (getattr(node, one, None) for one in ("name", "arg", "rest"))
            own.update(one for one in given if isinstance(one, str))
    unbound: dict[str, int] = {}
    for node in source.nodes if not _BINDS_UNSEEN.search(text) else ():
        if not isinstance(node, ast.Name) or node.id in own or node.id in known or node.id[:2] == "__":
            continue
        doubt = False
        for outer, inner in source.around(node):
            handlers = getattr(outer, "handlers", ())
            caught = " ".join(ast.unparse(one.type) if one.type else "Exception" for one in handlers)
            test = ast.unparse(outer.test) if isinstance(outer, (ast.If, ast.IfExp)) else ""
            unset = rf"\b{test}\s*=\s*(?:False|0|None)\b"
            doubt |= inner is getattr(outer, "type", None)
            doubt |= re.search(r"NameError|Exception", caught) is not None
            doubt |= re.search(r"version|platform|PY[23]|TYPE_CHECKING|\A(?:False|0)\Z", test) is not None
            doubt |= test.isidentifier() and re.search(unset, text) is not None
        if not doubt:
            unbound[node.id] = min(node.lineno, unbound.get(node.id, node.lineno))
    for name, line in sorted(unbound.items(), key=lambda one: one[1])[:1]:
        near = near_word(name, own | known - _GIVEN) if len(name) > 2 else None
        hint = f"did you mean {near}?" if near else "import it, or give it a value first"
        names = ", ".join([name, *(one for one in unbound if one != name)][:4])
        said = f"command: {shown} line {line}: nothing binds {names}"
        if name in {"get_ipython", "display"}:
            hint = f"{name} is a name of a notebook: take it out"
        yield Slip(f"{said}: a NameError when it is reached", hint, sure=False)

    wrong = re.search(r"(?m)^if\s+__name__\s*==\s*(['\"])(_*main_*)\1", text)
    work = [one for one in tree.body if not isinstance(getattr(one, "value", None), ast.Constant)]
    aliases = [one for one in source.nodes if isinstance(one, ast.alias)]
    named = {getattr(source.above[one], "module", one.name) or "." for one in aliases}
    defined = [one.name for one in work if isinstance(one, _FUNCTIONS)]
    acts = re.search(r"(?m)^@|metaclass", text) or any(
        isinstance(one, (ast.Call, ast.Raise))
        and not any(isinstance(outer, _FUNCTIONS) for outer, _ in source.around(one))
        for one in source.nodes
    )
    if wrong is not None and "__main__" not in text:
        line = text.count("\n", 0, wrong.start()) + 1
        said = f'command: {shown} line {line}: the name of a script is "__main__", and never "{wrong[2]}"'
        yield Slip(said, 'write if __name__ == "__main__":', sure=False)
    elif not work:
        yield Slip(f"command: {shown} is empty, and does nothing", "save it first", sure=False)
    elif defined and not acts and all(one.partition(".")[0] in _KNOWN for one in named):
        entry = "main" if "main" in defined else defined[-1]
        said = f"command: {shown} defines functions, and nothing calls them: it does nothing"
        yield Slip(said, f"call one at its end: {entry}()", sure=False)

    has_screen = "xvfb" in " ".join((*command.words, *command.before, command.plan.script or ""))
    calls = [one for one in source.nodes if isinstance(one, ast.Call) and len(one.args) < 2]
    for call in calls if re.search(r"\binput\(|\.(?:use|switch_backend)\(", text) else ():
        called = ast.unparse(call)
        if called.startswith("input(") and not fed and place(call) in source.runs:
            if "input" in own or "stdin" in text:
                return
            said = f"command: {shown} line {call.lineno}: input() asks at a terminal, and a job has none: an EOFError"
            yield Slip(said, "take it as an argument", sure=False)
            return
        drawn = re.match(
            r"((?:matplotlib|mpl)\.use|plt\.switch_backend)\('(?i:(?:Tk|Qt\d?|Gtk\d?|WX)Agg|MacOSX)'", called
        )
        if drawn and not has_screen and not command.plan.option("x11") and place(call) in source.runs:
            said = f"command: {shown} line {call.lineno}: {called} needs a display, and a node has none"
            yield Slip(said, f'write {drawn[1]}("Agg"), and savefig in place of show', sure=False)


def _module_slips(
    command: Command, path: Path, source: Source, base: Path, texts: dict[Path, str]
) -> Iterator[Slip]:
    """Yield names that a script's own modules lack, modules that Python cannot read, and files that hide a library.

    ``base`` is where Python looks first. The texts of the modules are put into ``texts``.
    """

    def shown(file: Path) -> str:
        return os.path.relpath(file, command.folder and command.folder.resolve())

    def imports(
        file: Path, tree: ast.Module
    ) -> Iterator[tuple[Path, ast.Import | ast.ImportFrom, ast.alias]]:
        for node in tree.body:
            yield from ((file, node, alias) for alias in node.names) if isinstance(node, _IMPORTS) else ()

    trees, torch = {path: source.tree}, ""
    resolved: dict[tuple[Path, str], Path | None] = {}
    defined: dict[Path, set[str]] = {}
    waiting = list(imports(path, source.tree))
    for file, node, alias in waiting:  # grows by the imports of each module that is read
        level = node.level if isinstance(node, ast.ImportFrom) else 0
        dotted = node.module or "" if isinstance(node, ast.ImportFrom) else alias.name
        top = dotted.partition(".")[0]
        if not level and top in _IMPORT_TORCH:
            torch = torch or f"{top}, {shown(file)} line {node.lineno}"
        if (not level and top in _AT_START) or level > len(file.parents) or (level and base == file.parent):
            continue
        start = inside = file.parents[level - 1] if level else base
        found: Path | None = inside / "__init__.py" if level else None
        gone = ""
        for part in dotted.split(".") if dotted and (start, dotted) not in resolved else ():
            places = (inside / part / "__init__.py", inside / f"{part}.py")
            found, inside = next((one for one in places if one.is_file()), None), inside / part
            if found is None and (not inside.is_dir() or top in _KNOWN):
                gone = part if inside.parent != start and top not in _KNOWN else ""
                break
            if found is not None and found not in trees and len(trees) < MOST_MODULES:
                try:
                    data = read_regular(found)
                    texts[found], trees[found] = data.decode("utf-8", errors="replace"), parse_python(data)
                except (SyntaxError, ValueError):
                    unread = unreadable_python(command, found, shown(found))
                    if unread is not None:
                        yield unread._replace(sure=unread.sure and "sys.path" not in source.text)
                    return
                except (OSError, RecursionError, MemoryError):
                    return
                waiting += imports(found, trees[found])
        files = [] if not gone or "sys.path" in source.text else sorted(inside.parent.glob("*.py"))
        if files and not any(inside.parent.glob(f"{gone}.*")):
            near = near_word(gone, [one.stem for one in files])
            said = f"command: {shown(file)} line {node.lineno}: {shown(inside.parent)} has no module {gone}"
            hint = f"did you mean {near}?" if near else f"it has {', '.join(one.stem for one in files[:4])}"
            yield Slip(said, hint, sure=False)
            return
        found = resolved.setdefault((start, dotted), found)
        hides = not level and dotted in _KNOWN
        if found == path and hides:
            said = f"command: {shown(path)} line {node.lineno}: import {top} finds this file itself, and not {top}"
            yield Slip(said, "give the file another name", sure=False)
            return
        plain = isinstance(node, ast.Import) and not (hides and file == path)
        if found not in trees or found is None or plain:
            continue
        wanted = {alias.name}
        if isinstance(node, ast.Import):
            own = alias.asname or top
            uses = (one for one in source.nodes if isinstance(one, ast.Attribute))
            wanted = {one.attr for one in uses if isinstance(one.value, ast.Name) and one.value.id == own}
        if found not in defined:
            names, left = set[str](), list[ast.AST](trees[found].body)
            while left:
                one = left.pop()
                if isinstance(one, ast.alias):
                    names.add(one.asname or one.name.partition(".")[0])
                elif isinstance(one, ast.Name):
                    names.update(() if isinstance(one.ctx, ast.Load) else (one.id,))
                else:
                    given = (getattr(one, field, None) for field in ("name", "rest"))
                    names.update(each for each in given if isinstance(each, str))
                if not isinstance(one, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
                    left += ast.iter_child_nodes(one)
            if found.name == "__init__.py":
                names |= {one.name.partition(".")[0] for one in found.parent.iterdir()}
            defined[found] = names
        names = defined[found]
        lost = next((one for one in sorted(wanted - names) if one[:2] != "__" and one != "*"), None)
        every = "\n".join(texts.values()) if lost else ""
        if (
            lost is None
            or _HAS_MORE.search(texts[found])
            or re.search(r"sys\.path(?!\.(?:append|extend))", every)
            or re.search(rf"\bglobal\b[^\n]*\b{lost}\b|\.{lost}\s*=[^=]", every)
            or any(found.parent.glob(f"{found.stem}.*so"))
        ):
            continue
        near = near_word(lost, names)
        hint = f"did you mean {near}?" if near else "define it there, or import it from where it is"
        said = f"command: {shown(file)} line {node.lineno}: {shown(found)} has no {lost}"
        if hides:
            said += f", and takes the place of {'Python' if top in sys.stdlib_module_names else 'the library'}'s {top}"
            hint = f"give {shown(found)} another name"
        yield Slip(said, hint, sure=False)
        return
    for name in _NEEDED_BY_TORCH if torch else ():
        if (base / f"{name}.py").is_file():
            said = f"command: {shown(base / name)}.py takes the place of Python's {name}, which torch needs ({torch})"
            yield Slip(said, "give the file another name", sure=False)
            return


def _needed_slips(
    command: Command, folder: Path, source: Source, texts: dict[Path, str], shown: str
) -> Iterator[Slip]:
    """Yield what a script needs in any case and the job does not have: a variable, a file of the work folder."""
    plan, every = command.plan, "\n".join(texts.values())
    own = command.words[command.words.index(shown) + 1 :] if shown in command.words else ()
    counted = re.search(r"\bargv\s*(?:=|\+=|\.)[^=]|len\(\s*(?:sys\.)?argv|except", source.text)
    open_words = command.in_script and re.search(r"[$*?]", "".join(own)) is not None
    if "sys.argv[" in source.text and shown in command.words and not (counted or open_words):
        for one in (one for one in source.nodes if isinstance(one, ast.Subscript)):
            found = re.fullmatch(r"sys\.argv\[(\d+)\]", ast.unparse(one))
            if found and int(found[1]) > len(own) and source.place(one) in source.runs:
                said = f"command: {shown} line {one.lineno} needs {found[0]}, the argument {found[1]}, and it is given {len(own)}"
                hint = f"give it: {command.instead(*command.words, 'VALUE')}"
                yield Slip(said, hint, sure=not command.blind)
                break
    set_up = [command.in_script, command.brought, plan.login_shell, runner_length(command.words)]
    in_job = [plan.environment.modules, plan.environment.python.activated, plan.option("export")]
    setters = r"environ\.(?:update|setdefault)|environ\[[^\]]{0,200}\]\s*=[^=]|putenv|dotenv|load_env"
    if not (any(set_up) or any(in_job) or re.search(setters, every)) and "environ[" in source.text:
        known = {*command.environ, *plan.variables, *plan.secrets}
        for one in (one for one in source.nodes if isinstance(one, ast.Subscript)):
            found = re.fullmatch(r"(?:os\.)?environ\['(\w+)'\]", ast.unparse(one))
            if found is None or found[1] in known:
                continue
            rank = found[1] in {"RANK", "LOCAL_RANK", "WORLD_SIZE"} and plan.launcher == "plain"
            if rank and command.words[0].startswith("python") and source.place(one) in source.runs:
                said = f"command: {shown} line {one.lineno}: nothing sets {found[1]} for a single process: a KeyError"
                yield Slip(said, "--launch torchrun sets it", sure=False)
                break
            if _SET_BY_OTHERS.fullmatch(found[1]):
                continue
            if every.count(found[1]) == 1 and source.place(one) in source.runs:
                said = f"command: {shown} line {one.lineno}: the job has no variable {found[1]}: a KeyError"
                hint = f"export it before you submit, or --set variables.{found[1]}=VALUE"
                yield Slip(said, hint, sure=False)
                break
    if plan.stage is not None or re.search(r"chdir|hydra|sacred|suppress", every):
        return
    for node in source.nodes:
        if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
            continue
        called, written = ast.unparse(node.func), str(node.args[0].value)
        modes = [one.value for one in node.keywords if one.arg == "mode"]
        modes += node.args[1:2] if called.endswith("open") else []
        if (
            not _READS.fullmatch(called)
            or not re.fullmatch(r"[\w.-][\w./ -]*[A-Za-z]\w*", written)
            or any(not re.match(r"['\"]r", ast.unparse(one)) for one in modes)
            or source.place(node) not in source.runs
        ):
            continue
        file = folder / written
        once = every.count(PurePosixPath(written).name) == 1
        once |= every.count(written) == 1 and "did you mean" in meant(written, file)
        if once and not is_there(file) and seen_from_here(file, folder):
            hint = f"{meant(written, file)}give its path against the work folder"
            if is_there((folder / shown).parent / written):
                hint = "it lies beside the script, and a path counts from the work folder: Path(__file__).with_name(...)"
            said = f"command: {shown} line {node.lineno}: {called}({written!r}): it is not in the work folder {folder}"
            yield Slip(said, hint, sure=False)
            return


OF_SHELL = r"[$`*?]"
"""Characters by which a shell replaces a word, maybe by several."""


def parents_of(tree: ast.AST) -> dict[ast.AST, ast.AST]:
    """Return the node above each node."""
    return {inner: outer for outer in ast.walk(tree) for inner in ast.iter_child_nodes(outer)}


def name_of(node: ast.AST) -> str | None:
    """Return the last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def literals(call: ast.Call, skipped: frozenset[str]) -> dict[str, object]:
    """Return a call's keywords, without those to skip.

    Raises:
        ValueError: one of them is not a literal.
    """
    return {
        keyword.arg or "": ast.literal_eval(keyword.value)
        for keyword in call.keywords
        if keyword.arg not in skipped
    }


def is_conditional(node: ast.AST, above: dict[ast.AST, ast.AST]) -> bool:
    """Return whether a node may not run; ``if __name__ == "__main__"`` counts as run."""
    doubtful = (ast.For, ast.While, ast.Try, ast.Match, ast.Lambda, ast.IfExp, ast.BoolOp, ast.comprehension)
    while node in above:
        node = above[node]
        if isinstance(node, ast.If) and "__name__" not in ast.dump(node.test):
            return True
        if isinstance(node, (*doubtful, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            return True
    return False


def is_started(name: str, tree: ast.AST, above: dict[ast.AST, ast.AST]) -> bool:
    """Return whether a script itself calls its function, once, always and without arguments."""
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    calls = [node for use in uses if isinstance(node := above[use], ast.Call) and node.func is use]
    if len(calls) != 1 or calls[0].args or {one.arg for one in calls[0].keywords} - {"obj", "prog_name"}:
        return False
    outer: ast.AST = calls[0]
    while outer in above and not isinstance(outer, (ast.FunctionDef, ast.ClassDef)):
        outer = above[outer]
    rebound = any(not isinstance(use.ctx, ast.Load) for use in uses)
    return isinstance(outer, ast.Module) and not rebound and not is_conditional(calls[0], above)
