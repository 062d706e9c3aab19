"""The optimizer of a training: the task's own, or AdamW, over groups of parameters."""

from __future__ import annotations

from typing import Any

import torch

from .settings import Config
from .task import Task

__all__ = ["left_out", "make_optimizer"]


def make_optimizer(task: Task, model: torch.nn.Module, cfg: Config) -> torch.optim.Optimizer:
    """The task's optimizer, or AdamW with the settings' lr and weight_decay, in one kernel on a GPU."""
    if task.has("optimizer"):
        return task.optimizer(model, cfg)
    groups = task.parameter_groups(model, cfg) if task.has("parameter_groups") else _groups(model, cfg)
    trained = [parameter for group in groups for parameter in group["params"]]
    fused = all(parameter.is_cuda and parameter.is_floating_point() for parameter in trained)
    return torch.optim.AdamW(groups, lr=cfg.lr, weight_decay=cfg.weight_decay, fused=fused or None)


def _groups(model: torch.nn.Module, cfg: Config) -> list[dict[str, Any]]:
    """All parameters that are trained; with ``no_decay`` those with fewer than two dimensions in a group of their own."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not cfg.no_decay:
        return [{"params": trained}]
    matrices = [parameter for parameter in trained if parameter.dim() >= 2]
    vectors = [parameter for parameter in trained if parameter.dim() < 2]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def left_out(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """The names of parameters that are to be trained, and that the optimizer does not have."""
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    return [name for name, each in model.named_parameters() if each.requires_grad and id(each) not in held]
