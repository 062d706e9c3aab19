"""Read a user's training script, as text and syntax tree, without running it: what does it do about processes?"""

from __future__ import annotations

import ast
import contextlib
import re
import sys
from collections.abc import Iterable
from typing import Any

from slurmgpu.models.script_facts import Finding, ScriptFacts

__all__ = ["OUR_RUN", "Signs", "local_imports", "parse_python_script", "signs_of"]


"""The finding and its line; 0 for a module next to the script."""

_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)  # the last two: nested too deeply
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
# Libraries other than PyTorch that find a node's GPUs by themselves.
_OWN_DEVICES = {"tensorflow": "TensorFlow", "keras": "TensorFlow", "jax": "JAX", "flax": "JAX"}
_DISTRIBUTED_MODULES = ("torch.distributed", "torchtitan", "megatron", "fairscale")
_DISTRIBUTED_NAMES = {
    "init_process_group", "init_device_mesh", "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard",
    "DistributedSampler",
}  # fmt: skip
_SPAWNING_CALLS = {"spawn", "start_processes", "notebook_launcher"}
# tf.distribute's strategies that use all GPUs of a node from one process.
_ONE_NODE_STRATEGIES = {"MirroredStrategy", "CentralStorageStrategy"}
# What spreads a model over the GPUs that it finds, in Transformers, Diffusers and Accelerate.
_SPREADING_MAPS = {"auto", "balanced", "balanced_low_0", "sequential"}
_TRAINERS = ("transformers", "trl", "sentence_transformers")
# What a loop of the user's own imports to stop in good order and to resume.
OUR_RUN = "slurmgpu.training"
_ROLES = "actor|critic|decoder|discriminator|encoder|generator|judge|llm|policy|reference|reward|scorer|student|teacher|vae"
_FURTHER_DEVICE = re.compile(rf"(?:{_ROLES})_device|device_(?:{_ROLES})")
_RANK_VARIABLES = {"RANK", "LOCAL_RANK", "WORLD_SIZE"}
_SLURM_RANK_VARIABLES = {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"}


class Signs(ast.NodeVisitor):
    """Facts about a module, as it is visited; :meth:`concluded` sums it up."""

    def __init__(self) -> None:
        self.found: dict[str, Finding] = {}
        self.marks: set[str] = set()
        """Findings that mean something only together."""
        self.names: dict[str, str] = {}  # local name -> dotted origin

    def _saw(self, kind: str, what: str, node: ast.AST) -> None:
        self.found.setdefault(kind, (what, getattr(node, "lineno", 0)))

    def _imported(self, module: str, node: ast.AST) -> None:
        root = module.split(".")[0]
        if root in _FRAMEWORKS:
            self._saw("framework", _FRAMEWORKS[root], node)
        elif root in _OWN_DEVICES:
            self._saw("own devices", _OWN_DEVICES[root], node)
        elif root == "torch":
            self.marks.add("torch")
        if module.startswith(_DISTRIBUTED_MODULES):
            self._saw("distributed", module, node)
        if f"{module}.".startswith(f"{OUR_RUN}."):
            self._saw("own_loop", OUR_RUN, node)

    def visit_Import(self, node: ast.Import) -> None:
        """Libraries, and what their local names stand for."""
        for alias in node.names:
            self._imported(alias.name, node)
            self.names[alias.asname or alias.name.split(".")[0]] = (
                alias.name if alias.asname else alias.name.split(".")[0]
            )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """The same for ``from library import name``."""
        module = node.module or ""
        for alias in node.names:
            dotted = f"{module}.{alias.name}"
            self._imported(dotted, node)
            self.names[alias.asname or alias.name] = dotted
            self._trainer(dotted, node)

    def _trainer(self, dotted: str, node: ast.AST) -> None:
        if dotted.split(".")[0] in _TRAINERS and dotted.endswith("Trainer"):
            self._saw("framework", "Transformers' Trainer", node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """A trainer by its dotted name, and a further device that the settings name."""
        if node.attr.endswith("Trainer"):
            self._trainer(self._origin(node), node)
        elif _FURTHER_DEVICE.fullmatch(node.attr) and isinstance(node.value, ast.Name):
            self._saw("drives", self._origin(node), node)
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
        """Calls that start or join processes, and devices in their arguments."""
        origin = self._origin(node.func)
        last = origin.rsplit(".", 1)[-1]
        keywords = {one.arg: one.value for one in node.keywords}
        if last in _SPAWNING_CALLS and ("multiprocessing" in origin or last == "notebook_launcher"):
            self._saw("spawns", f"{origin}()", node)
        elif last == "Process" and "multiprocessing" in origin:
            self._saw("process", f"{origin}()", node)
        elif last in {"DataParallel", "data_parallel", *_ONE_NODE_STRATEGIES}:
            self._saw("drives", last, node)
        elif last == "MultiWorkerMirroredStrategy" or origin == "jax.distributed.initialize":
            self._saw("joins", last if last != "initialize" else f"{origin}()", node)
        elif last == "SlurmClusterResolver":
            self.marks.add("told")
        elif last == "add_argument" and any(_text(one) == "--local_rank" for one in node.args):
            self._saw("local_rank", "--local_rank", node)
        elif origin == "ray.init" and {"num_cpus", "num_gpus", "local_mode"} & keywords.keys():
            self._saw("limits_ray", "ray.init() with resources", node)
        elif last in _DISTRIBUTED_NAMES:
            self._saw("distributed", last, node)
            if last == "init_process_group" and "rank" in keywords:
                self.marks.add("rank given")
        self._devices(node, last, keywords)
        self.generic_visit(node)

    def _devices(self, node: ast.Call, last: str, keywords: dict[str | None, ast.expr]) -> None:
        """The second GPU by its number, and models that are spread over all."""
        spread = keywords.get("device_map")
        if isinstance(spread, ast.Constant) and spread.value in _SPREADING_MAPS:
            self._saw("drives", f'device_map="{spread.value}"', node)
        values = [one.value if isinstance(one, ast.Constant) else None for one in node.args]
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method in {"to", "cuda"} and values and type(values[0]) is int and values[0] > 0:
            self._saw("drives", f".{method}({values[0]})", node)
        elif last == "device" and values[:1] == ["cuda"] and type(values[-1]) is int and values[-1] > 0:
            self._saw("drives", f"cuda:{values[-1]}", node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Names of variables and devices."""
        value = node.value
        if not isinstance(value, str):
            return
        if value == OUR_RUN:  # import_module("slurmgpu.training")
            self._imported(value, node)
        elif re.fullmatch(r"cuda:[1-9]\d*", value):
            self._saw("drives", value, node)
        elif value in _RANK_VARIABLES:
            self._saw("distributed", f"the variable {value}", node)
            if value != "WORLD_SIZE":
                self.marks.add("rank of torchrun")
        elif value in _SLURM_RANK_VARIABLES:
            self._saw("distributed", f"the variable {value}", node)
            if value != "SLURM_NTASKS":
                self._saw("slurm_rank", f"the variable {value}", node)
        elif value == "TF_CONFIG":
            self.marks.add("told")

    def take(self, module: Signs, kinds: Iterable[str] | None = None) -> None:
        """Add what an imported module shows, or of these kinds only."""
        if kinds is None:
            self.marks |= module.marks
        for kind, (what, _) in module.found.items():
            if kinds is None or kind in kinds:
                self.found.setdefault(kind, (what, 0))

    def concluded(self) -> dict[str, Finding]:
        """Return the findings of :class:`ScriptFacts`, once all modules are read."""
        found = dict(self.found)
        process, devices = found.pop("process", None), found.pop("own devices", None)
        # Processes that are handed their rank; in others, torchrun's variables have it.
        if process and "rank given" in self.marks and "rank of torchrun" not in self.marks:
            found.setdefault("spawns", process)
        # A script of PyTorch may read its data by TensorFlow.
        if devices and ("torch" not in self.marks or "joins" in found):
            found.setdefault("framework", devices)
        if "rank of torchrun" in self.marks:
            found.pop("slurm_rank", None)
        return found


def _text(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def signs_of(module: str) -> Signs:
    """Return what a module shows; nothing where its syntax cannot be read."""
    visitor = Signs()
    with contextlib.suppress(*_UNREADABLE):
        visitor.visit(ast.parse(module))
    return visitor


# Libraries that start no training of their own.
_PLAIN = {
    "PIL", "cv2", "datasets", "matplotlib", "numpy", "pandas", "rich", "scipy", "sklearn", "slurmgpu", "tensorboard",
    "tokenizers", "torch", "torchaudio", "torchmetrics", "torchvision", "tqdm", "wandb", "yaml",
}  # fmt: skip


_TEXT_SIGNS: tuple[tuple[str, str, str], ...] = (
    ("spawns", "spawn()", r"\b(?:mp|multiprocessing)\.spawn\("),
    ("drives", "DataParallel", r"(?<!Distributed)\bDataParallel\(|\bdata_parallel\("),
    ("framework", "Lightning", r"(?m)^\s*(?:import|from)\s+(?:pytorch_)?lightning\b"),
    ("framework", "Accelerate", r"(?m)^\s*(?:import|from)\s+accelerate\b"),
    ("distributed", "init_process_group", r"\binit_process_group\("),
    ("distributed", "torch.distributed", r"\btorch\.distributed\b"),
    ("distributed", "the variable LOCAL_RANK", r"['\"]LOCAL_RANK['\"]"),
    ("own_loop", OUR_RUN, r"(?m)^\s*(?:import|from)\s+slurmgpu(?:\.training\b|\s+import\s.*\btraining\b)"),
)


def _read_as_text(path: str, text: str) -> ScriptFacts:
    found: dict[str, Any] = {}
    for kind, what, pattern in _TEXT_SIGNS:
        match = re.search(pattern, text)
        if match and kind not in found:
            found[kind] = (what, text.count("\n", 0, match.start()) + 1)
    return ScriptFacts(path, **found, parsed=False)


def parse_python_script(
    path: str, text: str, modules: Iterable[str] = (), deeper: Iterable[str] = ()
) -> ScriptFacts:
    """Find the signs of distribution in a script; ``modules`` are the texts of what it imports from beside it.

    A finding in an imported module counts with line 0. Of what those import in turn (``deeper``) only a process
    group and slurmgpu.training count: a library there may be used or not. Nothing is executed.
    """
    try:
        visitor = Signs()
        visitor.visit(ast.parse(text))
    except _UNREADABLE:
        return _read_as_text(path, text)
    modules, deeper = list(modules), list(deeper)
    for module in modules:
        visitor.take(signs_of(module))
    for module in deeper:
        visitor.take(signs_of(module), ("distributed", "drives", "own_loop"))
    found: dict[str, Any] = visitor.concluded()
    known = _same_in_all_tasks([text, *modules, *deeper])
    return ScriptFacts(
        path,
        **found,
        stops_in_time=not known
        or "own_loop" in found
        or any(re.search(r"\b75\b", one) for one in (text, *modules, *deeper)),
        told="told" in visitor.marks,
        trains_elsewhere=_elsewhere(text, modules, deeper),
        own_requirements=re.search(r"(?m)^# /// script\s*$", text) is not None,
        same_in_all_tasks=known,
        launches=any(re.search(_LAUNCHES, one) for one in (text, *modules, *deeper))
        or re.match(_SHARES_OUT, text) is not None,
        idle=not any(re.search(_BUSY, one) for one in (text, *modules, *deeper)),
    )


# Slurm's and MPI's own, and libraries that start workers by them.
_LAUNCHES = r"\b(?:srun|mpirun|mpiexec|dis[Bb]atchc?|parsl|dask_(?:jobqueue|mpi)|submitit|mpi4py\.futures|scoop|westpa)\b"
# Or it hands the GPUs to programs of its own.
_SHARES_OUT = r"(?s)(?=.*CUDA_VISIBLE_DEVICES)(?=.*\b(?:Pool|Popen|subprocess\.run|Process)\()"
_BUSY = (
    r"Loader|Dataset|dataset[ ,=(.]|\.(?:fit|train|backward|load)\(|Trainer|tf\.data|\bopen\(|read_csv|imread"
)
_BUSY += "|import_module|subprocess"


def _same_in_all_tasks(texts: list[str]) -> bool:
    """Return True if no file names a variable of Slurm, and none imports what hands out trials (wandb) or is not known."""
    unknown = _imported(texts) - (_PLAIN - {"wandb"})
    return not unknown and not any("SLURM_" in one for one in texts)


def _elsewhere(text: str, modules: list[str], deeper: list[str]) -> bool:
    if any(re.search(r"\.backward\(", one) for one in (text, *modules, *deeper)):
        return False
    if any("import_module" in one for one in (text, *modules)):
        return True
    return bool(_imported([text, *modules]) - _PLAIN)


def _imported(texts: Iterable[str]) -> set[str]:
    """Return the libraries that some files import, without Python's own."""
    found = {name.split(".")[0] for one in texts for name in local_imports(one)}
    return found - set(sys.stdlib_module_names)


def local_imports(text: str) -> tuple[str, ...]:
    """Return the modules a script imports, dotted (a leading dot for each level of a relative one), its own or not.

    ``from a.b import c`` gives ``a.b`` and ``a.b.c``: only the files tell whether c is a module.
    """
    try:
        tree = ast.parse(text)
    except _UNREADABLE:
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
