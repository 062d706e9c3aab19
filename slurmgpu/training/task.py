"""The user's task: found, loaded and checked, so that a mistake in it is one clear sentence.

A task is any class with ``model(cfg)``, ``dataset(cfg, split)`` and ``loss(model, batch)``; it may also have
those of ``methods.OPTIONAL``. No base class is needed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn, Optional, Protocol, Union

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import IterableDataset

from .aux_modules import AuxModules, UnsavedState
from .errors import TrainingError
from .generators import reach
from .methods import OPTIONAL, REQUIRED, misnamed
from .settings import Config

__all__ = ["Collate", "Data", "Loss", "Scalar", "Task", "describe_value", "is_stream", "load"]

Scalar = Union[float, torch.Tensor]
Collate = Callable[[list[object]], object]
"""Makes a batch of a list of samples."""

_ORDERS = ("weights", "lengths", "order")


class Data(Protocol):
    """The samples of a split, by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> object: ...


class Loss(NamedTuple):
    """A mean loss of a micro-batch (``counted`` is None), or a sum over ``counted`` things; and the task's own values.

    Own values are means over the samples, or pairs (sum, count).
    """

    value: torch.Tensor
    counted: Optional[Scalar]
    own: Optional[Mapping[str, Union[Scalar, tuple[Scalar, Scalar]]]] = None


def load(reference: str) -> Task:
    """Load the task named ``FILE.py:CLASS``, a relative path counting from the work folder, or ``slurmgpu:NAME``.

    Raises:
        TrainingError: no such file, class or name, or a method that is missing or takes other arguments.
    """
    if reference.startswith("slurmgpu:"):
        from . import tasks

        return Task(*tasks.find(reference))
    file, _, name = reference.rpartition(":")
    path = Path(file).resolve()
    if not path.is_file():
        raise TrainingError(f"task {reference!r}: there is no file {path} (work folder {Path.cwd()})")
    module = _import(path)
    found = getattr(module, name, None)
    if not inspect.isclass(found):
        own = [n for n, v in vars(module).items() if inspect.isclass(v) and v.__module__ == module.__name__]
        raise TrainingError(
            f"task {reference!r}: {path} has no class {name!r}; it has {', '.join(own) or 'none'}"
        )
    return Task(found, path)


def _import(path: Path) -> ModuleType:
    """Import the file with its folder first on the path, as ``python FILE`` would.

    It keeps its own name, because data-loader workers may have to import it again.
    """
    name = path.stem
    if name in sys.modules or name in sys.builtin_module_names:
        raise TrainingError(f"task file {path}: a module named {name!r} is loaded already; rename the file")
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # a file that ends in .py always has both
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        if error.filename != str(path):
            raise
        version = ".".join(map(str, sys.version_info[:2]))
        raise TrainingError(
            f"task file {path}, line {error.lineno}: Python {version} cannot read it: {error.msg}: "
            f"{(error.text or '').strip()}"
        ) from None
    return module


class Task:
    """A user's task, each answer checked; a wrong one names the file, the method and what is expected."""

    def __init__(self, kind: type, path: Path) -> None:
        self.path = path
        self.sha256 = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        """The SHA-256 of the task's file as it was loaded: who edits it while a training runs changes the next start."""
        self._name = kind.__name__
        for method, parameters in {**REQUIRED, **OPTIONAL}.items():
            self._check_method(kind, method, parameters)
        self._check_pairs(kind)
        try:
            inspect.signature(kind).bind()
        except TypeError as error:
            raise TrainingError(f"{path}: {self._name}() must need no arguments, but: {error}") from None
        self._user: Any = kind()
        ordered = [method for method in _ORDERS if self.has(method)]
        if len(ordered) > 1:
            raise TrainingError(
                f"{path}: {self._name} has {' and '.join(ordered)}: each of them decides the order of samples; keep one"
            )
        self.ordered_by = ordered[0] if ordered else None
        """The method that decides the order of samples, if there is one."""

    def _check_pairs(self, kind: type) -> None:
        """Refuse methods for one optimizer beside those for several."""
        for one, several in (
            ("optimizer", "optimizers"),
            ("schedule", "schedules"),
            ("schedule", "optimizers"),
        ):
            if hasattr(kind, one) and hasattr(kind, several):
                raise TrainingError(
                    f"{self.path}: {self._name} has {one} and {several}; with several optimizers, write optimizers and "
                    "schedules, and otherwise optimizer and schedule"
                )
        if hasattr(kind, "schedules") and not hasattr(kind, "optimizers"):
            raise TrainingError(
                f"{self.path}: {self._name} has schedules, which go with optimizers; with one optimizer, write schedule"
            )
        others = [
            name for name in ("schedule", "schedules", "optimizers") if callable(getattr(kind, name, None))
        ]
        if hasattr(kind, "epoch_schedule") and others:
            raise TrainingError(
                f"{self.path}: {self._name} has epoch_schedule beside {' and '.join(others)}: it goes with one optimizer, and "
                "alone; otherwise a schedule moves on with each step"
            )
        for one, other in (("state_dict", "load_state_dict"), ("load_state_dict", "state_dict")):
            if hasattr(kind, one) and not hasattr(kind, other):
                raise TrainingError(
                    f"{self.path}: {self._name} has {one} and no {other}; a state of its own needs both"
                )

    def _check_method(self, kind: type, method: str, parameters: str) -> None:
        function = getattr(kind, method, None)
        if function is None:
            if method in REQUIRED and not (method == "loss" and hasattr(kind, "step")):
                raise TrainingError(
                    f"{self.path}: {self._name} has no method {method}; expected is {method}{parameters}"
                )
            return
        if not callable(function):
            raise self._wrong(method, "a method", function)
        static = isinstance(inspect.getattr_static(kind, method), (staticmethod, classmethod))
        try:
            inspect.signature(function).bind(
                *([] if static else ["self"]), *filter(None, parameters.strip("()").split(", "))
            )
        except TypeError as error:
            raise TrainingError(
                f"{self.path}: {self._name}.{method} must take {method}{parameters}, but: {error}"
            ) from None

    def _wrong(self, method: str, expected: str, got: object) -> TrainingError:
        return TrainingError(
            f"{self.path}: {self._name}.{method} must be or return {expected}; got {describe_value(got)}"
        )

    def has(self, method: str) -> bool:
        """Return True if the task has this optional method."""
        return callable(getattr(self._user, method, None))

    @property
    def own(self) -> Any:
        """The task as what has a state of its own in checkpoints; None: it has none."""
        kind = type(self._user)
        if isinstance(self._user, torch.nn.Module) and kind.state_dict is torch.nn.Module.state_dict:
            return None  # a module's, which nobody has written for this
        return self._user if self.has("state_dict") else None

    def state(self) -> Mapping[str, Any]:
        """Return the task's own state."""
        answer = self._user.state_dict()
        if not (isinstance(answer, Mapping) and all(isinstance(name, str) for name in answer)):
            raise self._wrong("state_dict", "a mapping of name -> value", answer)
        return dict(answer)

    def generators(self, *others: object) -> list[Any]:
        """Return the random generators that the task keeps, and those of ``others``; not the global ones."""
        return reach(*others, self._user)

    def unsaved_state(self, model: torch.nn.Module) -> UnsavedState:
        """Return what the task and the model keep, and no checkpoint has."""
        return UnsavedState(self._user, model)

    def callback(self, name: str) -> Optional[Callable[..., object]]:
        """Return the method that is to be called at a named place, if there is one."""
        return getattr(self._user, name) if self.has(name) else None

    def misnamed(self) -> dict[str, str]:
        """Return the methods that nothing calls, each with the one that it was most likely meant to be."""
        methods = inspect.getmembers(type(self._user), inspect.isfunction)
        used = {used for _, one in methods for used in one.__code__.co_names}
        return misnamed((name for name, _ in methods), used)

    def aux_modules(self, model: torch.nn.Module, device: torch.device) -> AuxModules:
        """Return the modules that loss and evaluate use beside the model, now on the device."""
        return AuxModules(self._user, model, device)

    def prepare(self, cfg: Config) -> None:
        """Let the task make what the run needs once, such as a file of data."""
        if self.has("prepare"):
            self._user.prepare(cfg)

    def flops(self, cfg: Config) -> Optional[float]:
        """Floating-point operations of forward and backward pass per sample, where the task says so."""
        if not self.has("flops"):
            return None
        answer = self._user.flops(cfg)
        if isinstance(answer, bool) or not isinstance(answer, (int, float)) or not 0 < answer < math.inf:
            raise self._wrong("flops", "a number of operations per sample above 0", answer)
        return float(answer)

    def model(self, cfg: Config) -> torch.nn.Module:
        """Return the network, on the CPU."""
        model = self._user.model(cfg)
        if not isinstance(model, torch.nn.Module):
            raise self._wrong("model", "a torch.nn.Module", model)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise self._wrong("model", "a torch.nn.Module with parameters that require a gradient", model)
        return model

    def dataset(self, cfg: Config) -> Data:
        """Return the samples to train on, or a stream of them (see ``is_stream``)."""
        dataset: Data = self._user.dataset(cfg, "train")
        return dataset if is_stream(dataset) else self._data(dataset, "train")

    def tests(self, cfg: Config) -> dict[str, Data]:
        """Return the sets to test on by name: a single one has the name ''; a task without a test split has none."""
        answer = self._user.dataset(cfg, "test")
        if answer is None:
            return {}
        if not (isinstance(answer, Mapping) and answer and all(isinstance(name, str) for name in answer)):
            return {"": self._data(answer, "test")}
        for name in answer:
            if not re.fullmatch(r"[\w.-]+", name):
                raise TrainingError(
                    f"{self.path}: {self._name}.dataset names a test set {name!r}; a name has letters, digits and _ . -"
                )
        return {name: self._data(each, f"test ({name})") for name, each in answer.items()}

    def _data(self, dataset: Any, split: str) -> Data:
        indexed = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        if is_stream(dataset) or not indexed:
            expected = "a dataset with __len__ and __getitem__"
            if split == "train":
                expected += ", or one to iterate over"
            else:
                streams = is_stream(dataset)
                expected += (
                    ", because samples are taken by number, not one to iterate over" if streams else ""
                )
                expected += ", several of them by name, or None" if split == "test" else ""
            raise self._wrong("dataset", expected, dataset)
        if not len(dataset):
            raise self._wrong("dataset", f"at least one sample for the split {split!r}", dataset)
        found: Data = dataset
        return found

    @property
    def collate(self) -> Optional[Collate]:
        """The task's own way to make a batch of samples; None: torch's."""
        collate: Optional[Collate] = self._user.collate if self.has("collate") else None
        return collate

    def weights(self, dataset: Data, cfg: Config) -> torch.Tensor:
        """Return the relative sampling weights of the training's samples."""
        weights = self._per_sample("weights", dataset, cfg)
        if weights.dim() != 1 or len(weights) != len(dataset) or not _weighs(weights):
            expected = f"{len(dataset)} numbers of at least 0, one a sample, and one of them above 0"
            raise self._wrong("weights", expected, weights)
        return weights

    def lengths(self, dataset: Data, cfg: Config) -> torch.Tensor:
        """Return the length of each sample of the training, in tokens, say."""
        lengths = self._per_sample("lengths", dataset, cfg)
        if lengths.dim() != 1 or len(lengths) != len(dataset) or not bool((lengths >= 0).all()):
            expected = f"{len(dataset)} numbers of at least 0, one a sample"
            raise self._wrong("lengths", expected, lengths)
        return lengths

    def order(self, dataset: Data, cfg: Config, epoch: int) -> torch.Tensor:
        """Return the samples of an epoch of the training, in order."""
        answer = self._user.order(dataset, cfg, epoch)
        expected = f"the numbers of samples, from 0 to {len(dataset) - 1}, in the order of the epoch"
        try:
            order = torch.as_tensor(answer if isinstance(answer, torch.Tensor) else list(answer))
        except (TypeError, ValueError, RuntimeError):
            raise self._wrong("order", expected, answer) from None
        whole = not order.is_floating_point() and not order.is_complex() and order.dtype != torch.bool
        if order.dim() != 1 or not len(order) or not whole:
            raise self._wrong("order", expected, answer)
        if int(order.min()) < 0 or int(order.max()) >= len(dataset):
            found = f"{expected}; epoch {epoch} has {int(order.min())} to {int(order.max())}"
            raise self._wrong("order", found, answer)
        return order.to("cpu", torch.int64)

    def _per_sample(self, method: str, dataset: Data, cfg: Config) -> torch.Tensor:
        answer = getattr(self._user, method)(dataset, cfg)
        try:
            found = torch.as_tensor(answer if isinstance(answer, torch.Tensor) else list(answer))
        except (TypeError, ValueError, RuntimeError):
            raise self._wrong(method, "numbers, one a sample", answer) from None
        return found.detach().cpu()

    def blocks(self, model: torch.nn.Module) -> list[torch.nn.Module]:
        """Return the modules whose activations may be computed again instead of kept."""
        if not self.has("blocks"):
            raise TrainingError(
                f"{self.path}: activation_checkpointing needs a method blocks(model) in {self._name} that "
                "returns the modules to compute again in the backward pass"
            )
        blocks = list(self._user.blocks(model))
        if not blocks or not all(isinstance(block, torch.nn.Module) for block in blocks):
            raise self._wrong("blocks", "a list of modules of the model", blocks)
        return blocks

    def stages(self, model: torch.nn.Module, count: int) -> list[torch.nn.Module]:
        """Return the model's stages in their order, of which each takes what the one before returns."""
        if not self.has("stages"):
            raise TrainingError(
                f"{self.path}: strategy pipeline needs a method stages(model, count) in {self._name}, which returns the model's "
                "parts in their order, one for each process"
            )
        stages = list(self._user.stages(model, count))
        if len(stages) != count or not all(isinstance(stage, torch.nn.Module) for stage in stages):
            raise self._wrong("stages", f"a list of {count} modules, one for each process", stages)
        return stages

    def init_weights(self, model: torch.nn.Module) -> None:
        """Let the task give the model first values (``meta_device``)."""
        self._user.init_weights(model)

    def shards(self, model: torch.nn.Module) -> Optional[list[torch.nn.Module]]:
        """Return the modules whose parameters are gathered together (fsdp2), as the task says; None where it does not."""
        method = next((name for name in ("shards", "blocks") if self.has(name)), None)
        if method is None:
            return None
        found = list(getattr(self._user, method)(model))
        own = {id(each) for each in model.modules()}
        if not found or not all(isinstance(each, torch.nn.Module) and id(each) in own for each in found):
            raise self._wrong(method, "a list of modules of the model", found)
        return found

    def optimizer(self, model: torch.nn.Module, cfg: Config) -> torch.optim.Optimizer:
        """Return the task's own optimizer."""
        return self._optimizer("optimizer", self._user.optimizer(model, cfg))

    def optimizers(self, model: torch.nn.Module, cfg: Config) -> dict[str, torch.optim.Optimizer]:
        """Return the task's own optimizers, by name."""
        answer = self._user.optimizers(model, cfg)
        if not (isinstance(answer, Mapping) and answer and all(isinstance(name, str) for name in answer)):
            raise self._wrong("optimizers", "a mapping of name -> torch.optim.Optimizer", answer)
        return {name: self._optimizer("optimizers", each) for name, each in answer.items()}

    def _optimizer(self, method: str, optimizer: object) -> torch.optim.Optimizer:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise self._wrong(method, "a torch.optim.Optimizer", optimizer)
        if not _needs_nothing(optimizer.step):
            expected = "an optimizer whose step() needs no arguments, such as a closure"
            raise self._wrong(method, expected, optimizer)
        return optimizer

    def parameter_groups(self, model: torch.nn.Module, cfg: Config) -> list[dict[str, Any]]:
        """Groups of parameters for the default optimizer, each with what differs there, such as its ``lr``."""
        answer = self._user.parameter_groups(model, cfg)
        expected = "a list of mappings, each with 'params', a list of parameters, and options of AdamW"
        if not isinstance(answer, (list, tuple)) or not answer:
            raise self._wrong("parameter_groups", expected, answer)
        groups = []
        for group in answer:
            if not (isinstance(group, Mapping) and "params" in group):
                raise self._wrong("parameter_groups", expected, group)
            params = [group["params"]] if isinstance(group["params"], torch.Tensor) else list(group["params"])
            if not all(isinstance(each, torch.Tensor) for each in params):
                raise self._wrong("parameter_groups", expected, params)
            trained = [each for each in params if each.requires_grad]
            groups.append({**group, "params": trained})
        return groups

    def schedule(
        self, optimizer: torch.optim.Optimizer, cfg: Config, total_steps: int
    ) -> Optional[LRScheduler]:
        """Return the task's learning-rate schedule, moved on after every optimizer step; None keeps the rate."""
        return self._schedule("schedule", self._user.schedule(optimizer, cfg, total_steps))

    def schedules(
        self, optimizers: Mapping[str, torch.optim.Optimizer], cfg: Config, total_steps: int
    ) -> dict[str, Optional[LRScheduler]]:
        """Return the task's schedules by the names of their optimizers; one that is not named keeps its rate."""
        answer = self._user.schedules(dict(optimizers), cfg, total_steps)
        if not (isinstance(answer, Mapping) and answer.keys() <= optimizers.keys()):
            expected = f"a mapping of name -> schedule, with names out of {', '.join(optimizers)}"
            raise self._wrong("schedules", expected, answer)
        return {name: self._schedule("schedules", each) for name, each in answer.items()}

    def epoch_schedule(
        self, optimizer: torch.optim.Optimizer, cfg: Config
    ) -> tuple[LRScheduler, Optional[str]]:
        """Return the task's schedule that moves on by epochs, or by a metric of evaluations, which is named then."""
        answer = self._user.epoch_schedule(optimizer, cfg)
        schedule, metric = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, None)
        has_all = all(hasattr(schedule, name) for name in ("step", "state_dict", "load_state_dict"))
        expected = (
            "a schedule of torch.optim.lr_scheduler, or a pair of one and the metric that its step takes"
        )
        if not has_all or not isinstance(metric, (str, type(None))):
            raise self._wrong("epoch_schedule", expected, answer)
        if _needs_nothing(schedule.step) != (metric is None):
            fit = "needs no metric" if metric else "needs a metric, as in (schedule, 'loss')"
            raise self._wrong("epoch_schedule", f"{expected}; the step() of this one {fit}", answer)
        return schedule, metric

    def _schedule(self, method: str, schedule: Any) -> Optional[LRScheduler]:
        if schedule is None:
            return None
        if not all(hasattr(schedule, name) for name in ("step", "state_dict", "load_state_dict")):
            raise self._wrong(method, "a schedule of torch.optim.lr_scheduler, or None", schedule)
        if not _needs_nothing(schedule.step):
            expected = "a schedule whose step() needs no arguments, because it moves on after every step"
            raise self._wrong(method, expected, schedule)
        found: LRScheduler = schedule
        return found

    def step(self, model: torch.nn.Module, batches: list[object], update: Callable[..., None]) -> None:
        """The task's own step, which calls ``update`` as often as it likes."""
        self._user.step(model, batches, update)

    @property
    def raw_loss(self) -> Callable[[torch.nn.Module, object], object]:
        """The task's own method, for the step's path; its answer is yet to be checked."""
        method: Callable[[torch.nn.Module, object], object] = getattr(self._user, "loss", None)  # type: ignore[assignment]
        return method

    def loss(self, model: torch.nn.Module, batch: object) -> Loss:
        """Return the loss of one micro-batch."""
        return self.checked_loss(self._user.loss(model, batch))

    def checked_loss(self, answer: object) -> Loss:
        """Return what ``loss`` or the loss of an update returned."""
        if isinstance(answer, torch.Tensor) and answer.dim() == 0:
            return Loss(answer, None)
        return self.counted_loss(answer)

    def counted_loss(self, answer: object) -> Loss:
        """Return what ``loss`` returned when it was not a tensor without dimensions."""
        if isinstance(answer, Mapping):
            return self._with_own(answer)
        if isinstance(answer, tuple) and len(answer) == 2:
            total, count = answer
            if isinstance(total, torch.Tensor) and total.dim() == 0 and _is_scalar(count):
                return Loss(total, count)
        raise self._wrong(
            "loss", "the mean loss as a tensor without dimensions, or a pair (sum, count)", answer
        )

    def _with_own(self, answer: Mapping[str, Any]) -> Loss:
        own = {name: value for name, value in answer.items() if name != "loss"}
        if len(own) == len(answer) or isinstance(answer["loss"], Mapping):
            raise self._wrong("loss", "a mapping with 'loss' and values of your own by name", answer)
        for name, value in own.items():
            parts = value if isinstance(value, tuple) and len(value) == 2 else (value,)
            if not (isinstance(name, str) and all(map(_is_scalar, parts))):
                expected = (
                    "values of your own as numbers, tensors without dimensions, or pairs (sum, count) of them"
                )
                raise self._wrong("loss", expected, {name: value})
        value, counted, _ = self.checked_loss(answer["loss"])
        return Loss(value, counted, own)

    def refuse_constant(self, loss: torch.Tensor) -> NoReturn:
        """Raise for a loss from which nothing can be learned."""
        raise self._wrong("loss", "a loss that depends on the model's parameters", loss)

    def refuse_mixed(self) -> NoReturn:
        """Raise for a loss that is a mean for some batches and a pair (sum, count) for others: neither has a weight then."""
        raise TrainingError(
            f"{self.path}: loss of {self._name} returns a mean for some batches and a pair (sum, count) for others; "
            "return the pair for all of them"
        )

    def evaluate(self, model: torch.nn.Module, batch: object, samples: int) -> Mapping[str, Any]:
        """Sums and counts by name over one batch of a test set, and outputs for ``finish``; without the method: the loss."""
        if not self.has("evaluate"):
            if not self.has("loss"):
                raise TrainingError(
                    f"{self.path}: {self._name} has neither evaluate nor loss, and a test split; write evaluate(model, batch), "
                    "or return None for the split 'test'"
                )
            value, counted, own = self.loss(model, batch)
            found = {"loss": value if counted is None else (value, counted), **(own or {})}
            return {
                name: each if isinstance(each, tuple) else (each * samples, samples)
                for name, each in found.items()
            }
        answer = self._user.evaluate(model, batch)
        expected = "a mapping of name -> (sum, count)"
        if not isinstance(answer, Mapping):
            raise self._wrong("evaluate", expected, answer)
        for name, pair in answer.items():
            if isinstance(name, str) and _is_rows(pair):
                if not self.has("finish"):
                    need = "; outputs by sample need a method finish(outputs)"
                    raise self._wrong("evaluate", expected + need, {name: pair})
                if len(pair) != samples:
                    rows = f"outputs with a row for each of the batch's {samples} samples"
                    raise self._wrong("evaluate", rows, {name: pair})
                continue
            if not (isinstance(name, str) and isinstance(pair, tuple) and len(pair) == 2):
                raise self._wrong("evaluate", expected, {name: pair})
            if not all(map(_is_scalar, pair)):
                raise self._wrong(
                    "evaluate", expected + ", numbers or tensors without dimensions", {name: pair}
                )
        return answer

    def finish(self, outputs: Mapping[str, Any]) -> dict[str, float]:
        """Numbers by name from the outputs of a whole test set."""
        return self._numbers("finish", self._user.finish(outputs))

    def sample(self, model: torch.nn.Module, cfg: Config) -> tuple[dict[str, str], dict[str, float]]:
        """Return what the model generates: texts by name (``text``, if there is but one), and numbers by name."""
        answer = self._user.sample(model, cfg)
        if isinstance(answer, str):
            return {"text": answer}, {}
        if not (isinstance(answer, Mapping) and all(isinstance(name, str) for name in answer)):
            raise self._wrong("sample", "a text, or a mapping of name -> text or number", answer)
        texts = {name: value for name, value in answer.items() if isinstance(value, str)}
        rest = {name: value for name, value in answer.items() if name not in texts}
        return texts, self._numbers("sample", rest, "a text, or a mapping of name -> text or number")

    def _numbers(
        self, method: str, answer: object, expected: str = "a mapping of name -> number"
    ) -> dict[str, float]:
        """Return the numbers by name that a method has returned, those of torch and numpy as plain ones."""
        if not (isinstance(answer, Mapping) and all(isinstance(name, str) for name in answer)):
            raise self._wrong(method, expected, answer)
        found = {}
        for name, value in answer.items():
            if not (_is_scalar(value) or (hasattr(value, "item") and not getattr(value, "shape", None))):
                raise self._wrong(method, expected, {name: value})
            found[name] = float(value)
        return found

    def refuse_double(self, found: Mapping[str, float], others: Mapping[str, float]) -> None:
        """Raise for a name that evaluate has given already: one of the two would be lost."""
        double = [name for name in found if name in others]
        if double:
            raise TrainingError(
                f"{self.path}: {self._name} gives {', '.join(map(repr, double))} both in evaluate and in finish or "
                "sample; give each measure a name of its own"
            )


def _is_rows(value: object) -> bool:
    """Return True if it has an entry for each of several samples: a list, or a tensor or array with dimensions."""
    return isinstance(value, list) or (not isinstance(value, tuple) and bool(getattr(value, "shape", None)))


def is_stream(dataset: object) -> bool:
    """Return True if a data set is to be iterated over, and its samples have no numbers."""
    if isinstance(dataset, IterableDataset):
        return True  # it inherits a __getitem__, which only raises
    return hasattr(dataset, "__iter__") and not (
        hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    )


def _needs_nothing(method: Callable[..., object]) -> bool:
    """Return True if it can be called without arguments, as far as Python knows its signature."""
    with contextlib.suppress(ValueError):  # written in C: it has no signature
        try:
            inspect.signature(method).bind()
        except TypeError:
            return False
    return True


def _weighs(weights: torch.Tensor) -> bool:
    """Return True if one can draw by these weights."""
    wide = weights.double()
    return bool(torch.isfinite(wide).all() and (wide >= 0).all() and wide.sum() > 0)


def _is_scalar(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dim() == 0
    return isinstance(value, (int, float))


def describe_value(value: object) -> str:
    """Return what a value is, in a few words: its type, and the shapes and lengths that matter in a batch."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"a {type(value).__name__} of shape {shape}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}: ({', '.join(map(describe_value, value))})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {describe_value(v)}" for k, v in value.items()) + "}"
    return f"a {type(value).__name__}" if value is not None else "None"
