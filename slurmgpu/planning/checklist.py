"""Hold a training loop of the user's against what courses on distributed PyTorch have on their checklists.

Every check reads the syntax trees of the script and of the modules beside it, and is silent wherever these leave a doubt. Loops
of libraries that do these things themselves (Lightning, Accelerate, ...) are not looked at.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

from slurmgpu.models.script_facts import Slip

__all__ = ["CHECKS", "Check", "check_training_loop"]


class Check(NamedTuple):
    """One point of the checklist: how bad it is to miss it, what then happens, and what to write."""

    severity: Literal["warning", "hint"]
    about: str
    message: str
    fix: str
    find: Callable[[_Loop], Iterator[_Call]]


@dataclass
class _Call:
    """A call, with what stands around it."""

    file: str
    node: ast.Call
    name: str
    """The last part of what is called, without its local alias: DistributedDataParallel of DDP."""
    receiver: str
    """The object before the dot."""
    function: str
    """The function that it is in; empty at the top of a file."""
    guards: tuple[str, ...]
    """The conditions around it."""

    @property
    def keywords(self) -> Mapping[str | None, ast.expr]:
        return {one.arg: one.value for one in self.node.keywords}

    def says(self, keyword: str, value: object) -> bool:
        """Return whether an argument is this constant."""
        found = self.keywords.get(keyword)
        return isinstance(found, ast.Constant) and found.value is value


@dataclass
class _Loop:
    """The calls of all files, and their whole text."""

    text: str
    calls: list[_Call] = field(default_factory=list)
    defined: list[str] = field(default_factory=list)
    """The functions' names, of each file and class."""
    mentions: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)
    """Where a name is used: the name, the function around it, and the conditions around it."""
    behind_stop: list[_Call] = field(default_factory=list)
    """Calls in a loop's body behind the ``if`` that asks ``should_stop()``."""
    evaluating: list[_Call] = field(default_factory=list)
    """Calls of the model in loops of functions that are named after an evaluation."""

    def named(self, *names: str) -> Iterator[_Call]:
        """Yield the calls of any of these names."""
        return (one for one in self.calls if one.name in names)

    @property
    def wraps(self) -> bool:
        """True if the model is wrapped for several processes."""
        return any(self.named(*_WRAPPERS))


_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard")
_SHARDED = ("FullyShardedDataParallel", "fully_shard")
_RANK = re.compile(r"(?i)rank|main(?!__)|master|primary|chief|leader|first|proc|world|gpu|device|local|node")
_EVALUATION = re.compile(
    r"(?:evaluat\w+|eval|validat\w+|val|test)(?:_(?:model|one_epoch|epoch|loop|step|loss|accuracy))?\Z"
)


class _Reader(ast.NodeVisitor):
    """Gathers the calls of one file."""

    def __init__(self, file: str, loop: _Loop) -> None:
        self.file, self.loop = file, loop
        self.aliases: dict[str, str] = {}
        self.function = ""
        self.guards: tuple[str, ...] = ()
        self.models: frozenset[str] = frozenset()
        """In a loop of an evaluation: the names that may be its model."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.aliases |= {one.asname: one.name for one in node.names if one.asname}

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Read a function; what stands behind ``if rank != 0: return`` has that condition, and so has a decorated one."""
        before = self.function, self.guards, self.models
        self.function = node.name
        self.loop.defined.append(node.name)
        # A function within one that has left early on the other ranks is one of those that stay.
        around = self.guards if before[0] else ()
        self.guards = (*around, *(ast.unparse(one) for one in node.decorator_list))
        self.models = frozenset()
        self._read_in_turn(node.body)
        self.function, self.guards, self.models = before

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_If(self, node: ast.If) -> None:
        self._visit_calls(node.test)
        before = self.guards
        self.guards = (*before, ast.unparse(node.test))
        self._read_in_turn(node.body)
        self._read_in_turn(node.orelse)
        self.guards = before

    def _visit_calls(self, node: ast.AST) -> None:
        """Visit the calls of a condition alone: a flag in it may have a function's name."""
        if isinstance(node, ast.Call):
            self.visit(node)
        else:
            for child in ast.iter_child_nodes(node):
                self._visit_calls(child)

    def _read_in_turn(self, statements: Sequence[ast.stmt]) -> None:
        for one in statements:
            self.visit(one)
            if isinstance(one, ast.If) and isinstance(one.body[-1], (ast.Return, ast.Continue)):
                self.guards = (*self.guards, ast.unparse(one.test))

    def visit_For(self, node: ast.For) -> None:
        before = self.guards, self.models
        if _EVALUATION.match(self.function):
            self.models = frozenset(("model", "net", "network", "self.model", "ddp_model", "module"))
        self.visit(node.iter)
        stop: int | None = None
        for one in node.body:
            self._read_in_turn([one])
            if isinstance(one, ast.If) and ".should_stop(" in ast.unparse(one.test):
                stop = len(self.loop.calls)
        self.loop.behind_stop += self.loop.calls[stop:] if stop is not None else []
        self.guards, self.models = before

    def visit_Name(self, node: ast.Name) -> None:
        self.loop.mentions.append((node.id, self.function, self.guards))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if (
            not isinstance(node.value, ast.Name) or node.value.id != "torch"
        ):  # torch.save is no use of a function that is called save
            self.loop.mentions.append((node.attr, self.function, self.guards))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        whole = _dotted(node.func)
        receiver, _, last = whole.rpartition(".")
        call = _Call(self.file, node, self.aliases.get(last, last), receiver, self.function, self.guards)
        self.loop.calls.append(call)
        if whole in self.models:
            self.loop.evaluating.append(call)
        self.generic_visit(node)


def _dotted(node: ast.expr) -> str:
    """Return a dotted name as written; of anything else only the last part."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "")
    return ".".join(reversed(parts))


def check_training_loop(files: Sequence[tuple[str, str]]) -> tuple[Slip, ...]:
    """Return what some Python files, each with its name, miss of the checklist; nothing where they train nothing themselves."""
    text = "\n".join(each for _, each in files)
    by_library = _BY_LIBRARY.search(text) is not None
    if ".backward(" not in text or len(text) > _LARGEST or (by_library and ".should_stop(" not in text):
        return ()
    loop = _Loop(text)
    for name, each in files:
        try:
            _Reader(name, loop).visit(ast.parse(each))
        except (SyntaxError, ValueError, RecursionError):
            return ()
    checks = CHECKS if not by_library else {name: CHECKS[name] for name in ("behind-should-stop",)}
    found = ((name, next(check.find(loop), None)) for name, check in checks.items())
    return tuple(Slip(name, one.file, one.node.lineno) for name, one in found if one is not None)


_LARGEST = 1 << 20
"""Letters of all files: a larger project takes too long to read before every plan."""
_BY_LIBRARY = re.compile(
    r"(?m)^\s*(?:from|import) (?:(?:pytorch_)?lightning|lightning_fabric|accelerate|deepspeed|horovod|ray|composer|ignite"
    r"|colossalai|slurmgpu|tensorflow|jax|xformers\.|torchtitan|torchtune|megatron|nemo|fairscale|bagua|mmengine)\b"
)
_SHARED_OUT = re.compile(
    r"Sampler\b|(?<!fully_)(?i:shard)(?!ed|ing)|IterableDataset|webdataset|split_dataset_by_node"
    r"|% *(?:\w+\.)*\w*(?:world|size)|::|\[[^\]\n]*rank[^\]\n]*:"
)


def _without_sampler(loop: _Loop) -> Iterator[_Call]:
    if not loop.wraps or _SHARED_OUT.search(loop.text):
        return
    loaders = [one for one in loop.named("DataLoader") if len(one.node.args) < 4]
    if any(one.keywords.keys() & {"sampler", "batch_sampler", None} for one in loaders):
        return
    yield from sorted(loaders, key=lambda one: not one.says("shuffle", True))


def _without_set_epoch(loop: _Loop) -> Iterator[_Call]:
    # Without epochs the data may be gone through once, and without a backward pass nothing is trained.
    if "set_epoch" not in loop.text and re.search(r"(?is)epoch.*backward\(|backward\(.*epoch", loop.text):
        used = {name for name, *_ in loop.mentions} | {"", "__init__"}
        samplers = (one for one in loop.named("DistributedSampler") if one.function in used)
        yield from (one for one in samplers if not one.says("shuffle", False))


def _behind_should_stop(loop: _Loop) -> Iterator[_Call]:
    """Yield what an epoch's end has: where a job stops in this step, it is not done, and the resume begins behind it."""
    for one in loop.behind_stop:
        if _EVALUATION.match(one.name) or (one.name == "step" and "sched" in one.receiver.lower()):
            yield one


def _without_eval(loop: _Loop) -> Iterator[_Call]:
    if not re.search(r"\.eval\(|\.train\([^)\s]", loop.text):
        yield from loop.evaluating


def _without_no_grad(loop: _Loop) -> Iterator[_Call]:
    if not re.search(r"no_grad|inference_mode|set_grad_enabled", loop.text):
        yield from loop.evaluating


def _without_zero_grad(loop: _Loop) -> Iterator[_Call]:
    if re.search(r"zero_grad|dist_autograd|\.grad\s*=|autograd\.grad", loop.text):
        return
    if any("opt" in one.receiver.lower() for one in loop.named("step")):
        yield from loop.named("backward")


def _optimizer_too_early(loop: _Loop) -> Iterator[_Call]:
    """Yield an optimizer of parameters that the model is then wrapped, or sharded, without."""
    for wrapped in loop.named(*_SHARDED):
        if wrapped.node.args:
            yield from _optimizers_before(loop, wrapped, ast.unparse(wrapped.node.args[0]))


def _moved_late(loop: _Loop) -> Iterator[_Call]:
    """Yield an optimizer of parameters that are then moved to another device."""
    for moved in loop.named("to", "cuda"):
        yield from _optimizers_before(loop, moved, moved.receiver)


def _optimizers_before(loop: _Loop, call: _Call, model: str) -> Iterator[_Call]:
    """Yield the optimizers of a model's parameters that are made above a call, in the same function."""
    for one in loop.calls:
        given = one.node.args[:1]
        if (
            (one.file, one.function) == (call.file, call.function)
            and one.node.lineno < call.node.lineno
            and re.fullmatch(r"[A-Z]\w*|\w*optimizer\w*", one.name)
            and given
            and ast.unparse(given[0]) == f"{model}.parameters()"
        ):
            yield one


def _saved_by_all(loop: _Loop) -> Iterator[_Call]:
    if not loop.wraps or any(loop.named("get_state_dict", "get_model_state_dict")):
        return
    if re.search(r"\{[^{}\n]*rank[^{}\n]*\}[^\n\"']*\.(?:pth?|ckpt|bin)\b", loop.text):
        return  # each rank has a file of its own
    for one in loop.named("save"):
        if one.receiver != "torch" or len(one.node.args) < 2:
            continue
        where = ast.unparse(one.node.args[1])
        if not re.search(r"(?i)rank|proc", where) and _is_for_all(loop, one.function, one.guards, 5):
            yield one


def _is_for_all(loop: _Loop, function: str, guards: Sequence[str], depth: int) -> bool:
    """Return whether no condition on the rank stands on a way to a place: around it, or around a use of its function."""
    if depth == 0 or any(_RANK.search(one) for one in guards) or loop.defined.count(function) > 1:
        return False
    if not function:
        return True
    uses = [(around, conditions) for name, around, conditions in loop.mentions if name == function]
    return any(_is_for_all(loop, around, conditions, depth - 1) for around, conditions in uses)


def _not_left(loop: _Loop) -> Iterator[_Call]:
    if "destroy_process_group" not in loop.text:
        yield from loop.named("init_process_group")


def _pageable(loop: _Loop) -> Iterator[_Call]:
    loaders = list(loop.named("DataLoader"))
    if (
        loaders
        and not re.search(r"pin_memory", loop.text)
        and not any(None in one.keywords for one in loaders)
    ):
        yield from (one for one in loop.named("to", "cuda") if one.says("non_blocking", True))


def _looks_for_unused(loop: _Loop) -> Iterator[_Call]:
    return (one for one in loop.named("DistributedDataParallel") if one.says("find_unused_parameters", True))


CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "no-distributed-sampler": Check(
            "warning",
            "A DataLoader without DistributedSampler, where the model is wrapped in DDP or FSDP.",
            "the model is wrapped for several processes, and no loader has a DistributedSampler: each trains on all samples",
            "sampler=DistributedSampler(dataset) instead of shuffle=True, and sampler.set_epoch(epoch) before each epoch",
            _without_sampler,
        ),
        "no-set-epoch": Check(
            "warning",
            "A DistributedSampler whose set_epoch is never called.",
            "set_epoch of this sampler is never called: every epoch has the same order",
            "sampler.set_epoch(epoch) before each epoch",
            _without_set_epoch,
        ),
        "behind-should-stop": Check(
            "warning",
            "A validation or a schedule's step behind should_stop() in the inner loop.",
            "a job that stops in this step has not done this, and the resume begins behind it",
            "put it behind the batches, in a loop over run.epochs(): docs/own-script.md shows it",
            _behind_should_stop,
        ),
        "no-eval-mode": Check(
            "warning",
            "An evaluation without model.eval().",
            "eval() is never called: if the model has dropout or batch norm, they go on as in training, and change its results",
            "model.eval() before the evaluation, model.train() after it",
            _without_eval,
        ),
        "no-grad-missing": Check(
            "hint",
            "An evaluation without torch.no_grad() or torch.inference_mode().",
            "the model is evaluated with gradients: their graph takes memory and time",
            "with torch.inference_mode(): around the evaluation, or the decorator @torch.inference_mode()",
            _without_no_grad,
        ),
        "no-zero-grad": Check(
            "warning",
            "An optimizer's steps without zero_grad().",
            "gradients are never set to zero: each step adds to those of all steps before",
            "optimizer.zero_grad() before loss.backward(), or after optimizer.step()",
            _without_zero_grad,
        ),
        "optimizer-too-early": Check(
            "warning",
            "An optimizer that is made before the model is sharded by FSDP.",
            "this optimizer has the parameters from before the model is sharded: it updates none of those that are trained",
            "make the optimizer after FullyShardedDataParallel(...) or fully_shard(...)",
            _optimizer_too_early,
        ),
        "model-moved-late": Check(
            "hint",
            "A model that is moved to its device after the optimizer was made.",
            "the model is moved to its device below: what this optimizer already keeps of it (as Adagrad does) stays behind",
            "model.to(device) before the optimizer is made",
            _moved_late,
        ),
        "every-rank-saves": Check(
            "warning",
            "torch.save into one file by all processes of DDP.",
            "every process writes this file, at the same time: it may end up broken",
            "save on one process only: if torch.distributed.get_rank() == 0, then a barrier where others read it",
            _saved_by_all,
        ),
        "no-destroy-process-group": Check(
            "hint",
            "init_process_group without destroy_process_group.",
            "the process group is never destroyed: PyTorch warns at the end, and a rank that ends first can make others fail",
            "torch.distributed.destroy_process_group() as the last line",
            _not_left,
        ),
        "copies-not-pinned": Check(
            "hint",
            "non_blocking=True, where no loader has pinned memory.",
            "non_blocking=True has no effect on memory that is not pinned",
            "pin_memory=True for the DataLoader",
            _pageable,
        ),
        "finds-unused-parameters": Check(
            "hint",
            "DDP with find_unused_parameters=True.",
            "find_unused_parameters=True goes through the whole graph in every step",
            "leave it out unless some parameters get no gradient in some steps; if it is always the same ones, static_graph=True",
            _looks_for_unused,
        ),
    }
)
"""By the names of the rules of ``slurmgpu check``."""
