"""Callbacks: a few named places at which a task's own methods are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from .errors import TrainingError
from .generators import capture_random_state, put_back, restore_random_state, states_of
from .processes.group import Group
from .settings import Config
from .task import Task
from .watching.console import Console

__all__ = ["Callbacks"]


class Callbacks:
    """Calls the methods that a task has for it; one that it does not have costs nothing.

    When a start or a save comes depends on stops and kills, so what is drawn there leaves the random state as it was.
    """

    def __init__(self, task: Task, group: Group, console: Console) -> None:
        self._task, self._group, self._console = task, group, console
        self._trained: set[str] = set()

    def start(self, model: torch.nn.Module, cfg: Config) -> None:
        """Everything is built and put back; say which methods are named as if they were called, and are not."""
        for name, meant in self._task.misnamed().items():
            self._console.say(f"warning: {self._task.path.name}: nothing calls {name}; did you mean {meant}?")
        self._trained = _trained(model)
        self._apart("on_start", model, cfg)
        self._refuse_other_parameters(model, "on_start")

    def around(
        self, take: Callable[[int], None], model: torch.nn.Module, at: Callable[[], int]
    ) -> Callable[[int], None]:
        """Return a step that tells of its end, if the task wants to know; ``at`` gives the steps before it."""
        told = self._task.callback("on_step_end")
        if told is None:
            return take

        def taken(size: int) -> None:
            take(size)
            told(model, at() + 1)
            model.zero_grad(set_to_none=True)  # of its own: the step's are gone

        return taken

    def epoch_end(self, model: torch.nn.Module, epoch: int, results: Mapping[str, float]) -> None:
        """An epoch is through, and so is its evaluation.

        Raises:
            TrainingError: it has frozen or unfrozen parameters, of which optimizer, DDP and clipping know nothing.
        """
        self._refuse_other_parameters(model, "the task (on_step_end, loss or step)")
        told = self._task.callback("on_epoch_end")
        if told is not None:
            told(model, epoch, dict(results))
            self._refuse_other_parameters(model, "on_epoch_end")

    def _refuse_other_parameters(self, model: torch.nn.Module, who: str) -> None:
        changed = sorted(self._trained ^ _trained(model))
        if changed:
            others = (
                f" and {len(changed) - 1} other parameter{'s' * (len(changed) > 2)}" if changed[1:] else ""
            )
            raise TrainingError(
                f"{self._task.path}: {who} has changed the parameters to train ({changed[0]}{others}): optimizer and DDP "
                "go on with those of the start; train in two runs, the second with pretrained: CHECKPOINT and another freeze:"
            )

    def saved(self, path: Path) -> None:
        """A checkpoint counts from now on (rank 0)."""
        if self._group.ranks.first:
            self._apart("on_save", path)

    def end(self, model: torch.nn.Module, results: Mapping[str, float]) -> None:
        """The training is at its end, and saved."""
        self._refuse_other_parameters(model, "the task (on_step_end, loss or step)")
        self._apart("on_end", model, dict(results))

    def _apart(self, name: str, *arguments: object) -> None:
        told = self._task.callback(name)
        if told is not None:
            before, generators = capture_random_state(self._group.device), self._task.generators()
            states = states_of(generators)
            told(*arguments)
            restore_random_state(before, self._group.device)
            put_back(generators, states)


def _trained(model: torch.nn.Module) -> set[str]:
    """Return the names of a model's parameters that are trained."""
    return {name for name, each in model.named_parameters() if each.requires_grad}
