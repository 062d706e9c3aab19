"""Advice: what to change when a GPU's memory is full, and sizes that do not suit its tensor cores, or BatchNorm.

Matrix products are fastest where each size is a multiple of 16 bytes: 8 numbers in bf16 and fp16, 4 in TF32
(NVIDIA, Deep Learning Performance: Matrix Multiplication, "Requirements to Use Tensor Cores").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Optional

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..order import shares
from ..precision import can_bf16
from ..processes.group import Group
from ..settings import Settings, micro_batch

__all__ = ["awkward_sizes", "is_full", "lone_samples", "memory_advice", "tensor_core_multiple"]

_SIGNS = ("CUDA error: out of memory", "HIP error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
# Of what a GPU holds, the share of other processes that is worth a word.
_OTHERS = 0.05
_LARGER = "  a GPU with more memory   resources.gpu_type; slurmgpu cluster show lists them"
_MOST = 4  # sizes that are named
_SMALL = 64  # outputs of a last layer, such as 10 classes, that are too few to matter
_IMAGE = 4  # channels of a picture: cuDNN pads them itself


def is_full(error: BaseException) -> bool:
    """Return True if this is an error of a GPU's memory, and not the machine's."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


def memory_advice(error: BaseException, settings: Settings, group: Group) -> str:
    """Return a few lines: the figures, and settings that take less memory with the same batch."""
    world = group.ranks.world_size
    micro = micro_batch(settings, world)
    lines = [
        f"the GPU's memory is full{_figures(group.device)}; micro-batch {micro} "
        f"(batch_size {settings.batch_size} = {world} x {settings.accumulate} x {micro}), {settings.precision}"
    ]
    if not _in_a_step(error.__traceback__):
        lines.append(
            "  it was full before a batch came: model, optimizer and data there are too large for it"
        )
        return "\n".join([*lines, _LARGER])
    lines.append("what takes less of it, and trains on the same batch:")
    factor = next((each for each in range(2, micro + 1) if not micro % each), None)
    if factor:
        said = f"accumulate: {settings.accumulate * factor}"
        if settings.micro_batch is not None:
            said = f"micro_batch: {micro // factor}"
        lines.append(
            f"  {said}   micro-batches of {micro // factor} in place of {micro}; "
            "or more GPUs, which divide the batch, too"
        )
    if settings.precision == "fp32":
        better = "bf16" if can_bf16(group.device) else "fp16"
        lines.append(f"  precision: {better}   activations of half the size")
    if not settings.activation_checkpointing:
        lines.append(
            "  activation_checkpointing: true   activations are computed again; the task names them in blocks(model)"
        )
    return "\n".join([*lines, _LARGER])


def _figures(device: torch.device) -> str:
    """Return the GPU's name and size, what this process had of it at most, and what others have."""
    if device.type != "cuda":
        return ""
    try:
        about = torch.cuda.get_device_properties(device)
        peak, held = torch.cuda.max_memory_allocated(device), torch.cuda.memory_reserved(device)
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError:  # after some errors CUDA no longer answers
        return ""
    text = f": {about.name} with {_gib(total)}, of which this process had {_gib(peak)} at its peak"
    others = total - free - held
    return text + (
        f", and other processes and CUDA itself have {_gib(others)}" if others > _OTHERS * total else ""
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _in_a_step(trace: Optional[TracebackType]) -> bool:
    """Return True if it happened with a batch at hand: in a step or in an evaluation."""
    here = Path(__file__).parents[1]
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.parent == here and file.stem in ("step", "evaluation"):
            return True
        trace = trace.tb_next
    return False


def tensor_core_multiple(settings: Settings, device: torch.device) -> Optional[int]:
    """Return what sizes should be a multiple of; None where there are no tensor cores, or they are not used."""
    if device.type != "cuda" or not torch.version.cuda:
        return None
    capability = torch.cuda.get_device_capability(device)
    if settings.precision in ("bf16", "fp16"):
        return 8 if capability >= (7, 0) else None
    return 4 if settings.tf32 and capability >= (8, 0) else None


def awkward_sizes(model: nn.Module, micro_batch: int, multiple: int) -> Optional[str]:
    """One line that names sizes that are not multiples, with the next one that is; None when all are.

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


def lone_samples(
    model: nn.Module, steps: Sequence[tuple[str, int]], micro_batch: int, world_size: int
) -> Optional[str]:
    """One line where BatchNorm gets a batch of one sample, in any of ``steps``, which are named with their samples; or None.

    torch refuses that in training where a channel has one value a sample, which only a forward pass can tell.
    """
    norms = [
        name
        for name, each in model.named_modules()
        if isinstance(each, _BatchNorm) and not isinstance(each, nn.SyncBatchNorm)
    ]
    for step, size in steps if norms else ():
        own = (
            stop - start
            for rank in range(world_size)
            for start, stop, _ in shares(0, size, size, micro_batch, rank=rank, world_size=world_size)
        )
        if min(own, default=0) == 1:
            return (
                f"warning: {step} has {size} sample(s), and a process gets one alone: BatchNorm ({norms[0]}) refuses that, "
                "unless a sample has several values in each channel there, as images have; set another batch_size, or "
                "drop_last: true, which leaves out a shorter last step"
            )
    return None


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
