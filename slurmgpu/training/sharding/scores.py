"""Scores that stay split over the processes of ``tensor_parallel``: cross entropy over pieces of them (loss parallel).

Where the task's ``parallelize(model, mesh)`` leaves the scores split by class, torch's ``loss_parallel`` takes the cross
entropy of the pieces, and no process ever has all of them. The source:
https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import TrainingError
from .local import is_sharded

__all__ = ["over_pieces", "refuse_other_losses", "whole"]

# Moves values, and computes nothing: what autograd calls its way back.
_MOVES = re.compile(
    r"(\w*View|Reshape\w*|Alias|Transpose|Permute|T|Clone|ToCopy|\w*[Ss]queeze|Index|IndexSelect|Select|Slice)Backward\d*"
)


def whole(answer: Any) -> Any:
    """What a task's method has returned, with plain tensors in place of those that are split, in tuples and mappings, too.

    All processes that share a tensor have to call it for it.
    """
    if is_sharded(answer):
        return answer.full_tensor()
    if isinstance(answer, tuple):
        return tuple(map(whole, answer))
    if isinstance(answer, Mapping):
        return {name: whole(each) for name, each in answer.items()}
    return answer


@contextlib.contextmanager
def over_pieces(path: Path) -> Iterator[None]:
    """Take cross entropies over the pieces of split scores, forward and backward; ``path`` is the task's file, for messages.

    Raises:
        TrainingError: the task puts split scores together with whole tensors.
    """
    from torch.distributed.tensor.parallel import loss_parallel

    try:
        with loss_parallel():
            yield
    except RuntimeError as error:
        if "mixed torch.Tensor and DTensor" not in str(error):
            raise
        raise TrainingError(
            f"{path}: the task puts tensors that are split over the processes of tensor_parallel together with whole ones. Of "
            "split scores it may take cross_entropy, without label_smoothing and without a loss_parallel of its own; for "
            "anything else take scores.full_tensor() first"
        ) from error


def refuse_other_losses(loss: torch.Tensor, path: Path) -> None:
    """Refuse a loss for which split scores go through log_softmax to something else than a cross entropy.

    Within ``loss_parallel`` torch passes on what comes back through any log_softmax as if it came from a cross entropy,
    without a word: the gradient would be wrong.

    Args:
        loss: Before its backward pass; a plain tensor.
        path: The task's file, for the message.

    Raises:
        TrainingError: it has one.
    """
    seen = set()  # which keeps the nodes: a new one could have the name of one that is gone
    left = [(loss.grad_fn, False, False)]
    while left:
        here = node, split, of_entropy = left.pop()
        if node is None or here in seen:
            continue
        seen.add(here)
        name = node.name()
        if name == "_ToTorchTensorBackward":
            split = True
        elif name == "_FromTorchTensorBackward":
            split = False
        elif split and name.startswith("LogSoftmaxBackward") and not of_entropy:
            raise TrainingError(
                f"{path}: the loss takes log_softmax of scores that are split over the processes of tensor_parallel, for "
                "something else than a cross entropy, and torch would return a wrong gradient: take scores.full_tensor() first"
            )
        of_entropy = name.startswith("NllLoss") or (of_entropy and _MOVES.fullmatch(name) is not None)
        left += [(each, split, of_entropy) for each, _ in node.next_functions]
