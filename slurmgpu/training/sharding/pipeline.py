"""``strategy: pipeline``: each process has a stage of the model, and micro-batches go from stage to stage.

A step's micro-batches are those of ``accumulate``. GPipe takes all of them forward and then all backward; 1F1B goes back as soon
as it can, and keeps no more activations than there are stages behind it (both: Narayanan et al. 2021, arXiv 2104.04473). The
stages send each other activations and their gradients themselves: torch.distributed.pipelining calls a loss once more on tensors
that are none to learn the shapes, and wants all micro-batches alike.

With fewer stages than processes there are several copies of the pipeline, with other samples; each stage's gradients are averaged
over its copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

import torch
import torch.distributed as dist
from torch import nn

from ..errors import Handed, SettingsError, TrainingError
from ..processes.group import Group
from ..task import Task
from .meta_init import MetaInit

__all__ = ["Staged", "Turn", "refuse", "staged", "turns"]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32)
_MOST_DIMS = 8


def refuse(task: Task) -> None:
    """Raise SettingsError where the task has what cannot be done with stages; the message says what to do."""
    for name, what in (("step", "calls what it likes"), ("sample", "calls the whole model")):
        if task.has(name):
            raise SettingsError(
                f"strategy is pipeline, and the task's {name} {what}: the two are not done together yet; change one of them, "
                "or use fsdp2"
            )


class Turn(NamedTuple):
    """A micro-batch that a process takes forward or back through its stage."""

    forward: bool
    micro: int


def turns(schedule: str, number: int, count: int, rounds: int) -> Iterator[Turn]:
    """Return the turns of stage ``number`` of ``count`` in a step of ``rounds`` micro-batches.

    All stages take micro-batches in the same order, so that what one sends is what the next one waits for.
    """
    ahead = rounds if schedule == "gpipe" else min(rounds, count - number)
    for micro in range(rounds):
        yield Turn(True, micro)
        if micro + 1 >= ahead:
            yield Turn(False, micro + 1 - ahead)
    for micro in range(rounds - ahead + 1, rounds):
        yield Turn(False, micro)


class Staged(nn.Module):
    """The model as the task calls it: its forward pass is this process's stage, and a link to those beside it.

    The first stage takes what the task gives. The others take what comes from the stage before, whatever they are called
    with. The last one's answer is the model's; on all others the call ends with ``Handed``.

    Args:
        whole: The model; what of it is other processes' is on no device (``meta``).
        stage: This process's part of it.
        owners: For each entry of the model's state_dict the process of a pipeline that has it.
    """

    def __init__(self, whole: nn.Module, stage: nn.Module, owners: dict[str, int], group: Group) -> None:
        super().__init__()
        self.whole, self.stage = whole, stage
        self.owners = owners
        rank = group.ranks.rank
        self.number, self.count = rank % group.stages, group.stages
        """Place of this process in its pipeline, and their number."""
        self.first, self.last = not self.number, self.number == self.count - 1
        self._device = group.device
        self._before, self._after = rank - 1, rank + 1
        # One for each direction: what waits in one must not hold up the other.
        self._onward, self._back = dist.new_group(), dist.new_group()
        self._about = dist.new_group(backend="gloo")
        self._sent: list[tuple[Any, torch.Tensor]] = []
        self._inputs: list[torch.Tensor] = []
        self._outputs: list[torch.Tensor] = []

    def forward(self, *inputs: Any) -> torch.Tensor:
        """Return the last stage's answer; send that of any other stage to the next one, and raise ``Handed``."""
        trained = torch.is_grad_enabled()
        given = self._given(inputs) if self.first else self._receive()
        answer = self.stage(given)
        if trained:
            self._inputs.append(given)
        if self.last:
            found: torch.Tensor = answer
            return found
        if not isinstance(answer, torch.Tensor):
            raise TrainingError(
                f"stage {self.number} of the pipeline returns a {type(answer).__name__}: what goes from stage to stage is one "
                "tensor"
            )
        if trained:
            self._outputs.append(answer)
        self._send(answer.detach().contiguous())
        raise Handed

    def _given(self, inputs: Sequence[Any]) -> torch.Tensor:
        if len(inputs) != 1 or not isinstance(inputs[0], torch.Tensor):
            raise TrainingError(
                "strategy pipeline: loss and evaluate must call model(x) once for each batch, with one tensor"
            )
        found: torch.Tensor = inputs[0]
        return found

    def _send(self, tensor: torch.Tensor) -> None:
        if tensor.dim() > _MOST_DIMS or tensor.dtype not in _DTYPES:
            raise TrainingError(
                f"stage {self.number} of the pipeline returns {tensor.dtype} {list(tensor.shape)}"
            )
        about = torch.tensor(
            [tensor.dim(), _DTYPES.index(tensor.dtype), *tensor.shape, *[0] * (_MOST_DIMS - tensor.dim())]
        )
        for sent, group in ((about, self._about), (tensor, self._onward)):
            self._sent.append((dist.isend(sent, self._after, group=group), sent))

    def _receive(self) -> torch.Tensor:
        about = torch.empty(2 + _MOST_DIMS, dtype=torch.int64)
        dist.recv(about, self._before, group=self._about)
        dims, kind, *sizes = about.tolist()
        found = torch.empty(sizes[:dims], dtype=_DTYPES[kind], device=self._device)
        dist.recv(found, self._before, group=self._onward)
        return found.requires_grad_(found.is_floating_point() and torch.is_grad_enabled())

    def backward(self, loss: Optional[torch.Tensor]) -> None:
        """Take the oldest micro-batch that has not gone back through the stage; ``loss`` on the last stage alone."""
        given = self._inputs.pop(0)
        if self.last:
            assert loss is not None
            loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        else:
            output = self._outputs.pop(0)
            gradient = torch.empty_like(output, memory_format=torch.contiguous_format)
            dist.recv(gradient, self._after, group=self._back)
            if output.requires_grad:
                output.backward(gradient)  # type: ignore[no-untyped-call, unused-ignore]
        if not self.first:
            gradient = torch.zeros_like(given) if given.grad is None else given.grad.contiguous()
            self._sent.append((dist.isend(gradient, self._before, group=self._back), gradient))

    def finish(self) -> None:
        """Wait until all that was sent has been taken."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()


def staged(model: nn.Module, task: Task, group: Group, meta: Optional[MetaInit] = None) -> Staged:
    """Keep this process's stage of the model on its device; rank 0's parameters are what all begin with.

    ``meta`` gives a model on the meta device its first values.

    Raises:
        TrainingError: the stages do not share out the model's parameters and buffers.
    """
    group.share(model)
    count, number = group.stages, group.ranks.rank % group.stages
    stages = task.stages(model, count)
    owners: dict[int, int] = {}
    for place, stage in enumerate(stages):
        for tensor in (*stage.parameters(), *stage.buffers()):
            if owners.setdefault(id(tensor), place) != place:
                name = next(name for name, each in model.state_dict(keep_vars=True).items() if each is tensor)
                raise TrainingError(
                    f"stages {owners[id(tensor)]} and {place} of the pipeline have {name} in common: no weight "
                    "can be tied over stages"
                )
    names: dict[str, int] = {}
    for name, tensor in (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ):
        if id(tensor) not in owners:
            raise TrainingError(
                f"no stage of the pipeline has {name}, which the model has: stages(model, count) must "
                "share out all"
            )
        names[name] = owners[id(tensor)]
    if meta is not None:
        meta.fill(model, stages[number].modules())
        group.share_copies(stages[number].parameters())
        group.share_buffers(stages[number])
    for place, stage in enumerate(stages):
        stage.to(group.device if place == number else "meta")
    return Staged(model, stages[number], names, group)
