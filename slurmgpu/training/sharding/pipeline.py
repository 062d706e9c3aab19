"""``strategy: pipeline``: each process has a stage of the model or several, and micro-batches go from stage to stage.

A step's micro-batches are those of ``accumulate``. GPipe takes all of them forward and then all backward; 1F1B goes back as soon
as it can, and keeps no more activations than there are stages behind it. Interleaved 1F1B deals several shorter stages out to
each process, so that they wait less for each other (all: Narayanan et al. 2021, arXiv 2104.04473). The stages send each other
activations and their gradients themselves: torch.distributed.pipelining calls a loss once more on tensors that are none to learn
the shapes, and wants all micro-batches alike.

With fewer stages than processes there are several copies of the pipeline, with other samples; each stage's gradients are averaged
over its copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

import torch
import torch.distributed as dist
from torch import nn

from ..errors import SettingsError, TrainingError
from ..processes.group import Group
from ..settings import Settings
from ..task import Task
from .unmade import Unmade

__all__ = ["Handed", "Staged", "Turn", "is_asked_for", "refuse", "require_stages", "staged", "turns"]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32)
_MOST_DIMS = 8


class Handed(Exception):
    """The answer of the model is the next stage's: nothing is left to do for this one."""


def is_asked_for(settings: Settings, group: Group) -> bool:
    """Whether each process has a stage."""
    return settings.strategy == "pipeline" and group.together


def require_stages(settings: Settings, world_size: int) -> None:
    """Refuse a number of processes that cannot be laid out in pipelines, and settings that speak of none.

    Raises:
        SettingsError: the message names the setting and the numbers.
    """
    count, each = settings.pipeline_stages, settings.stages_each
    if settings.strategy != "pipeline":
        name, value = ("pipeline_stages", count) if count is not None else ("stages_each", each)
        raise SettingsError(
            f"{name} is {value}, and strategy is {settings.strategy}: stages are those of strategy pipeline"
        )
    if count is not None and world_size % count:
        raise SettingsError(
            f"pipeline_stages is {count}, and there are {world_size} processes, which it must divide: start a multiple of {count}"
        )
    if each > 1 and settings.pipeline_schedule != "interleaved":
        raise SettingsError(
            f"stages_each is {each}, and pipeline_schedule is {settings.pipeline_schedule}: several stages of a process go with "
            "pipeline_schedule interleaved"
        )


def refuse(task: Task, settings: Settings, copies: bool = False) -> None:
    """Refuse what cannot be done with stages; ``copies``: there are several of each.

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
        "broadcast_buffers is false, with several copies of each stage": copies
        and not settings.broadcast_buffers,
    }
    for reason, holds in reasons.items():
        if holds:
            raise SettingsError(
                f"strategy is pipeline, and {reason}: the two are not done together yet; change one of them, or use fsdp2"
            )


class Turn(NamedTuple):
    """What a process does next: a micro-batch forward or back, through one of its stages."""

    forward: bool
    micro: int
    part: int
    """Which of the process's own stages, from 0 on."""


def turns(schedule: str, number: int, count: int, parts: int, rounds: int) -> Iterator[Turn]:
    """The turns of process ``number`` of ``count``, each with ``parts`` stages, in a step of ``rounds`` micro-batches.

    All processes take micro-batches in the same order, so that what one sends is what the next one waits for.
    """
    onward = [
        (micro, part)
        for start in range(0, rounds, count)
        for part in range(parts)
        for micro in range(start, min(start + count, rounds))
    ]
    back = [(micro, parts - 1 - part) for micro, part in onward]
    ahead = len(onward)
    if schedule != "gpipe" and parts == 1:
        ahead = min(rounds, count - number)
    elif schedule != "gpipe" and not rounds % count:
        # As Megatron-LM does; with a number of micro-batches that does not divide, all go forward first.
        ahead = min(ahead, 2 * (count - number - 1) + (parts - 1) * count + 1)
    done = 0
    for place, (micro, part) in enumerate(onward):
        yield Turn(True, micro, part)
        if place + 1 - done == ahead:
            yield Turn(False, *back[done])
            done += 1
    for micro, part in back[done:]:
        yield Turn(False, micro, part)


class Staged(nn.Module):
    """The model as the task calls it: its forward pass is a stage of this process, and a link to those beside it.

    The first stage takes what the task gives. The others take what comes from the stage before, whatever they are called
    with. The last one's answer is the model's; on all others the call ends with ``Handed``.

    Args:
        whole: The model; what of it is other processes' is on no device (``meta``).
        parts: This process's stages, parts of it, in their order.
        owners: For each entry of the model's state_dict the process of a pipeline that has it.
    """

    def __init__(
        self, whole: nn.Module, parts: Sequence[nn.Module], owners: dict[str, int], group: Group
    ) -> None:
        super().__init__()
        self.whole, self.parts = whole, nn.ModuleList(parts)
        self.owners = owners
        ranks = group.ranks
        self.number, self.count = ranks.rank % group.stages, group.stages
        """Which process of its pipeline this is, of how many."""
        self.part = 0
        """Through which of its stages the next forward pass for a backward pass goes."""
        self._device = group.device
        before, after = (self.number - 1) % self.count, (self.number + 1) % self.count
        self._before, self._after = (ranks.rank - self.number + each for each in (before, after))
        # One for each direction: what waits in one must not hold up the other. From the last process to the first goes
        # what has others of its own to go through.
        onward, back, around, around_back = (dist.new_group() for _ in range(4))
        about, about_around = (dist.new_group(backend="gloo") for _ in range(2))
        ends = self.number == self.count - 1
        self._to = (about_around, around) if ends else (about, onward)
        self._from = (about_around, around) if not self.number else (about, onward)
        self._back_to = around_back if not self.number else back
        self._back_from = around_back if ends else back
        self._sent: list[tuple[Any, torch.Tensor]] = []
        self._inputs: list[list[torch.Tensor]] = [[] for _ in parts]
        self._outputs: list[list[torch.Tensor]] = [[] for _ in parts]

    @property
    def last(self) -> bool:
        """Whether this process has the last stage."""
        return self.number == self.count - 1

    def _is_first(self, part: int) -> bool:
        return not self.number and not part

    def _is_last(self, part: int) -> bool:
        return self.last and part == len(self.parts) - 1

    def forward(self, *inputs: Any) -> torch.Tensor:
        """The stage's answer to what is its to take; without a backward pass to come, that of all stages of this process."""
        trained = torch.is_grad_enabled()
        for part in [self.part] if trained else range(len(self.parts)):
            given = self._given(inputs) if self._is_first(part) else self._receive()
            answer = self.parts[part](given)
            if trained:
                self._inputs[part].append(given)
            if self._is_last(part):
                found: torch.Tensor = answer
                return found
            if not isinstance(answer, torch.Tensor):
                raise TrainingError(
                    f"stage {part * self.count + self.number} of the pipeline returns a {type(answer).__name__}: what goes "
                    "from stage to stage is one tensor"
                )
            if trained:
                self._outputs[part].append(answer)
            self._send(answer.detach().contiguous(), part)
        raise Handed

    def _given(self, inputs: Sequence[Any]) -> torch.Tensor:
        if len(inputs) != 1 or not isinstance(inputs[0], torch.Tensor):
            raise TrainingError(
                "strategy pipeline: loss and evaluate must call model(x) once for each batch, with one tensor"
            )
        found: torch.Tensor = inputs[0]
        return found

    def _send(self, tensor: torch.Tensor, part: int) -> None:
        if tensor.dim() > _MOST_DIMS or tensor.dtype not in _DTYPES:
            raise TrainingError(
                f"stage {part * self.count + self.number} of the pipeline returns {tensor.dtype} {list(tensor.shape)}"
            )
        about = torch.tensor(
            [tensor.dim(), _DTYPES.index(tensor.dtype), *tensor.shape, *[0] * (_MOST_DIMS - tensor.dim())]
        )
        for sent, group in zip((about, tensor), self._to):
            self._sent.append((dist.isend(sent, self._after, group=group), sent))

    def _receive(self) -> torch.Tensor:
        about = torch.empty(2 + _MOST_DIMS, dtype=torch.int64)
        dist.recv(about, self._before, group=self._from[0])
        dims, kind, *sizes = about.tolist()
        found = torch.empty(sizes[:dims], dtype=_DTYPES[kind], device=self._device)
        dist.recv(found, self._before, group=self._from[1])
        return found.requires_grad_(found.is_floating_point() and torch.is_grad_enabled())

    def backward(self, part: int, loss: Optional[torch.Tensor]) -> None:
        """The backward pass of a stage's oldest micro-batch that has had none; ``loss`` on the last stage alone."""
        given = self._inputs[part].pop(0)
        if self._is_last(part):
            assert loss is not None
            loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        else:
            output = self._outputs[part].pop(0)
            gradient = torch.empty_like(output, memory_format=torch.contiguous_format)
            dist.recv(gradient, self._after, group=self._back_from)
            if output.requires_grad:
                output.backward(gradient)  # type: ignore[no-untyped-call, unused-ignore]
        if not self._is_first(part):
            gradient = torch.zeros_like(given) if given.grad is None else given.grad.contiguous()
            self._sent.append((dist.isend(gradient, self._before, group=self._back_to), gradient))

    def finish(self) -> None:
        """Wait until all that was sent has been taken."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()


def staged(
    model: nn.Module, task: Task, group: Group, each: int = 1, unmade: Optional[Unmade] = None
) -> Staged:
    """Keep this process's stages of the model, ``each`` of them, on its device; rank 0's parameters are what all begin with.

    Those of an ``unmade`` model get their values when it is cut into stages.

    Raises:
        TrainingError: the stages do not share out the model's parameters and buffers.
    """
    group.share(model)
    count, number = group.stages, group.ranks.rank % group.stages
    stages = task.stages(model, count * each)
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
        names[name] = owners[id(tensor)] % count
    if unmade is not None:
        own = [
            each for place, stage in enumerate(stages) if place % count == number for each in stage.modules()
        ]
        unmade.fill_whole(model, own)
    for place, stage in enumerate(stages):
        stage.to(group.device if place % count == number else "meta")
    return Staged(model, stages[number::count], names, group)
