"""A GPU whose memory is full: with what it was asked for, and what would help."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Optional

import torch

from ..precision import can_bf16
from ..processes.group import Group
from ..settings import Settings, micro_batch

__all__ = ["advice", "is_full"]

_SIGNS = ("CUDA error: out of memory", "HIP error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
# Of what a GPU holds, the share of other processes that is worth a word.
_OTHERS = 0.05


def is_full(error: BaseException) -> bool:
    """Whether this is an error of a GPU's memory, and not the machine's."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


def advice(error: BaseException, settings: Settings, group: Group) -> str:
    """A few lines: the figures, and settings that take less memory with the same batch."""
    world = group.ranks.world_size
    micro = micro_batch(settings, world)
    lines = [
        f"the GPU's memory is full{_figures(group.device)}; micro-batch {micro} "
        f"(batch_size {settings.batch_size} = {world} x {settings.accumulate} x {micro}), {settings.precision}"
    ]
    if not _in_a_step(error.__traceback__):
        lines.append(
            "  it was full before a batch came: model, optimizer and data that lie there are too large for it"
        )
        return "\n".join([*lines, _LARGER])
    lines.append("what takes less of it, and trains on the same batch:")
    factor = next((each for each in range(2, micro + 1) if not micro % each), None)
    if factor:
        lines.append(
            f"  accumulate: {settings.accumulate * factor}   micro-batches of {micro // factor} in place of {micro}; "
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


_LARGER = "  a GPU with more memory   resources.gpu_type; slurmgpu cluster show lists them"


def _figures(device: torch.device) -> str:
    """The GPU's name and size, what this process had of it at most, and what others have."""
    if device.type != "cuda":
        return ""
    try:
        about = torch.cuda.get_device_properties(device)
        peak, held = torch.cuda.max_memory_allocated(device), torch.cuda.memory_reserved(device)
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError:  # after some errors CUDA answers nothing any more
        return ""
    text = f": {about.name} with {_gib(total)}, of which this process had {_gib(peak)} at its peak"
    others = total - free - held
    return text + (
        f", and other processes and CUDA itself have {_gib(others)}" if others > _OTHERS * total else ""
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _in_a_step(trace: Optional[TracebackType]) -> bool:
    """Whether it happened with a batch at hand: in a step or in an evaluation."""
    here = Path(__file__).parents[1]
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.parent == here and file.stem in ("step", "evaluation"):
            return True
        trace = trace.tb_next
    return False
