"""``strategy: pipeline``: each process has one stage of the model, and micro-batches go from stage to stage.

A step's micro-batches are those of ``accumulate``. GPipe takes all of them forward and then all backward; 1F1B goes back as soon
as it can, and keeps no more activations than there are stages behind it (Narayanan et al. 2021, arXiv 2104.04473). The stages
send each other activations and their gradients themselves: torch.distributed.pipelining calls a loss once more on tensors that
are none to learn the shapes, and wants all micro-batches alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch
import torch.distributed as dist
from torch import nn

from ..errors import SettingsError, TrainingError
from ..processes.group import Group
from ..settings import Settings
from ..task import Task

__all__ = ["Handed", "Staged", "is_asked_for", "refuse", "staged"]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32)
_MOST_DIMS = 8


class Handed(Exception):
    """The answer of the model is the next stage's: nothing is left to do for this one."""


def is_asked_for(settings: Settings, group: Group) -> bool:
    """Whether each process has a stage."""
    return settings.strategy == "pipeline" and group.together


def refuse(task: Task, settings: Settings) -> None:
    """Refuse what cannot be done with stages.

    Raises:
        SettingsError: the message names what, and what to do.
    """
    reasons = {
        "the task's step calls what it likes": task.has("step"),
        "the task's sample calls the whole model": task.has("sample"),
        "compile is true": settings.compile,
        "micro_batch is auto": settings.micro_batch == "auto",
        "ema is given": settings.ema is not None,
        "precision is fp16, whose scale the stages would have to agree on": settings.precision == "fp16",
        "nonfinite is skip, for which the stages would have to agree on what to put back": settings.nonfinite
        == "skip",
    }
    for reason, holds in reasons.items():
        if holds:
            raise SettingsError(
                f"strategy is pipeline, and {reason}: the two are not done together yet; change one of them, or use fsdp2"
            )


class Staged(nn.Module):
    """The model as the task calls it: its forward pass is this process's stage, and a link to those beside it.

    The first stage takes what the task gives. The others take what comes from the stage before, whatever they are called
    with. The last one's answer is the model's; on all others the call ends with ``Handed``.

    Args:
        whole: The model; what of it is other stages' is on no device (``meta``).
        stage: This process's stage, a part of it.
    """

    def __init__(self, whole: nn.Module, stage: nn.Module, owners: dict[str, int], group: Group) -> None:
        super().__init__()
        self.whole, self.stage = whole, stage
        self.owners = owners
        """The stage of each entry of the model's state_dict."""
        ranks = group.ranks
        self.number, self.count = ranks.rank, ranks.world_size
        self._device = group.device
        # One for each direction: what waits in one must not hold up the other.
        self._onward, self._back = dist.new_group(), dist.new_group()
        self._about = dist.new_group(backend="gloo")
        self._sent: list[tuple[Any, torch.Tensor]] = []
        self._inputs: list[Optional[torch.Tensor]] = []
        self._outputs: list[torch.Tensor] = []

    @property
    def first(self) -> bool:
        """Whether this is the first stage."""
        return self.number == 0

    @property
    def last(self) -> bool:
        """Whether this is the last stage."""
        return self.number == self.count - 1

    def forward(self, *inputs: Any) -> torch.Tensor:
        """The stage's answer to what is its to take."""
        given = self._given(inputs)
        answer = self.stage(given)
        if torch.is_grad_enabled():
            self._inputs.append(given)
        if self.last:
            found: torch.Tensor = answer
            return found
        if not isinstance(answer, torch.Tensor):
            raise TrainingError(
                f"stage {self.number} of the pipeline returns a {type(answer).__name__}: what goes from "
                "stage to stage is one tensor"
            )
        if torch.is_grad_enabled():
            self._outputs.append(answer)
        self._send(answer.detach().contiguous())
        raise Handed

    def _given(self, inputs: Sequence[Any]) -> torch.Tensor:
        if not self.first:
            return self._receive()
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
            self._sent.append((dist.isend(sent, self.number + 1, group=group), sent))

    def _receive(self) -> torch.Tensor:
        about = torch.empty(2 + _MOST_DIMS, dtype=torch.int64)
        dist.recv(about, self.number - 1, group=self._about)
        dims, kind, *sizes = about.tolist()
        found = torch.empty(sizes[:dims], dtype=_DTYPES[kind], device=self._device)
        dist.recv(found, self.number - 1, group=self._onward)
        return found.requires_grad_(found.is_floating_point() and torch.is_grad_enabled())

    def backward(self, loss: Optional[torch.Tensor]) -> None:
        """The backward pass of the oldest micro-batch that has had none; ``loss`` on the last stage alone."""
        given = self._inputs.pop(0)
        if self.last:
            assert loss is not None
            loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        else:
            output = self._outputs.pop(0)
            gradient = torch.empty_like(output, memory_format=torch.contiguous_format)
            dist.recv(gradient, self.number + 1, group=self._back)
            if output.requires_grad:
                output.backward(gradient)  # type: ignore[no-untyped-call, unused-ignore]
        if not self.first:
            assert given is not None
            gradient = torch.zeros_like(given) if given.grad is None else given.grad.contiguous()
            self._sent.append((dist.isend(gradient, self.number - 1, group=self._back), gradient))

    def finish(self) -> None:
        """Wait until all that was sent has been taken."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()

    def ahead(self, schedule: str, rounds: int) -> int:
        """Micro-batches that go forward before the first goes back."""
        return rounds if schedule == "gpipe" else min(rounds, self.count - self.number)


def staged(model: nn.Module, task: Task, group: Group) -> Staged:
    """Keep this process's stage of the model, on its device; rank 0's parameters are what all begin with.

    Raises:
        TrainingError: the stages do not share out the model's parameters and buffers.
    """
    group.share(model)
    stages = task.stages(model, group.ranks.world_size)
    owners: dict[int, int] = {}
    for number, stage in enumerate(stages):
        for tensor in (*stage.parameters(), *stage.buffers()):
            if owners.setdefault(id(tensor), number) != number:
                name = next(name for name, each in model.state_dict(keep_vars=True).items() if each is tensor)
                raise TrainingError(
                    f"stages {owners[id(tensor)]} and {number} of the pipeline have {name} in common: no weight "
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
    own = stages[group.ranks.rank]
    for stage in stages:
        if stage is not own:
            stage.to("meta")
    own.to(group.device)
    return Staged(model, own, names, group)
