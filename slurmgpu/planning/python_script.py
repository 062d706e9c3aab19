"""Read a user's training script, as text and syntax tree, without running it: what does it do about processes?"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from typing import NamedTuple

from slurmgpu.planning.signs import OUR_RUN, Finding, Signs, signs_of

__all__ = ["ScriptFacts", "local_imports", "parse_python_script"]

# Libraries that start no training of their own.
_PLAIN = {
    "PIL", "cv2", "datasets", "matplotlib", "numpy", "pandas", "rich", "scipy", "sklearn", "slurmgpu", "tensorboard",
    "tokenizers", "torch", "torchaudio", "torchmetrics", "torchvision", "tqdm", "wandb", "yaml",
}  # fmt: skip


class ScriptFacts(NamedTuple):
    """What a script shows of its processes; None when nothing was seen."""

    path: str
    framework: Finding | None = None
    """A library that manages processes or devices: Lightning, Accelerate, DeepSpeed, TensorFlow, JAX, ..."""
    distributed: Finding | None = None
    """A sign that it takes part in a process group."""
    spawns: Finding | None = None
    """A sign that it starts its own processes."""
    drives: Finding | None = None
    """A sign that it drives several GPUs from one process."""
    joins: Finding | None = None
    """A call of TensorFlow or JAX that joins the processes of several tasks or nodes."""
    told: bool = False
    """Whether it tells TensorFlow where those are: by Slurm's variables, or by TF_CONFIG."""
    slurm_rank: Finding | None = None
    """A sign that it takes its rank from Slurm's variables, and not from torchrun's."""
    own_loop: Finding | None = None
    """An import of slurmgpu.training, which then has to be where the script runs."""
    trains_elsewhere: bool = False
    """No training loop was read, and it imports what was not read, or not known: the loop, and the process group, may
    be there."""
    own_requirements: bool = False
    """It lists its requirements itself (``# /// script``), and `uv run SCRIPT` installs them."""
    same_in_all_tasks: bool = False
    """All of it was read, and nothing in it takes a variable of Slurm: the tasks of an array would do the same."""
    parsed: bool = True
    """False: its syntax could not be read by this Python; it was searched as text."""

    @property
    def one_process(self) -> Finding | None:
        """Why one process gets all GPUs of a node; None where it does not follow."""
        if self.spawns or self.drives is None or self.distributed:
            return self.spawns
        # A Trainer refuses a model that is spread over the GPUs when it is one of several processes.
        spread = self.drives[0].startswith("device_map") and self.framework is not None
        library = self.framework[0] if self.framework else "TensorFlow"
        one = library in {"TensorFlow", "JAX"} or (
            spread and library in {"Transformers' Trainer", "Accelerate"}
        )
        return self.drives if one else None


_TEXT_SIGNS: tuple[tuple[str, str, str], ...] = (
    ("spawns", "spawn()", r"\b(?:mp|multiprocessing)\.spawn\("),
    ("drives", "DataParallel", r"(?<!Distributed)\bDataParallel\("),
    ("framework", "Lightning", r"(?m)^\s*(?:import|from)\s+(?:pytorch_)?lightning\b"),
    ("framework", "Accelerate", r"(?m)^\s*(?:import|from)\s+accelerate\b"),
    ("distributed", "init_process_group", r"\binit_process_group\("),
    ("distributed", "torch.distributed", r"\btorch\.distributed\b"),
    ("distributed", "the variable LOCAL_RANK", r"['\"]LOCAL_RANK['\"]"),
    ("own_loop", OUR_RUN, r"(?m)^\s*(?:import|from)\s+slurmgpu(?:\.training\b|\s+import\s.*\btraining\b)"),
)


def _read_as_text(path: str, text: str) -> ScriptFacts:
    found: dict[str, tuple[str, int]] = {}
    for kind, what, pattern in _TEXT_SIGNS:
        match = re.search(pattern, text)
        if match and kind not in found:
            found[kind] = (what, text.count("\n", 0, match.start()) + 1)
    return ScriptFacts(
        path,
        framework=found.get("framework"),
        distributed=found.get("distributed"),
        spawns=found.get("spawns"),
        drives=found.get("drives"),
        own_loop=found.get("own_loop"),
        parsed=False,
    )


def parse_python_script(
    path: str, text: str, modules: Iterable[str] = (), deeper: Iterable[str] = ()
) -> ScriptFacts:
    """Find the signs of distribution in a script; ``modules`` are the texts of what it imports from beside it.

    A finding in an imported module counts with line 0. Of what those import in turn (``deeper``) only a process
    group and slurmgpu.training count: a library there may be used or not. Nothing is executed.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return _read_as_text(path, text)
    modules, deeper = list(modules), list(deeper)
    visitor = Signs()
    visitor.visit(tree)
    for module in modules:
        visitor.take(signs_of(module))
    for module in deeper:
        visitor.take(signs_of(module), ("distributed", "own_loop"))
    found = visitor.concluded()
    return ScriptFacts(
        path,
        framework=found.get("framework"),
        distributed=found.get("distributed"),
        spawns=found.get("spawns"),
        drives=found.get("drives"),
        joins=found.get("joins"),
        told="told" in visitor.marks,
        slurm_rank=found.get("slurm_rank"),
        own_loop=found.get("own_loop"),
        trains_elsewhere=_elsewhere(text, modules, deeper),
        own_requirements=re.search(r"(?m)^# /// script\s*$", text) is not None,
        same_in_all_tasks=_same_in_all_tasks([text, *modules, *deeper]),
    )


def _same_in_all_tasks(texts: list[str]) -> bool:
    """Whether no file names a variable of Slurm, and none imports what hands out trials (wandb) or is not known."""
    imported = {name.split(".")[0] for one in texts for name in local_imports(one)}
    unknown = imported - _PLAIN - set(sys.stdlib_module_names)
    return not unknown and "wandb" not in imported and not any("SLURM_" in one for one in texts)


def _elsewhere(text: str, modules: list[str], deeper: list[str]) -> bool:
    if any(re.search(r"\.backward\(", one) for one in (text, *modules, *deeper)):
        return False
    if any("import_module" in one for one in (text, *modules)):
        return True
    imported = {name.split(".")[0] for one in (text, *modules) for name in local_imports(one)}
    return bool(imported - _PLAIN - set(sys.stdlib_module_names))


def local_imports(text: str) -> tuple[str, ...]:
    """The modules a script imports, dotted (a leading dot for each level of a relative one), its own or not.

    ``from a.b import c`` gives ``a.b`` and ``a.b.c``: only the files tell whether c is a module.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ()
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(dict.fromkeys(alias.name for alias in node.names))
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            dot = "." if node.module else ""
            names.update(dict.fromkeys([module, *(f"{module}{dot}{alias.name}" for alias in node.names)]))
    return tuple(names)
