"""Peak memory of the tensors of one micro-batch, found without that memory.

The task's own model, loss and backward pass run on torch's fake tensors, which have a shape and a type and no values, so a
login node is enough. Each storage counts from the operation that makes it to the moment when nobody, autograd included,
holds it. What a kernel takes inside of itself, as cuDNN's work spaces, is not seen. Where a task cannot run on fake tensors,
because it looks at values, the same is counted with real ones, on the CPU.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, NamedTuple, Optional

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from ..data import collated
from ..optimizers import by_name, make_optimizer
from ..precision import Precision
from ..settings import Config, Settings
from ..setup import built
from ..sharding.fully import blocks_of
from ..task import Task, is_stream

__all__ = ["Facts", "Peak", "trace"]

_SIZES = (2, 4)
"""Samples of the two micro-batches that are traced; what others take lies on the line through both."""
_CPU = torch.device("cpu")
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Peak(NamedTuple):
    """Bytes at the peak of a micro-batch beside the model and what is kept from step to step.

    ``first`` has the gradients that are made meanwhile; ``again`` are those of a micro-batch that adds to gradients that are
    there, and has no more of them than is made anew and added.
    """

    samples: int
    first: int
    again: int


class Facts(NamedTuple):
    """A training's tensors, in bytes: of one process that has all of them."""

    parameters: int
    elements: int
    """Number of values."""
    buffers: int
    gradients: int
    optimizer: int
    optimizer_peak: int
    """Beside these, at the peak of the optimizer's step on the CPU; on a GPU a fused one takes nothing."""
    averages: int
    """Bytes that ``ema`` keeps."""
    blocks: tuple[int, ...]
    """Parameters of each block that fsdp2 gathers by itself."""
    peaks: tuple[Peak, ...]
    """None of them where the task has a ``step`` of its own, which is not traced."""
    peaks_cast: tuple[Peak, ...]
    """The same of a model whose parameters are in the type it computes in, as fsdp2 gathers them."""
    note: Optional[str]
    """A remark on how this was found."""
    stages: Mapping[int, tuple[int, ...]] = MappingProxyType({})
    """By processes of a pipeline, the parameters that each has; of numbers that the task cuts its model into."""


class _Storages(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Bytes of the storages that live, and the most there were."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self._counted = self.peak = 0
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Optional[dict[str, Any]] = None
    ) -> Any:
        answer = function(*args, **(kwargs or {}))
        self.add(answer)
        return answer

    def add(self, values: Any) -> None:
        """Count the tensors among these from now on."""
        for tensor in _tensors(values):
            storage = tensor.untyped_storage()
            # Python's own weak references to a storage end torch 2.1 with a segmentation fault.
            reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            size = storage.nbytes()
            if reference.cdata not in self._known:
                self._known[reference.cdata] = reference, size
                self._counted += size
                if self._counted > self.peak:  # only then does it matter which of them are gone
                    self.peak = max(self.peak, self.live())

    def live(self) -> int:
        """Return the bytes of the storages that somebody still holds."""
        self._known = {key: known for key, known in self._known.items() if not known[0].expired()}  # type: ignore[no-untyped-call]
        self._counted = sum(size for _, size in self._known.values())
        return self._counted

    def begin(self) -> int:
        """Measure the peak from here on, and return the bytes that live now."""
        self.peak = self.live()
        return self.peak


def trace(task: Task, settings: Settings, processes: Sequence[int] = ()) -> Facts:
    """Work out what the training of these settings keeps, and what two sizes of micro-batch take.

    Args:
        processes: Numbers of processes, for each of which it is worked out what the stages of a pipeline have.

    Raises:
        TrainingError: the task does not do what it must, in the words of a training.
        Exception: whatever the task raises with real tensors.
    """
    try:
        return _Traced(task, settings, fake=True).facts(None, processes)
    except Exception as error:
        said = (str(error).strip().splitlines() or [""])[0]
        note = (
            f"the task does not run on tensors without values ({type(error).__name__}: {said[:200]}): "
            "counted with real ones, on the CPU"
        )
    return _Traced(task, settings, fake=False).facts(note, processes)


class _Traced:
    """A task's model, with fake tensors or with real ones."""

    def __init__(self, task: Task, settings: Settings, *, fake: bool) -> None:
        self._settings = settings
        self._mode: AbstractContextManager[Any] = contextlib.nullcontext()
        if fake:
            from torch._subclasses.fake_tensor import FakeTensorMode

            self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._task, self._cfg = task, Config(settings)
        with self._mode:
            self._model = built(self._task, self._cfg, settings)
        self._model.train()
        dataset = self._task.dataset(self._cfg)
        self._batches = [] if self._task.has("step") else list(_batches(self._task, dataset))

    def facts(self, note: Optional[str], processes: Sequence[int]) -> Facts:
        """Return all that is to be known."""
        model, settings = self._model, self._settings
        peaks = self._peaks()
        trained = [each for each in model.parameters() if each.requires_grad]
        state, step_peak = self._optimizer(trained)
        wide = sum(each.numel() * max(4, each.element_size()) for each in trained)
        facts = Facts(
            parameters=_size(model.parameters()),
            elements=sum(each.numel() for each in model.parameters()),
            buffers=_size(model.buffers()),
            gradients=_size(trained),
            optimizer=state,
            optimizer_peak=step_peak,
            averages=0 if settings.ema is None else wide,
            blocks=tuple(_size(each.parameters()) for each in blocks_of(model, self._task)),
            peaks=peaks,
            peaks_cast=peaks,
            note=note,
            stages=self._stages(processes),
        )
        if settings.precision not in _HALF:
            return facts
        with self._mode:
            _cast(model, _HALF[settings.precision])
        return facts._replace(peaks_cast=self._peaks())

    def _stages(self, processes: Sequence[int]) -> dict[int, tuple[int, ...]]:
        found: dict[int, tuple[int, ...]] = {}
        if not self._task.has("stages"):
            return found
        for total in processes:
            count = self._settings.pipeline_stages or total
            with self._mode, contextlib.suppress(Exception):  # it may have fewer layers than these
                stages = self._task.stages(self._model, count)
                found[count] = tuple(_size(each.parameters()) for each in stages)
        return found

    def _peaks(self) -> tuple[Peak, ...]:
        return tuple(self._peak(samples, batch) for samples, batch in self._batches)

    def _peak(self, samples: int, batch: object) -> Peak:
        """Return what a micro-batch takes, without gradients that are there before and with them."""
        found = []
        with self._mode, _Storages() as storages:
            storages.add([*self._model.parameters(), *self._model.buffers()])
            for _ in range(2):
                before = storages.begin()
                self._back(tree_map(_copied, batch), storages)
                found.append(storages.peak - before)
        for each in self._model.parameters():
            each.grad = None
        return Peak(samples, *found)

    def _back(self, batch: object, storages: _Storages) -> None:
        storages.add(batch)
        with Precision(self._settings.precision, _CPU, 1.0).autocast():
            value = self._task.loss(self._model, batch)[0]
        if not value.requires_grad:
            self._task.refuse_constant(value)
        value.backward()  # type: ignore[no-untyped-call, unused-ignore]

    def _optimizer(self, trained: list[nn.Parameter]) -> tuple[int, int]:
        """Bytes of the optimizers' state, and of what is beside it at the peak of their steps."""
        with self._mode, _Storages() as storages:
            storages.add(trained)
            for each in trained:
                each.grad = torch.zeros_like(each)
            optimizer = make_optimizer(self._task, self._model, self._cfg)
            before, held = storages.begin(), []
            for one in by_name(optimizer).values():
                one.step()
                held += _tensors(list(one.state.values()))
            peak = storages.peak - before
        for each in trained:
            each.grad = None
        return _size(held), max(0, peak - _size(held))


def _batches(task: Task, dataset: Any) -> Iterator[tuple[int, object]]:
    """Yield the first samples of the training, as micro-batches of two sizes."""
    if is_stream(dataset):
        samples = list(itertools.islice(iter(dataset), max(_SIZES)))
    else:
        samples = [dataset[index] for index in range(min(max(_SIZES), len(dataset)))]
    for size in sorted({min(each, len(samples)) for each in _SIZES}):
        yield size, collated(samples[:size], task.collate)


def _copied(value: object) -> object:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _cast(model: nn.Module, dtype: torch.dtype) -> None:
    """Parameters as fsdp2 gathers them; one with two names stays one."""
    known: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, each in list(module._parameters.items()):
            if each is not None and each.is_floating_point():
                new = known.setdefault(id(each), nn.Parameter(each.detach().to(dtype), each.requires_grad))
                module._parameters[name] = new
                known[id(new)] = new


def _tensors(values: object) -> list[torch.Tensor]:
    return [each for each in tree_flatten(values)[0] if isinstance(each, torch.Tensor)]


def _size(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of these, each storage once."""
    storages = [each.untyped_storage() for each in tensors]
    return sum({id(each): each.nbytes() for each in storages}.values())
