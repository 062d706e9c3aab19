"""Sizes that keep tensor cores from running at full speed.

Matrix products are fastest where each size is a multiple of 16 bytes: 8 numbers in bf16 and fp16, 4 in TF32
(NVIDIA, Deep Learning Performance: Matrix Multiplication, "Requirements to Use Tensor Cores").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import torch
from torch import nn

from ..settings import Settings

__all__ = ["awkward_sizes", "tensor_core_multiple"]

_MOST = 4  # sizes that are named
_SMALL = 64  # outputs of a last layer, such as 10 classes, that are too few to matter
_IMAGE = 4  # channels of a picture: cuDNN pads them itself


def tensor_core_multiple(settings: Settings, device: torch.device) -> Optional[int]:
    """What sizes should be a multiple of; None where there are no tensor cores, or they are not used."""
    if device.type != "cuda" or not torch.version.cuda:
        return None
    capability = torch.cuda.get_device_capability(device)
    if settings.precision in ("bf16", "fp16"):
        return 8 if capability >= (7, 0) else None
    return 4 if settings.tf32 and capability >= (8, 0) else None


def awkward_sizes(model: nn.Module, micro_batch: int, multiple: int) -> Optional[str]:
    """One line that names sizes that are no multiple, with the next one that is; None when all are.

    Looked at are the features of linear and recurrent layers, channels of convolutions without groups, the
    vocabulary of embeddings, and the samples that a process takes at a time.
    """
    found = [*_of_layers(model), ("the micro-batch", micro_batch)]
    awkward = [f"{name} {size} -> {size + -size % multiple}" for name, size in found if size % multiple]
    if not awkward:
        return None
    rest = len(awkward) - _MOST
    more = f", and {rest} more" if rest > 0 else ""
    return (
        f"note: tensor cores are fastest with sizes that are multiples of {multiple}; "
        f"these are not: {', '.join(awkward[:_MOST])}{more}"
    )


def _of_layers(model: nn.Module) -> Iterator[tuple[str, int]]:
    layers = list(model.named_modules())
    linear = [layer for _, layer in layers if isinstance(layer, nn.Linear)]
    for path, layer in layers:
        name = f"{path}." if path else ""
        if isinstance(layer, nn.Linear):
            yield f"{name}in_features", layer.in_features
            if layer is not linear[-1] or layer.out_features >= _SMALL:
                yield f"{name}out_features", layer.out_features
        elif isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and layer.groups == 1:
            if layer.in_channels > _IMAGE:
                yield f"{name}in_channels", layer.in_channels
            yield f"{name}out_channels", layer.out_channels
        elif isinstance(layer, nn.RNNBase):
            yield f"{name}input_size", layer.input_size
            yield f"{name}hidden_size", layer.hidden_size
        elif isinstance(layer, nn.Embedding):
            yield f"{name}num_embeddings", layer.num_embeddings
            yield f"{name}embedding_dim", layer.embedding_dim
