"""From the parts of a step to what costs time, the figures that show it, and what to change; and that as lines for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from .measuring import PARTS

__all__ = ["LEAST", "OF_ALL", "SCHEMA", "judge", "lines", "summary"]

SCHEMA = "slurmgpu.profile-verdict/1"

LEAST = {
    "data": 0.15, "copying": 0.15, "small": 0.3, "communicating": 0.2, "waiting": 0.15, "outside": 0.2,
    "queued": 0.15, "evaluating": 0.3, "saving": 0.1,
}  # fmt: skip
"""The share of the time from which on a part is called a cause; computing is what the time is for."""
_MOST_QUEUED = 0.5
OF_ALL = ("evaluating", "saving")
"""Parts whose share of the whole training counts, where it is known: a few steps do not tell how often they come."""

Values = Mapping[str, Any]

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
_SEEN = 0.005  # of a step; less is not listed
_OF = {
    "steps": "a step",
    "training": "all the time that is logged",
    "rest": "what is left of a step without waiting for a CPU",
}


def judge(
    ranks: Mapping[int, Values],
    settings: Mapping[str, Any],
    of_training: Optional[Mapping[str, float]] = None,
) -> dict[str, Any]:
    """Return the verdict on a training, from what ``measure`` found on each rank.

    ``of_training`` has the shares of evaluating and saving of all the time that is logged, where that is known.
    """
    whole = dict(of_training or {})
    own = _together(ranks)
    seconds = own["step_seconds"] or 1.0
    shares = {name: value / seconds for name, value in own["parts"].items()}
    causes = _causes(own, shares, whole, len(ranks))
    for each in causes:
        name = each["cause"]
        each.update(evidence=evidence(name, own, settings), change=advice(name, own, settings))
    kept = ("device", "step_seconds", "timed_steps", "recorded_steps", "recording_seconds")
    return {
        "schema": SCHEMA,
        "ranks": sorted(ranks),
        **{name: own[name] for name in kept},
        "shares": shares,
        "of_training": whole,
        "tensor_cores": _tensor_cores(own),
        "causes": causes,
    }


def _together(ranks: Mapping[int, Values]) -> dict[str, Any]:
    """Return the mean rank. Who communicates least is who the others wait for: more than its time is waiting."""
    found = list(ranks.values())
    parts = {name: sum(each["parts"][name] for each in found) / len(found) for name in PARTS}
    last = min(ranks, key=lambda rank: ranks[rank]["parts"]["communicating"])
    parts["waiting"] = parts["communicating"] - ranks[last]["parts"]["communicating"]
    parts["communicating"] -= parts["waiting"]
    own = {**ranks[min(ranks)], "parts": parts, "step_seconds": sum(parts.values())}
    return {**own, "last_rank": last, "last_by": _behind(ranks, last)}


def _causes(
    own: Values, shares: Mapping[str, float], whole: Mapping[str, float], world: int
) -> list[dict[str, Any]]:
    """Return the parts that are causes, the largest first, each with its share and of what that is.

    Where a CPU is waited for, the others are judged by what is left without it: as they are on a quiet machine. Where that is
    less than half of a step, it tells nothing of them.
    """
    alone = _of_the_last(own, world) if shares["waiting"] >= LEAST["waiting"] else {}
    queued = shares["queued"] if shares["queued"] >= LEAST["queued"] else 0.0
    found = []
    for name, least in LEAST.items():
        share, of, rest = shares.get(name, 0.0), "steps", 1.0
        if name in OF_ALL and name in whole:
            share, of = whole[name], "training"
        elif queued > _MOST_QUEUED and name != "queued":
            continue
        elif queued and name != "queued":
            of, rest = "rest", 1 - queued
        if (share - alone.get(name, 0.0)) / rest >= least:
            found.append((share, {"cause": name, "share": share / rest, "of": of}))
    return [each for _, each in sorted(found, key=lambda one: -one[0])]


def _of_the_last(own: Values, world: int) -> dict[str, float]:
    """Return the share of a mean step that the rank which the others wait for is behind by: that is told of this rank alone."""
    name, seconds = own["last_by"]
    return {name: seconds / world / (own["step_seconds"] or 1.0)}


def _behind(ranks: Mapping[int, Values], last: int) -> tuple[str, float]:
    """In which part a rank is behind the others' mean, and by how many seconds of a step."""
    others = [each["parts"] for rank, each in ranks.items() if rank != last]
    if not others:
        return "computing", 0.0
    own = ranks[last]["parts"]
    more = {
        name: own[name] - sum(each[name] for each in others) / len(others)
        for name in PARTS
        if name != "communicating"
    }
    name = max(more, key=lambda each: more[each])
    return name, more[name]


def _tensor_cores(own: Values) -> Optional[dict[str, float]]:
    """Return how much of the time of matrix products and convolutions is on Tensor Cores; None where nobody can tell."""
    facts = own["facts"]
    used, unused = facts.get("tensor_core_seconds", 0.0), facts.get("no_tensor_core_seconds", 0.0)
    if not used + unused:
        return None
    return {
        "share": used / (used + unused),
        "of_step": facts["products_seconds"] / (own["step_seconds"] or 1.0),
    }


def lines(verdict: Values) -> list[str]:
    """Return all of it: where it was measured, the shares, and each cause with what shows it and what to change."""
    shares = sorted(verdict["shares"].items(), key=lambda item: -float(item[1]))
    found = [f"a step takes {time(verdict['step_seconds'])} ({_measured(verdict)})"]
    found += [
        f"{100 * share:5.1f} %  {called(name, verdict['device'])}" for name, share in shares if share >= _SEEN
    ]
    of_training = verdict["of_training"]
    if of_training:
        told = ", ".join(
            f"{called(name, verdict['device'])} {100 * share:.1f} %" for name, share in of_training.items()
        )
        found.append(f"of all the time that is logged: {told}")
    cores = verdict["tensor_cores"]
    if cores is not None:
        found.append(
            f"Tensor Cores: {100 * cores['share']:.0f} % of the time of matrix products and convolutions whose kernels "
            f"tell, which are {100 * cores['of_step']:.0f} % of a step{_slow_products(cores)}"
        )
    for number, cause in enumerate(verdict["causes"]):
        found += [f"{'verdict' if not number else 'also'}: {_cause(cause, verdict['device'])}"]
        found += [f"  evidence: {cause['evidence']}", f"  change: {cause['change']}"]
    if not verdict["causes"]:
        found.append(f"verdict: no clear cause{_computing(verdict)}")
    return found


def summary(verdict: Values) -> list[str]:
    """Return the same in a few lines, for a log."""
    shares = sorted(verdict["shares"].items(), key=lambda item: -float(item[1]))
    listed = ", ".join(
        f"{called(name, verdict['device'])} {100 * share:.0f} %" for name, share in shares if share >= 0.01
    )
    found = [f"profile: a step takes {time(verdict['step_seconds'])} ({_measured(verdict)}): {listed}"]
    for number, cause in enumerate(verdict["causes"]):
        head = "verdict" if not number else "also"
        found.append(
            f"profile: {head}: {_cause(cause, verdict['device'])}: {cause['evidence']}. To change: {cause['change']}"
        )
    if not verdict["causes"]:
        found.append(f"profile: verdict: no clear cause{_computing(verdict)}")
    return found


def _cause(cause: Values, device: str) -> str:
    return f"{called(cause['cause'], device)}, {100 * cause['share']:.0f} % of {_OF[cause['of']]}"


def _computing(verdict: Values) -> str:
    return f"; {100 * verdict['shares']['computing']:.0f} % of a step is computing"


def _slow_products(cores: Values) -> str:
    if cores["share"] >= 0.5 or cores["of_step"] < 0.2:
        return ""
    return "; precision: bf16 or fp16, or tf32: true, would use them"


def _measured(verdict: Values) -> str:
    ranks = verdict["ranks"]
    of = f"; mean of {len(ranks)} ranks" if len(ranks) > 1 else f"; rank {ranks[0]}"
    recorded = verdict["recorded_steps"]
    if verdict["timed_steps"] is None:
        steps = f"{recorded} steps" if recorded else "the whole trace"
        return f"{steps} as recorded: the profiler's own time is in it{of}"
    slower = verdict["recording_seconds"] / (verdict["step_seconds"] or 1.0)
    return (
        f"{verdict['timed_steps']} steps timed, {recorded} recorded to split them; "
        f"recording made a step {100 * slower:.0f} % slower, which is left out{of}"
    )


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
