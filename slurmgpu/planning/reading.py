"""Read a user's training script, as text and syntax tree, without running it: what does it do about processes?"""

from __future__ import annotations

import ast
import contextlib
import re
import sys
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["ScriptFacts", "local_imports", "read_script"]

_FRAMEWORKS = {
    "lightning": "Lightning",
    "pytorch_lightning": "Lightning",
    "lightning_fabric": "Lightning",
    "accelerate": "Accelerate",
    "deepspeed": "DeepSpeed",
    "horovod": "Horovod",
    "ray": "Ray",
    "composer": "Composer",
    "ignite": "Ignite",
    "colossalai": "ColossalAI",
}
_DISTRIBUTED_MODULES = ("torch.distributed", "torchtitan", "megatron", "fairscale")
_DISTRIBUTED_NAMES = {
    "init_process_group": "init_process_group",
    "init_device_mesh": "init_device_mesh",
    "DistributedDataParallel": "DistributedDataParallel",
    "FullyShardedDataParallel": "FullyShardedDataParallel",
    "fully_shard": "fully_shard",
    "DistributedSampler": "DistributedSampler",
}
_SPAWNING_CALLS = {"spawn", "start_processes", "notebook_launcher"}
_TRAINERS = ("transformers", "trl", "sentence_transformers")
# Libraries that start no training of their own.
_PLAIN = {
    "PIL", "cv2", "datasets", "matplotlib", "numpy", "pandas", "rich", "scipy", "sklearn", "slurmgpu", "tensorboard",
    "tokenizers", "torch", "torchaudio", "torchmetrics", "torchvision", "tqdm", "wandb", "yaml",
}  # fmt: skip
# What a loop of the user's own imports to stop in good order and to resume.
_OUR_RUN = "slurmgpu.training"
_RANK_VARIABLES = {"RANK", "LOCAL_RANK", "WORLD_SIZE"}
_SLURM_RANK_VARIABLES = {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"}


class ScriptFacts(NamedTuple):
    """What a script shows of its processes; each finding is ``(what, line)``, None when nothing was seen."""

    path: str
    framework: tuple[str, int] | None = None
    """A library that manages processes: Lightning, Accelerate, DeepSpeed, ..."""
    distributed: tuple[str, int] | None = None
    """A sign that it takes part in a process group."""
    spawns: tuple[str, int] | None = None
    """A sign that it starts its own processes, or drives several GPUs from one."""
    slurm_rank: tuple[str, int] | None = None
    """A sign that it takes its rank from Slurm's variables, and not from torchrun's."""
    own_loop: tuple[str, int] | None = None
    """An import of slurmgpu.training, which then has to be where the script runs."""
    trains_elsewhere: bool = False
    """No training loop was read, and it imports what was not read, or not known: the loop, and the process group, may
    be there."""
    parsed: bool = True
    """False: its syntax could not be read by this Python; it was searched as text."""


class _Visitor(ast.NodeVisitor):
    def __init__(self) -> None:
        self.framework: tuple[str, int] | None = None
        self.distributed: tuple[str, int] | None = None
        self.spawns: tuple[str, int] | None = None
        self.slurm_rank: tuple[str, int] | None = None
        self.own_loop: tuple[str, int] | None = None
        self.torchrun_rank = False
        self.names: dict[str, str] = {}  # local name -> dotted origin

    def _imported(self, module: str, line: int) -> None:
        name = _FRAMEWORKS.get(module.split(".")[0])
        if name and self.framework is None:
            self.framework = (name, line)
        if module.startswith(_DISTRIBUTED_MODULES) and self.distributed is None:
            self.distributed = (module, line)
        if f"{module}.".startswith(f"{_OUR_RUN}.") and self.own_loop is None:
            self.own_loop = (_OUR_RUN, line)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._imported(alias.name, node.lineno)
            self.names[alias.asname or alias.name.split(".")[0]] = (
                alias.name if alias.asname else alias.name.split(".")[0]
            )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        for alias in node.names:
            dotted = f"{module}.{alias.name}"
            self._imported(dotted, node.lineno)
            self.names[alias.asname or alias.name] = dotted
            self._trainer(dotted, node.lineno)

    def _trainer(self, dotted: str, line: int) -> None:
        if dotted.split(".")[0] in _TRAINERS and dotted.endswith("Trainer"):
            self.framework = self.framework or ("Transformers' Trainer", line)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr.endswith("Trainer"):
            self._trainer(self._origin(node), node.lineno)
        self.generic_visit(node)

    def _origin(self, node: ast.expr) -> str:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            parts.append(self.names.get(node.id, node.id))
        return ".".join(reversed(parts))

    def visit_Call(self, node: ast.Call) -> None:
        origin = self._origin(node.func)
        last = origin.rsplit(".", 1)[-1]
        if last in _SPAWNING_CALLS and ("multiprocessing" in origin or last == "notebook_launcher"):
            self.spawns = self.spawns or (f"{origin}()", node.lineno)
        elif last == "DataParallel":
            self.spawns = self.spawns or ("DataParallel", node.lineno)
        elif last in _DISTRIBUTED_NAMES:
            self.distributed = self.distributed or (last, node.lineno)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if not isinstance(node.value, str):
            return
        if node.value == _OUR_RUN:  # import_module("slurmgpu.training")
            self._imported(node.value, node.lineno)
        sign = (f"the variable {node.value}", node.lineno)
        if node.value in _RANK_VARIABLES:
            self.distributed = self.distributed or sign
            self.torchrun_rank = self.torchrun_rank or node.value != "WORLD_SIZE"
        elif node.value in _SLURM_RANK_VARIABLES:
            self.distributed = self.distributed or sign
            if node.value != "SLURM_NTASKS":
                self.slurm_rank = self.slurm_rank or sign


_TEXT_SIGNS: tuple[tuple[str, str, str], ...] = (
    ("spawns", "spawn()", r"\b(?:mp|multiprocessing)\.spawn\("),
    ("spawns", "DataParallel", r"(?<!Distributed)\bDataParallel\("),
    ("framework", "Lightning", r"(?m)^\s*(?:import|from)\s+(?:pytorch_)?lightning\b"),
    ("framework", "Accelerate", r"(?m)^\s*(?:import|from)\s+accelerate\b"),
    ("distributed", "init_process_group", r"\binit_process_group\("),
    ("distributed", "torch.distributed", r"\btorch\.distributed\b"),
    ("distributed", "the variable LOCAL_RANK", r"['\"]LOCAL_RANK['\"]"),
    ("own_loop", _OUR_RUN, r"(?m)^\s*(?:import|from)\s+slurmgpu(?:\.training\b|\s+import\s.*\btraining\b)"),
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
        own_loop=found.get("own_loop"),
        parsed=False,
    )


def _visited(module: str) -> _Visitor:
    """What a module shows; nothing where its syntax cannot be read."""
    visitor = _Visitor()
    with contextlib.suppress(SyntaxError, ValueError):
        visitor.visit(ast.parse(module))
    return visitor


def read_script(path: str, text: str, modules: Iterable[str] = (), deeper: Iterable[str] = ()) -> ScriptFacts:
    """Find the signs of distribution in a script; ``modules`` are the texts of what it imports from beside it.

    A finding in an imported module counts with line 0. Of what those import in turn (``deeper``) only a process
    group and slurmgpu.training count: a library there may be used or not. Nothing is executed.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return _read_as_text(path, text)
    modules, deeper = list(modules), list(deeper)
    visitor = _Visitor()
    visitor.visit(tree)
    for module in modules:
        inner = _visited(module)
        _take_over(visitor, inner, ("framework", "distributed", "spawns", "slurm_rank", "own_loop"))
        visitor.torchrun_rank = visitor.torchrun_rank or inner.torchrun_rank
    for module in deeper:
        _take_over(visitor, _visited(module), ("distributed", "own_loop"))
    slurm_rank = None if visitor.torchrun_rank else visitor.slurm_rank
    return ScriptFacts(
        path,
        visitor.framework,
        visitor.distributed,
        visitor.spawns,
        slurm_rank,
        visitor.own_loop,
        _elsewhere(text, modules, deeper),
    )


def _take_over(visitor: _Visitor, inner: _Visitor, kinds: Iterable[str]) -> None:
    """What a module shows counts where the script itself shows nothing of the kind."""
    for kind in kinds:
        finding = getattr(inner, kind)
        if finding and getattr(visitor, kind) is None:
            setattr(visitor, kind, (finding[0], 0))


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
