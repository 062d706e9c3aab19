"""From a training's tensors to what each rank keeps of them, by strategy and by number of processes.

What is counted, with P for parameters, G for gradients, S for the optimizer's state, E for the average of the weights:

- single: P + G + S + E and a micro-batch; a first micro-batch makes its gradients while its activations go.
- ddp: the same on each rank. Gradients lie in DDP's buckets, which are there from the start.
- fsdp2 over N: (P + G + S + E) / N; what is gathered (in ``precision``'s type): the block that is computed, the next one, and
  what is in no block; the gradients of a block before they are shared out, in both types; and a micro-batch. Without
  ``reshard_after_forward`` all blocks stay gathered.
- cpu_offload: the same pieces in the memory of the node, and on the GPU only what is gathered.
- pipeline: what the task's stages have, and the activations of as many micro-batches as wait for their backward pass, of which
  a stage is taken to have its equal share. Of all stages the largest counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import torch

from ..files import write_json
from ..formats.run_files import ESTIMATE_FILE
from ..settings import Settings
from ..sharding.pipeline import turns
from ..task import load
from .tracing import Facts, Peak, trace

__all__ = ["Row", "at", "made", "rows", "samples_at_a_time", "write_estimate"]

_FP32 = 4
_SHOWN_SIZES = (1, 2, 4, 8, 16, 32, 64)


class Row(NamedTuple):
    """Bytes of one process."""

    strategy: str
    gpus: int
    cpu_offload: bool
    micro_batch: int
    """Samples at a time."""
    parameters: int
    gradients: int
    """DDP's buckets, too."""
    optimizer: int
    averages: int
    buffers: int
    gathered: int
    """Parameters that fsdp2 gathers, and gradients that are not shared out yet."""
    activations: Optional[int]
    """Activations of a micro-batch, and its batch; None: not known."""
    total: int
    """On the device, at the peak; without activations, where these are not known."""
    host: int
    """In the node's memory beside it (cpu_offload)."""
    fixed: int
    """Part of the total that no micro-batch changes."""
    per_sample: Optional[int]
    """Bytes that each sample adds."""


class _Line(NamedTuple):
    """Bytes by samples: ``fixed + samples * each``."""

    fixed: float
    each: float

    def at(self, samples: int) -> int:
        return max(0, round(self.fixed + samples * self.each))


def at(peaks: Sequence[Peak], samples: int, *, first: bool = False) -> Optional[int]:
    """Return what a micro-batch of so many samples takes, on the line through those that were traced; None: none was."""
    line = _line(peaks, first)
    return None if line is None else line.at(samples)


def _line(peaks: Sequence[Peak], first: bool) -> Optional[_Line]:
    values = [(each.samples, each.first if first else each.again) for each in peaks]
    if not values:
        return None
    (low, small), (high, large) = values[0], values[-1]
    if low == high:
        return _Line(0.0, small / low)
    slope = max(0.0, (large - small) / (high - low))
    return _Line(large - high * slope, slope)


def samples_at_a_time(settings: Settings, processes: int) -> int:
    """Samples of a micro-batch on so many processes, rounded up; 1 where ``micro_batch`` is to be found."""
    share = -(-settings.batch_size // processes)
    if settings.micro_batch == "auto":
        return 1
    rounds = (
        -(-share // settings.micro_batch) if isinstance(settings.micro_batch, int) else settings.accumulate
    )
    return -(-share // rounds)


def made(facts: Facts, settings: Settings) -> int:
    """Return the bytes of the model in the node's memory that each process has at the start, before it keeps its piece."""
    return 0 if settings.meta_device else facts.buffers + facts.parameters


def rows(facts: Facts, settings: Settings, gpus: Sequence[int], *, on_gpu: bool, own_step: bool) -> list[Row]:
    """Return a row for each strategy at each number of GPUs, with a process for each GPU."""
    found = []
    for count in sorted(set(gpus)):
        if count == 1:
            found.append(_whole("single", facts, settings, 1, on_gpu))
            continue
        found.append(_whole("ddp", facts, settings, count, on_gpu))
        if not own_step:
            found.append(_sharded(facts, settings, count, offload=False))
            if settings.precision != "fp16":
                found.append(_sharded(facts, settings, count, offload=True))
            stages = settings.pipeline_stages or count
            if stages in facts.stages and not count % stages:
                found.append(_staged(facts, settings, count, facts.stages[stages]))
    return found


def _whole(strategy: str, facts: Facts, settings: Settings, count: int, on_gpu: bool) -> Row:
    """Return a process that has all of the model."""
    micro = samples_at_a_time(settings, count)
    together = strategy == "ddp"
    kept = facts.parameters + facts.buffers + facts.optimizer + facts.averages
    line = _line(facts.peaks, first=False)
    activations = 0 if line is None else line.at(micro)
    beside = 0 if on_gpu else facts.optimizer_peak
    peak = facts.gradients + max(activations, beside)
    rounds = -(-settings.batch_size // count) > micro
    first = at(facts.peaks, micro, first=True)
    if not together and not rounds and first is not None:
        # The gradients come while the activations go, and are no more at the start of the next step.
        peak = max(first, activations, facts.gradients + beside)
    return Row(
        strategy, count, False, micro,
        facts.parameters, facts.gradients, facts.optimizer, facts.averages, facts.buffers, 0,
        None if line is None else activations,
        kept + peak, 0,
        kept + facts.gradients + (0 if line is None else max(0, round(line.fixed))),
        None if line is None else round(line.each),
    )  # fmt: skip


def _sharded(facts: Facts, settings: Settings, count: int, *, offload: bool) -> Row:
    """Return the row of a process that has one of ``count`` pieces of the model."""
    micro = samples_at_a_time(settings, count)
    in_blocks = min(facts.parameters, sum(facts.blocks))
    outside = facts.parameters - in_blocks
    elements = facts.parameters / max(1, facts.elements)
    narrow = 1.0 if settings.precision == "fp32" else 2 / elements
    # As large as a whole block, whatever holds how many of its parameters.
    largest = max(facts.blocks, default=0)
    rest = outside * narrow
    at_once = 2 * largest if settings.reshard_after_forward else in_blocks
    computed = min(at_once, in_blocks) * narrow
    shared_out = largest * (narrow + _FP32 / elements) + rest
    gathered = round(rest + computed + shared_out)
    sizes = (facts.parameters, facts.gradients, facts.optimizer, facts.averages)
    parameters, gradients, optimizer, averages = (round(size / count) for size in sizes)
    line = _line(facts.peaks_cast, first=False)
    activations = 0 if line is None else line.at(micro)
    kept = parameters + gradients + optimizer + averages
    on_device = (0 if offload else kept) + facts.buffers + gathered
    return Row(
        "fsdp2", count, offload, micro,
        parameters, gradients, optimizer, averages, facts.buffers, gathered,
        None if line is None else activations,
        on_device + activations, kept if offload else 0,
        on_device + (0 if line is None else max(0, round(line.fixed))),
        None if line is None else round(line.each),
    )  # fmt: skip


def _staged(facts: Facts, settings: Settings, count: int, sizes: Sequence[int]) -> Row:
    """Return the process that has most of a pipeline whose processes have parameters of these sizes."""
    return max(
        (_stage(facts, settings, count, sizes, number) for number in range(len(sizes))),
        key=lambda row: row.total,
    )


def _stage(
    facts: Facts,
    settings: Settings,
    count: int,
    sizes: Sequence[int],
    number: int,
) -> Row:
    copies = count // len(sizes)
    micro = samples_at_a_time(settings, copies)
    share = -(-settings.batch_size // copies)
    rounds = -(-share // micro)
    line = _line(facts.peaks, first=False)
    size = sizes[number]
    part = size / max(1, facts.parameters)
    waiting = most = 0
    for turn in turns(settings.pipeline_schedule, number, len(sizes), rounds):
        waiting += 1 if turn.forward else -1
        most = max(most, waiting)
    held = most / len(sizes)  # micro-batches, each of all the model
    gradients, optimizer = round(facts.gradients * part), round(facts.optimizer * part)
    activations = 0 if line is None else round(held * line.at(micro))
    buffers = round(facts.buffers * part)
    kept = size + gradients + optimizer + buffers
    return Row(
        "pipeline", count, False, micro,
        size, gradients, optimizer, 0, buffers, 0,
        None if line is None else activations,
        kept + activations, 0,
        kept + (0 if line is None else max(0, round(held * line.fixed))),
        None if line is None else round(held * line.each),
    )  # fmt: skip


def write_estimate(settings: Settings, gpus: Sequence[int], folder: Path) -> None:
    """Work out what the training takes on so many GPUs, and write it to ``estimate.json`` in the folder; sizes in bytes.

    Raises:
        TrainingError: the task does not do what it must.
    """
    task = load(settings.task)
    facts = trace(task, settings, gpus)
    found = rows(facts, settings, gpus, on_gpu=settings.device != "cpu", own_step=task.has("step"))
    write_json(
        folder / ESTIMATE_FILE,
        {
            "schema": "slurmgpu.estimate/1",
            "task": settings.task,
            "precision": settings.precision,
            "torch": torch.__version__,
            "parameters": facts.elements,
            "micro_batch_to_be_found": settings.micro_batch == "auto",
            "activations": {str(size): at(facts.peaks, size) for size in _SHOWN_SIZES},
            "made": made(facts, settings),
            "note": facts.note,
            "rows": [each._asdict() for each in found],
        },
    )
