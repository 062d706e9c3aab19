"""Settings that go together, and the shares of a batch over processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Optional

from .settings import TrainFields

__all__ = ["clashes", "copies_of", "misfit", "uneven_batch"]


def misfit(name: str, value: Any, others: Mapping[str, Any], known: Mapping[str, Any]) -> Optional[str]:
    """Return why the value of a setting does not go with the others that are given; ``known``: all settings by their names."""
    if name == "micro_batch" and value is not None and others.get("accumulate") not in (None, 1):
        return "accumulate follows from it; leave out one of them"
    if name == "static_graph" and value:
        # Its first backward pass must not be one of no_sync: an assertion fails (pytorch's issue 143580).
        several = {"accumulate": (None, 1), "micro_batch": (None,)}
        for other, single in several.items():
            if others.get(other) not in single:
                return f"torch's DDP cannot do it beside {other}; leave out one of them"
    if name == "checkpoint_shared_steps" and value is not None:
        steps = others.get("checkpoint_steps")
        if steps is None or steps >= value:
            return (
                f"steps in between are kept on the nodes every checkpoint_steps, which is {steps or 'not set'}: set "
                f"checkpoint_steps to less than {value}, such as 1, or leave checkpoint_shared_steps out"
            )
    if (
        name == "checkpoint_node_folder"
        and value is not None
        and others.get("checkpoint_shared_steps") is None
    ):
        return "nothing is kept on the nodes: set checkpoint_shared_steps too, or leave it out"
    if name == "config":
        for key in value:
            if not key.isidentifier():
                return f"the key {key!r} cannot be read as cfg.NAME: use letters, digits and underscores"
            if key in known:
                return f"{key} is a setting of its own; write it beside config, not inside"
    return None


def copies_of(settings: TrainFields, processes: int) -> int:
    """Return how many processes, or pipelines of them, take samples of their own."""
    if settings.strategy == "pipeline":
        return max(1, processes // (settings.pipeline_stages or processes))
    return processes


def clashes(settings: TrainFields, processes: Optional[int], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield what does not go with the strategy, or with this number of processes (None: not known), and what to do.

    ``prefix`` stands before the names of settings. With one process, nothing is cut.
    """
    strategy, stages = settings.strategy, settings.pipeline_stages
    where = f"{prefix}strategy is {strategy}"
    if settings.meta_device and strategy not in ("fsdp2", "pipeline"):
        yield (
            f"{prefix}meta_device is true, and {where}, with which each process has the whole model",
            "use strategy: fsdp2 or pipeline, or leave out meta_device",
        )
    if stages is not None and strategy != "pipeline":
        yield (
            f"{prefix}pipeline_stages is {stages}, and {where}",
            "use strategy: pipeline, or leave out pipeline_stages",
        )
    if processes is not None and stages is not None and processes % stages:
        yield (
            f"{prefix}pipeline_stages is {stages}, and the job has {processes} processes, which do not divide by it",
            f"ask for a multiple of {stages} GPUs, or change pipeline_stages",
        )
    cut = processes is not None and processes > 1
    pipeline, layers = cut and strategy == "pipeline", strategy == "model_parallel"
    # A scaler looks for gradients that are not finite on the GPU, and stages would have to agree on its scale.
    unscaled = pipeline or (cut and strategy == "fsdp2" and settings.cpu_offload)
    several = pipeline and copies_of(settings, processes or 1) > 1
    not_together = (
        ("compile", "true", settings.compile and (pipeline or layers)),
        # What fits is found for one device alone.
        ("micro_batch", "auto", settings.micro_batch == "auto" and (pipeline or layers)),
        ("ema", settings.ema, settings.ema is not None and pipeline),
        ("precision", "fp16", settings.precision == "fp16" and unscaled),
        # The stages would have to agree on what to put back.
        ("nonfinite", "skip", settings.nonfinite == "skip" and pipeline),
        ("broadcast_buffers", "false", not settings.broadcast_buffers and several),
    )
    offload = " with cpu_offload true" if settings.cpu_offload else ""
    for name, value, holds in not_together:
        if holds:
            yield (
                f"{prefix}{name} is {value}, and {where}{offload}: the two are not done together yet",
                f"change {name}, or the strategy",
            )


def uneven_batch(settings: TrainFields, copies: int, among: str) -> Optional[tuple[str, int]]:
    """Return why the batch cannot be shared out over copies and ``accumulate``, and the nearest size that can.

    ``among`` says what there are copies of.
    """
    parts = copies * settings.accumulate
    if settings.batch_size % parts == 0:
        return None
    nearest = max(parts, round(settings.batch_size / parts) * parts)
    return (
        f"batch_size {settings.batch_size} does not divide by {parts} "
        f"({among} {copies} x accumulate {settings.accumulate}); the nearest batch_size is {nearest}",
        nearest,
    )
