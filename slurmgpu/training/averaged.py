"""The moving average of the weights (``ema``), with which a training is evaluated and exported.

It is kept beside the model and not in its buffers, which DDP would send to all ranks before each forward pass. All ranks have
the same weights after a step, so each averages for itself and no rank asks another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch

from .formats.checkpoint import AVERAGE
from .sharding.local import is_sharded, local, settle

__all__ = ["Average"]


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
