"""The optimizers of a training, the task's own or AdamW over groups of parameters; and the average of the weights (``ema``).

The average is kept beside the model and not in its buffers, which DDP would send to all ranks before each forward pass. All
ranks have the same weights after a step, so each averages for itself and no rank asks another.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any, Optional, Union

import torch
from torch.optim.lr_scheduler import LRScheduler

from .formats.checkpoint import AVERAGE
from .saving.snapshot import plain_state
from .settings import Config
from .sharding.local import is_sharded, local, settle
from .task import Task

__all__ = [
    "MAIN",
    "Average",
    "Driven",
    "Optimizer",
    "Schedule",
    "Schedules",
    "Several",
    "by_name",
    "driven",
    "learning_rates",
    "left_out",
    "load_state",
    "make_optimizer",
    "states_in",
    "unknown_options",
    "with_states",
    "without_states",
]


MAIN = "optimizer"
"""The name of an optimizer that is the only one."""


class Several:
    """Optimizers by name, which are saved and put back as one."""

    def __init__(self, named: Mapping[str, torch.optim.Optimizer]) -> None:
        self.named = dict(named)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all of them."""
        return [group for each in self.named.values() for group in each.param_groups]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters."""
        for each in self.named.values():
            each.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each, by name."""
        return {name: each.state_dict() for name, each in self.named.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put the state of each back.

        Raises:
            ValueError: the state is that of others.
        """
        _same_names("optimizers", state, self.named)
        for name, each in self.named.items():
            each.load_state_dict(state[name])


class Schedules:
    """Schedules by the names of their optimizers, which are saved and put back as one."""

    def __init__(self, named: Mapping[str, LRScheduler]) -> None:
        self.named = dict(named)

    def step(self) -> None:
        """Move all of them on."""
        for each in self.named.values():
            each.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each, by name."""
        return {name: plain_state(each) for name, each in self.named.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put the state of each back.

        Raises:
            ValueError: the state is that of others.
        """
        _same_names("schedules", state, self.named)
        for name, each in self.named.items():
            each.load_state_dict(state[name])


Optimizer = Union[torch.optim.Optimizer, Several]
Schedule = Union[LRScheduler, Schedules]


def _same_names(what: str, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if saved.keys() != now.keys():
        raise ValueError(f"it has {what} named {', '.join(saved)}, and the task's are {', '.join(now)}")


def by_name(optimizer: Optimizer) -> dict[str, torch.optim.Optimizer]:
    """Return the optimizers by name."""
    return optimizer.named if isinstance(optimizer, Several) else {MAIN: optimizer}


def make_optimizer(task: Task, model: torch.nn.Module, cfg: Config) -> Optimizer:
    """Return the task's optimizers, or AdamW with the settings' lr and weight_decay, in one kernel on a GPU."""
    if task.has("optimizers"):
        return Several(task.optimizers(model, cfg))
    if task.has("optimizer"):
        return task.optimizer(model, cfg)
    groups = task.parameter_groups(model, cfg) if task.has("parameter_groups") else _groups(model, cfg)
    trained = [parameter for group in groups for parameter in group["params"]]
    fused = all(parameter.is_cuda and parameter.is_floating_point() for parameter in trained)
    return torch.optim.AdamW(groups, lr=cfg.lr, weight_decay=cfg.weight_decay, fused=fused or None)


def _groups(model: torch.nn.Module, cfg: Config) -> list[dict[str, Any]]:
    """Return all parameters that are trained; with ``no_decay`` those with fewer than two dimensions in a group of their own."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not cfg.no_decay:
        return [{"params": trained}]
    matrices = [parameter for parameter in trained if parameter.dim() >= 2]
    vectors = [parameter for parameter in trained if parameter.dim() < 2]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def left_out(model: torch.nn.Module, optimizer: Optimizer) -> list[str]:
    """Return the names of parameters that are to be trained, and that no optimizer has."""
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    return [name for name, each in model.named_parameters() if each.requires_grad and id(each) not in held]


def unknown_options(task: Task, optimizer: Optimizer) -> list[str]:
    """Return what the task's groups for the default optimizer set, and it does not have: torch takes it without a word."""
    if isinstance(optimizer, Several) or not task.has("parameter_groups"):
        return []
    ours = {"params", "param_names", "name", "initial_lr", *optimizer.defaults}
    return sorted({str(name) for group in optimizer.param_groups for name in group} - ours)


def learning_rates(optimizer: Optimizer) -> dict[str, float]:
    """Return the learning rate of the first group, and with several optimizers that of each, as metrics."""
    found = {"learning_rate": float(optimizer.param_groups[0]["lr"])}
    if isinstance(optimizer, Several):
        for name, each in optimizer.named.items():
            found[f"learning_rate.{name}"] = float(each.param_groups[0]["lr"])
    return found


def load_state(optimizer: Optimizer, saved: Mapping[str, Any], *, keep_groups: bool = False) -> None:
    """Put an optimizer's saved state back; ``keep_groups``: its groups, with their learning rates, stay as they are.

    Raises:
        ValueError: the state is that of an optimizer of another kind, or of others.
    """
    if isinstance(optimizer, Several):
        if "param_groups" in saved:
            raise ValueError(f"it has one optimizer, and the task has several: {', '.join(optimizer.named)}")
        _same_names("optimizers", saved, optimizer.named)
        for name, each in optimizer.named.items():
            load_state(each, saved[name], keep_groups=keep_groups)
        return
    if "param_groups" not in saved:
        raise ValueError(f"it has optimizers named {', '.join(saved)}, and the task has one")
    own = copy.deepcopy(optimizer.state_dict()["param_groups"])
    theirs = {name for group in saved["param_groups"] for name in group}
    # As it was made, for loading adds to it.
    missing, others = optimizer.defaults.keys() - theirs, theirs - own[0].keys()
    if (
        missing and others
    ):  # torch takes the options of any optimizer, and a step then looks in vain for its own
        raise ValueError(
            f"it was saved by an optimizer of another kind: it has {', '.join(sorted(others))} and no "
            f"{', '.join(sorted(missing))}, which {type(optimizer).__name__} needs"
        )
    optimizer.load_state_dict(dict(saved))
    for group, now in zip(optimizer.param_groups, own):
        for name in missing:  # an option that the optimizer has got since
            group.setdefault(name, now[name])
    if keep_groups:
        optimizer.load_state_dict({**saved, "param_groups": own})


def states_in(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an optimizer, or each of several by name, keeps for its parameters."""
    if "param_groups" in saved:
        return dict(saved["state"])
    return {name: states_in(each) for name, each in saved.items()}


def without_states(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved state of an optimizer, or of several, without what it keeps for its parameters."""
    if "param_groups" in saved:
        return {**saved, "state": {}}
    return {name: without_states(each) for name, each in saved.items()}


def with_states(saved: Mapping[str, Any], states: Mapping[str, Any]) -> dict[str, Any]:
    """Return the saved state, with more of what it keeps for its parameters."""
    if "param_groups" in saved:
        return {**saved, "state": {**saved["state"], **states}}
    return {name: with_states(each, states[name]) for name, each in saved.items()}


def with_groups_of(late: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the saved state, with the groups (and so the rates) of a later one without states."""
    if "param_groups" in late:
        return {**late, "state": saved["state"]}
    return {name: with_groups_of(each, saved[name]) for name, each in late.items()}


class Driven:
    """One optimizer as the steps drive it: with its parameters, its schedule, and the scaler of the gradients."""

    def __init__(
        self,
        name: str,
        optimizer: torch.optim.Optimizer,
        schedule: Optional[LRScheduler],
        scaler: Optional[torch.amp.GradScaler],
        must_know: bool,
    ) -> None:
        self._must_know = must_know or schedule is not None
        self.name, self.optimizer, self.schedule, self._scaler = name, optimizer, schedule, scaler
        held = [each for group in optimizer.param_groups for each in group["params"]]
        self.parameters = [each for each in held if each.requires_grad]
        self.stepped = True
        if scaler is not None:
            optimizer.register_step_post_hook(self._has_stepped)

    def take(self) -> None:
        """One step of the optimizer; ``stepped`` says whether it has been taken."""
        if self._scaler is None:
            self.optimizer.step()
        else:
            self.stepped = False
            self._scaler.step(self.optimizer)

    def _has_stepped(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """A scaler leaves an optimizer's step out where a gradient is infinite, and this is not called.

        A fused optimizer is called all the same and leaves the step out on the GPU. A schedule that must not move on then,
        or an average of the weights, makes the step wait for the answer.
        """
        found = getattr(optimizer, "found_inf", None)
        self.stepped = found is None or not self._must_know or not found.item()


def driven(
    optimizer: Optimizer,
    schedule: Optional[Schedule],
    scaler: Optional[torch.amp.GradScaler],
    *,
    must_know: bool = False,
) -> tuple[Driven, ...]:
    """Return all optimizers as the steps drive them; ``must_know``: also without a schedule, whether a step has been taken."""
    schedules: Mapping[str, LRScheduler] = {}
    if schedule is not None:
        schedules = schedule.named if isinstance(schedule, Schedules) else {MAIN: schedule}
    named = by_name(optimizer)
    return tuple(Driven(name, each, schedules.get(name), scaler, must_know) for name, each in named.items())


class Average:
    """Averages of the parameters that are trained: after each step ``decay`` of what they were, and the rest of the new weights.

    Those of half precision are averaged in fp32, in which a small part of a weight is not lost. Whatever else the model has,
    frozen parameters and buffers, is the model's own.
    """

    def __init__(self, model: torch.nn.Module, decay: float) -> None:
        self._share = 1 - decay
        # A parameter with two names has one average.
        named = model.named_parameters(remove_duplicate=False)
        # Of a pipeline's stages this process's own.
        trained = [(name, each) for name, each in named if each.requires_grad and not each.is_meta]
        self._parameters = list({id(each): each for _, each in trained}.values())
        self._averages = [_wide(each.detach().clone()) for each in self._parameters]
        self._sharded = model if any(map(is_sharded, self._parameters)) else None
        places = {id(each): place for place, each in enumerate(self._parameters)}
        self._places = {name: places[id(each)] for name, each in trained}
        self._wide = any(one.dtype != each.dtype for one, each in zip(self._averages, self._parameters))
        self._begun = False

    def begin(self) -> None:
        """Begin with the weights as they are now, unless it has begun or was put back."""
        if not self._begun:
            self._begun = True
            for average, now in zip(self._own(), self._now()):
                average.copy_(now)

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights after a step into the average, without a wait for the device."""
        torch._foreach_lerp_(self._own(), self._now(), self._share)

    def _own(self) -> list[torch.Tensor]:
        """Return the averages; of a sharded model this rank's pieces."""
        return self._averages if self._sharded is None else [local(each) for each in self._averages]

    def _now(self) -> list[torch.Tensor]:
        if self._sharded is not None:
            return [_wide(local(each)) for each in self._parameters]
        if not self._wide:
            return [each.detach() for each in self._parameters]
        return [_wide(each.detach()) for each in self._parameters]

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the averages for its weights inside, and its own again after; nothing is copied but half precision.

        The pieces of a sharded model are copied: what forward passes gather lies elsewhere.
        """
        if self._sharded is not None:
            with self._pieces_in_place(self._sharded):
                yield
            return
        own = [each.data for each in self._parameters]
        try:
            for each, average in zip(self._parameters, self._averages):
                each.data = average.to(each.dtype)
            yield
        finally:
            for each, data in zip(self._parameters, own):
                each.data = data

    @contextlib.contextmanager
    def _pieces_in_place(self, model: torch.nn.Module) -> Iterator[None]:
        settle(model)
        pieces = [local(each) for each in self._parameters]
        own = [each.clone() for each in pieces]
        try:
            for piece, average in zip(pieces, self._own()):
                piece.copy_(average)
            yield
        finally:
            settle(model)
            for piece, before in zip(pieces, own):
                piece.copy_(before)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the averages by the names of their parameters."""
        return {name: self._averages[place] for name, place in self._places.items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Put the averages back.

        Raises:
            ValueError: the state is that of other parameters.
        """
        if state.keys() != self._places.keys():
            names = sorted(state.keys() ^ self._places.keys())
            raise ValueError(
                f"{AVERAGE} and the parameters that are trained differ in {', '.join(names[:4])}"
            )
        for name, place in self._places.items():
            local(self._averages[place]).copy_(local(state[name]))
        self._begun = True


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
