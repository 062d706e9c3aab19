"""What is said of each part: how it is called, what shows it, and what to change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["advice", "called", "evidence", "time"]

_NAMES = {
    "data": "waiting for data",
    "copying": "copying batches",
    "computing": "computing",
    "small": "small operators",
    "communicating": "communicating",
    "waiting": "waiting for a slower rank",
    "outside": "outside of torch",
    "queued": "waiting for a CPU",
    "evaluating": "evaluating",
    "saving": "saving",
}

Values = Mapping[str, Any]


def called(name: str, device: str) -> str:
    """Return what a part is called; a GPU that is idle is not the same as a thread that is."""
    if device == "cuda":
        return {"small": "idle between kernels", "outside": "idle, waiting for the host"}.get(
            name, _NAMES[name]
        )
    return _NAMES[name]


def time(seconds: float) -> str:
    """Seconds as people read them."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def evidence(name: str, own: Values, settings: Values) -> str:
    """Return the figures behind a cause."""
    part, facts, gpu = own["parts"].get(name, 0.0), own["facts"], own["device"] == "cuda"
    queued = facts.get("queued_seconds") or 0.0
    host = f"; the host's thread waits for a CPU for {time(queued)} a step" if gpu and queued else ""
    step = f"{time(part)} of a step of {time(own['step_seconds'])}"
    if name == "data":
        return f"{step}; workers: {settings.get('workers', 'unknown')}"
    if name == "copying":
        return f"{step}; {_copies(facts, gpu)}"
    if name == "small":
        kind = "kernels" if gpu else "operators"
        least = "10 µs" if gpu else "20 µs"
        between = "the GPU is idle between kernels" if gpu else "they and what calls them take"
        return (
            f"{facts['operators']:,.0f} {kind} a step, {facts['short']:,.0f} of them shorter than {least} "
            f"(median {time(facts['operator_median_seconds'])}); {between} {'for ' if gpu else ''}{step}{host}"
        )
    if name == "communicating":
        return (
            f"{facts['collectives']:,.3g} collectives a step, under way for {time(facts['collective_seconds'])}; "
            f"nothing else runs meanwhile for {step}"
        )
    if name == "waiting":
        what, seconds = own["last_by"]
        return f"{step}; rank {own['last_rank']} is behind by {time(seconds)} a step, {called(what, own['device'])}"
    if name == "outside":
        lines = "".join(f"; {time(seconds)} in {line}" for line, seconds in facts.get("lines", ()))
        if gpu:
            return (
                f"the GPU is idle for {step} in stretches of more than 1 ms, while no data is waited for; "
                f"the host waits for the GPU {facts['waits']:,.3g} times a step{lines}{host}"
            )
        return f"no operator of torch runs for {step}, in stretches of more than 1 ms{lines}"
    if name == "queued":
        late = facts.get("queued_workers_seconds") or 0.0
        workers = f"; the mean worker of the loader for {time(late)} a step" if late else ""
        return f"ready to run, and without a CPU, by Linux's scheduler: {step}{workers}"
    return step if part else "by metrics.jsonl"


def _copies(facts: Values, gpu: bool) -> str:
    if not gpu:
        made = time(facts["copying_data_seconds"])
        return f"{facts['copies']:,.3g} long copies of tensors a step, {made} of them while the batch is made"
    text = f"{facts['copies']:,.3g} copies a step between host and GPU"
    if facts["copied_bytes"]:
        text += f", {facts['copied_bytes'] / 2**20:,.3g} MiB"
    return text + (
        f", {facts['pageable']:,.3g} of them from or to pageable memory" if facts["pageable"] else ""
    )


def advice(name: str, own: Values, settings: Values) -> str:
    """Return what to change."""
    facts, gpu = own["facts"], own["device"] == "cuda"
    if name == "data":
        return _more_data(settings, gpu)
    if name == "copying":
        if not gpu:
            return "bring the data set to its final type and layout once, not in every batch; smaller types (uint8) move faster"
        if facts["pageable"]:
            return (
                "copy from pinned memory: tensors in a batch class of your own need a pin_memory method; "
                "avoid .item() and .cpu()"
            )
        return "send less: uint8 or half precision, converted on the GPU; or keep a small data set on the GPU"
    if name == "small":
        tried = "" if settings.get("compile") else "compile: true, which merges operators; "
        graphs = "; CUDA graphs (torch.compile(mode='reduce-overhead') in model(cfg))" if gpu else ""
        return f"{tried}a larger batch_size or fewer, larger operators in the model{graphs}"
    if name == "communicating":
        return (
            f"accumulate (now {settings.get('accumulate', 1)}) with a larger batch_size, for fewer exchanges; "
            f"bucket_cap_mb (now {settings.get('bucket_cap_mb', 25.0):g}); static_graph: true; "
            "slurmgpu doctor measures the network"
        )
    if name == "waiting":
        return f"look at rank {own['last_rank']}: its node, its CPUs, its share of the data"
    if name == "outside":
        shown = "" if facts.get("lines") else "profile_stacks: true shows which functions these are; "
        return f"{shown}look for numpy, printing, files, locks and .item() in the task"
    if name == "evaluating":
        return "evaluate less often, or on fewer samples"
    if name == "queued":
        again = "; where it is more than half of a step, the rest tells nothing: profile again then"
        return (
            "more CPUs a task (cpus_per_gpu), fewer workers, fewer threads (OMP_NUM_THREADS); "
            f"see what else runs on the node{again}"
        )
    every = settings.get("checkpoint_steps") or f"{settings.get('checkpoint_every', 1)} epochs"
    return f"save less often: checkpoint_steps or checkpoint_every (now {every}); a faster disk for the run directory"


def _more_data(settings: Values, gpu: bool) -> str:
    workers = settings.get("workers", "auto")
    if workers == 0 or (workers == "auto" and not gpu):
        first = "workers: 2 or more; now the training's own process makes the batches"
    else:
        first = f"more workers (now {workers}) and as many CPUs a task (cpus_per_gpu)"
    return f"{first}; cheaper samples (decoded and resized beforehand); data on the node's own disk (stage)"
