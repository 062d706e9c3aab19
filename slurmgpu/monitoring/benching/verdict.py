"""What follows from a training's tries: what it gains from more of everything, in sentences with their figures."""

from __future__ import annotations

from typing import NamedTuple

from slurmgpu.monitoring.benching.results import Results
from slurmgpu.monitoring.benching.wording import digits
from slurmgpu.monitoring.json_rows import Row, positive, whole
from slurmgpu.monitoring.reporting.wording import amount, clock, count, percent, short

__all__ = ["Proposal", "Verdict", "judge"]

WAITS = 0.1
"""Share of a step from which on waiting for data is worth more workers."""
ENOUGH = 0.97
"""Of the best rate: what reaches it with less is as good."""
WORTH = 1.1
"""A setting that is not so much faster is not worth a change."""
EFFICIENT = 0.7
"""Of the processes that are paid for, what has to come of them."""


class Proposal(NamedTuple):
    """A value of the job file, and why."""

    key: str
    value: str | int
    why: str


class Verdict(NamedTuple):
    """What is said, and what follows for the job file."""

    sentences: list[str]
    proposals: list[Proposal]


class _Try(NamedTuple):
    row: Row
    rate: float


def judge(results: Results) -> Verdict:
    """The verdict on what was tried; a part that was not tried is not spoken of."""
    base = next(iter(_of(results, "base")), None)
    if base is None:
        failed = next((row for row in results.rows if row.get("what") == "base"), None)
        why = (
            "nothing was tried" if failed is None else f"the training does not run here: {failed.get('why')}"
        )
        return Verdict([why], [])
    found = Verdict([_base(base, _memory_of_gpu(results))], [])
    for part in (_batches, _workers, _precision, _scaling, _epoch):
        sentences, proposals = part(results, base)
        found.sentences.extend(sentences)
        found.proposals.extend(proposals)
    return found


def _of(results: Results, what: str) -> list[_Try]:
    rows = [row for row in results.rows if row.get("what") == what]
    return [_Try(row, rate) for row in rows if (rate := positive(row.get("samples_per_second")))]


def _memory_of_gpu(results: Results) -> float | None:
    """Bytes of the smallest GPU."""
    gpus = results.machine.get("gpus")
    sizes = (
        [positive(one.get("bytes")) for one in gpus if isinstance(one, dict)]
        if isinstance(gpus, list)
        else []
    )
    return min((one for one in sizes if one is not None), default=None)


def _on_gpu(base: _Try) -> bool:
    return base.row.get("device") == "cuda"


def _base(base: _Try, memory: float | None) -> str:
    row = base.row
    step, waits = positive(row.get("step_seconds")), positive(row.get("waits_for_data"))
    peak = positive(row.get("peak_bytes"))
    said = f"one process does {digits(base.rate)} samples/s with {count(_size(base), 'sample')} at a time"
    said += "" if step is None else f": {step:.3g} s a step"
    said += "" if waits is None else f", of which it waits {percent(waits)} for data"
    if peak is None:
        return said
    of = f" of the {short(memory)}" if memory is not None and _on_gpu(base) else ""
    return f"{said}; {short(peak)}{of} of memory at the peak"


def _batches(results: Results, base: _Try) -> Verdict:
    tried = _of(results, "batch")
    sentences = []
    if tried:
        best = max(one.rate for one in (*tried, base))
        enough = min((one for one in (*tried, base) if one.rate >= ENOUGH * best), key=_size)
        gain = enough.rate / base.rate
        sentences.append(
            f"{_size(enough)} samples at a time are {gain:.2f} times as fast as {_size(base)}"
            if gain > WORTH
            else f"more than {_size(base)} samples at a time are no faster"
        )
    full = [row for row in results.rows if row.get("what") == "batch" and row.get("why") == "out of memory"]
    if full:
        sentences.append(f"memory is full with {whole(full[0].get('batch_size'))} samples at a time")
    return Verdict(sentences, [])


def _size(one: _Try) -> int:
    return whole(one.row.get("batch_size")) or 0


def _workers(results: Results, base: _Try) -> Verdict:
    tried = _of(results, "workers")
    if not tried:
        return Verdict([], [])
    best = max(one.rate for one in tried)
    enough = min(
        (one for one in tried if one.rate >= ENOUGH * best),
        key=lambda one: whole(one.row.get("workers")) or 0,
    )
    workers = whole(enough.row.get("workers")) or 0
    waits = positive(enough.row.get("waits_for_data")) or 0.0
    said = (
        f"{count(workers, 'data-loader worker')} are enough"
        if workers != 1
        else "1 data-loader worker is enough"
    )
    if waits >= WAITS:
        said = (
            f"the loader is the limit: with {count(workers, 'worker')}, the best that was tried, a step still waits "
            f"{percent(waits)} of its time for data"
        )
    proposals = []
    had = whole(base.row.get("workers"))
    now = max(one.rate for one in (base, *tried) if one is base or whole(one.row.get("workers")) == had)
    worth = 1 / ENOUGH if (positive(base.row.get("waits_for_data")) or 0.0) >= WAITS else WORTH
    if workers != had and enough.rate > worth * now:
        why = f"{digits(enough.rate)} samples/s in place of {digits(now)}"
        proposals.append(Proposal("train.workers", workers, why))
    return Verdict([said], proposals)


def _precision(results: Results, base: _Try) -> Verdict:
    tried = _of(results, "precision")
    plain = next((one for one in tried if one.row.get("precision") == "fp32"), base)
    sentences, proposals = [], []
    for one in tried:
        if one is plain:
            continue
        name, value = next(
            (key, one.row[key]) for key in ("compile", "channels_last", "precision") if key in one.row
        )
        gain = one.rate / plain.rate
        told = str(value) if name == "precision" else name
        if one.row.get("tf32") is True:
            told = "TF32"
        sentences.append(f"with {told}, it is {gain:.2f} times as fast as with fp32")
        if gain >= WORTH and name == "precision" and told != "TF32":
            proposals.append(
                (gain, Proposal("train.precision", str(value), f"{gain:.2f} times as fast as fp32"))
            )
    best = max(proposals, default=None, key=lambda one: one[0])
    return Verdict(sentences, [] if best is None else [best[1]])


def _scaling(results: Results, base: _Try) -> Verdict:
    tried = [one for one in _of(results, "scaling") if one.row.get("how") == "each"]
    single = next((one for one in tried if _processes(one) == 1), base)
    more = sorted((one for one in tried if _processes(one) > 1), key=_processes)
    if not more:
        return Verdict([], [])
    sentences, chosen = [], 1
    for one in more:
        gain = one.rate / single.rate
        sentences.append(
            f"{_processes(one)} processes do {gain:.2f} times as much as one ({percent(gain / _processes(one))} of what "
            "they could)"
        )
        if gain / _processes(one) >= EFFICIENT:
            chosen = _processes(one)
    sentences.append(f"ask for {chosen}" + ("" if chosen > 1 else ": more are not worth what they cost"))
    return Verdict(sentences, [Proposal("resources.gpus", chosen, sentences[-2 if chosen > 1 else 0])])


def _epoch(results: Results, base: _Try) -> Verdict:
    """What an epoch takes and costs, on one process and on each number of them."""
    samples = whole(base.row.get("dataset_samples"))
    if not samples:
        return Verdict([], [])
    more = [one for one in _of(results, "scaling") if one.row.get("how") == "each" and _processes(one) > 1]
    said = []
    for one in (base, *sorted(more, key=_processes)):
        seconds = samples / one.rate
        cost = f" ({amount(_processes(one) * seconds / 3600)} GPU-hours)" if _on_gpu(base) else ""
        said.append(f"{clock(seconds) if seconds >= 60 else f'{seconds:.3g} s'} on {_processes(one)}{cost}")
    return Verdict([f"an epoch of {count(samples, 'sample')} takes {', '.join(said)}"], [])


def _processes(one: _Try) -> int:
    return whole(one.row.get("processes")) or 1
