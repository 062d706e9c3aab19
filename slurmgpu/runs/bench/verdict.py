"""What follows from a training's tries: what it gains from more of everything, and which smaller GPU would do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from slurmgpu.amounts import amount, count, duration, percent, size_text
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.gpu_models import well_known
from slurmgpu.runs.bench.results import Results, digits
from slurmgpu.training.formats.rows import Row, positive, whole

__all__ = [
    "FULL",
    "PUBLISHED",
    "Kind",
    "Proposal",
    "Ratios",
    "Verdict",
    "judge",
    "kinds_in",
    "kinds_of",
    "precision_of",
    "ratios",
    "runs",
    "would_do",
]


_HEAD_ROOM = 1.3
"""Of what tensors use: the allocator holds more than these."""
_CONTEXT = 1 << 30
"""Bytes: CUDA itself and NCCL's buffers, which torch does not count."""
_SMALLER = 0.9
"""Of the memory that was measured: two GPUs of 80 GB differ a little in what they report."""
_BF16 = (8, 0)


class Kind(NamedTuple):
    """A type of GPU of the cluster."""

    name: str
    bytes: float
    doubt: str | None
    """Why its memory is a guess; None: it is stated."""
    bf16: bool | None
    """Whether it computes in bf16; None: not known."""


def kinds_of(cluster: Cluster) -> list[Kind]:
    """The types of GPU that jobs can get, by a profile: of a type without stated memory that of the model as it is sold."""
    there = {kind.gpu_type for part in cluster.partitions.values() for kind in part.kinds if kind.gpu_type}
    found = []
    for name in sorted(there or set(cluster.gpu_types)):
        known = cluster.gpu_types.get(name)
        model = well_known(known.gres or name if known else name)
        keys = ("gpu_types", f"gpu_types.{name}", f"gpu_types.{name}.memory")
        doubt = next((cluster.guessed[key] for key in keys if key in cluster.guessed), None)
        bf16 = None if model is None or model.capability is None else model.capability >= _BF16
        if known is not None and known.memory is not None:
            found.append(Kind(name, known.memory.mib * float(1 << 20), doubt, bf16))
        elif model is not None:
            found.append(Kind(name, float(model.memory << 30), f"{model.word} is sold with so much", bf16))
    return found


def kinds_in(value: object) -> Iterator[Kind]:
    """Yield the same, read from the row that a bench wrote; what is none is passed over."""
    for one in value if isinstance(value, list) else []:
        if not isinstance(one, Mapping) or (memory := positive(one.get("bytes"))) is None:
            continue
        doubt, bf16 = one.get("doubt"), one.get("bf16")
        yield Kind(
            str(one.get("name")),
            memory,
            None if doubt is None else str(doubt),
            bf16 if isinstance(bf16, bool) else None,
        )


def would_do(kinds: Sequence[Kind], peak: float, total: float, *, bf16: bool) -> str | None:
    """Return a sentence that names the smallest type that holds the peak with head room; None where there is none.

    ``peak`` and ``total``: bytes of tensors at the peak of one process, and of the GPU that was measured. ``bf16``: the training
    computes in it. A type whose memory is only guessed is named where no other suffices, and then as a hint.
    """
    enough = [
        one
        for one in sorted(kinds, key=lambda one: (one.bytes, one.name))
        if _HEAD_ROOM * peak + _CONTEXT <= one.bytes < _SMALLER * total and not (bf16 and one.bf16 is False)
    ]
    said = f"memory {size_text(peak)} of {size_text(total)}"
    for one in enough:
        if one.doubt is None:
            return f"{said}: a smaller GPU would do, as {one.name} ({size_text(one.bytes)})"
    for one in enough:
        return f"{said}: a smaller GPU may do, as {one.name}, if it has {size_text(one.bytes)}, which is a guess ({one.doubt})"
    return None


PUBLISHED: Mapping[tuple[str, int], float] = {("dp", 4): 0.7, ("ddp", 4): 0.3}
"""What a textbook gives for 4 GPUs and a batch of 1,024: the time over that of one GPU. It is known here without the network
and the GPUs that it was measured with."""
_PUBLISHED_NOTE = (
    "published: a textbook's round figures for 4 GPUs and a batch of 1,024, network and GPUs not known"
)
_NAMES = {"dp": "DataParallel", "ddp": "DDP", "fsdp2": "FSDP2"}
_LAYOUTS = ("compile", "channels_last")


class Ratios(NamedTuple):
    """A table of them; ``note`` says what stands beside, empty where nothing does."""

    name: str
    """Of its file: ``scaling``."""
    title: str
    head: tuple[str, ...]
    lines: list[tuple[str, ...]]
    note: str


def ratios(results: Results) -> Iterator[Ratios]:
    """Yield the tables of those parts that were tried."""
    if (lines := _scaling_lines(results)) is not None:
        title = "Time for as many samples, over that of one process; the micro-batch of each is kept"
        yield Ratios("scaling", title, ("How", "Here", "Published"), lines, _PUBLISHED_NOTE)
    if lines := _precisions(results):
        yield Ratios(
            "precision", "Samples/s, over those with fp32", ("Precision", "Times as fast"), lines, ""
        )


def _scaling_lines(results: Results) -> list[tuple[str, ...]] | None:
    base = _rate(next((row for row in results.rows if row.get("what") == "base"), {}))
    found: dict[tuple[str, int], tuple[str, float | None]] = {}
    for row in results.rows:
        how = {"each": "ddp", "dp": "dp", "fsdp2": "fsdp2"}.get(str(row.get("how")))
        number = whole(row.get("gpus" if how == "dp" else "processes"))
        if row.get("what") == "scaling" and how is not None and number is not None and number > 1:
            found[how, number] = (_named(how, number, whole(row.get("nodes")) or 1), _rate(row))
    if base is None or not found:
        return None
    places = sorted({*found, *PUBLISHED}, key=lambda place: (place[1], list(_NAMES).index(place[0])))
    lines: list[tuple[str, ...]] = [("1 process", "100 %", "100 %")]
    for place in places:
        name, rate = found.get(place, (_named(*place, 1), None))
        published = PUBLISHED.get(place)
        lines.append(
            (
                name,
                "-" if rate is None else percent(base / rate),
                "-" if published is None else f"about {percent(published)}",
            )
        )
    return lines


def _named(how: str, number: int, nodes: int) -> str:
    if how == "dp":
        return f"{_NAMES[how]}, {number} GPUs"
    return f"{_NAMES[how]}, {number} processes{'' if nodes == 1 else f' on {nodes} nodes'}"


def _precisions(results: Results) -> list[tuple[str, ...]]:
    rows = [row for row in results.rows if row.get("what") == "precision"]
    plain = next((_rate(row) for row in rows if precision_of(row) == "fp32"), None)
    if plain is None:
        return []
    # The layouts are tried with the job's own precision: they have no place beside fp32.
    of_precision = [row for row in rows if not any(key in row for key in _LAYOUTS)]
    return [
        (precision_of(row), "failed" if (rate := _rate(row)) is None else f"{rate / plain:.2f}")
        for row in of_precision
    ]


def precision_of(row: Row) -> str:
    """Return which precision or layout was tried: `fp32`, `TF32`, `bf16`, `compile`."""
    layout = next((key for key in _LAYOUTS if key in row), None)
    return layout or ("TF32" if row.get("tf32") is True else str(row.get("precision")))


def _rate(row: Row) -> float | None:
    return positive(row.get("samples_per_second")) or None


WAITS = 0.1
"""Share of a step from which on waiting for data is worth more workers."""
ENOUGH = 0.97
"""Of the best rate: what reaches it with less is as good."""
WORTH = 1.1
"""A setting that is not so much faster is not worth a change."""
EFFICIENT = 0.7
"""Of the processes that are paid for, what has to come of them."""
FULL = "out of memory"
"""Why a try did not run that memory did not suffice for."""
_DISTURBED = "something else slowed down one of the two tries"


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
    """Return the verdict on what was tried; a part that was not tried is not spoken of."""
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
    found.sentences.extend(_smaller(results, base, found.proposals))
    return found


def _smaller(results: Results, base: _Try, proposals: Sequence[Proposal]) -> Iterator[str]:
    peak, total = positive(base.row.get("peak_bytes")), _memory_of_gpu(results)
    if peak is None or total is None or not _on_gpu(base):
        return
    proposed = next((one.value for one in proposals if one.key == "train.precision"), None)
    bf16 = (proposed or base.row.get("precision")) == "bf16"
    kinds = list(kinds_in(results.machine.get("gpu_types")))
    if (said := would_do(kinds, peak, total, bf16=bf16)) is not None:
        yield said


def runs(results: Results) -> bool:
    """Return True if the training could be tried as it is; without that, nothing follows."""
    return bool(_of(results, "base"))


def _of(results: Results, what: str) -> list[_Try]:
    rows = [row for row in results.rows if row.get("what") == what]
    return [_Try(row, rate) for row in rows if (rate := positive(row.get("samples_per_second")))]


def _failed(results: Results, what: str) -> list[Row]:
    return [row for row in results.rows if row.get("what") == what and "why" in row]


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
    of = f" of the {size_text(memory)}" if memory is not None and _on_gpu(base) else ""
    return f"{said}; {size_text(peak)}{of} of memory at the peak"


def _batches(results: Results, base: _Try) -> Verdict:
    tried = _of(results, "batch")
    sentences = []
    best = max(one.rate for one in (*tried, base))
    enough = min((one for one in (*tried, base) if one.rate >= ENOUGH * best), key=_size)
    larger = [one for one in tried if _size(one) > _size(base)]
    if enough.rate > WORTH * base.rate:
        smaller = _size(enough) < _size(
            base
        )  # which has more steps for as many samples, and cannot be so much faster
        sentences.append(_times(enough, base) + (f": {_DISTURBED}" if smaller else ""))
    elif larger:
        most = max(larger, key=lambda one: one.rate)
        sentences.append(f"larger micro-batches bring little: {_times(most, base)}")
    for row in _failed(results, "batch"):
        size = count(whole(row.get("batch_size")) or 0, "sample")
        if row.get("why") == FULL:
            sentences.append(f"memory is full with {size} at a time")
        else:
            sentences.append(f"with {size} at a time it does not run: {row.get('why')}")
    return Verdict(sentences, [])


def _times(one: _Try, base: _Try) -> str:
    are = "is" if _size(one) == 1 else "are"
    return f"{count(_size(one), 'sample')} at a time {are} {one.rate / base.rate:.2f} times as fast as {_size(base)}"


def _size(one: _Try) -> int:
    return whole(one.row.get("batch_size")) or 0


def _workers(results: Results, base: _Try) -> Verdict:
    failed = [
        f"with {_number_of_workers(row)} it does not run: {row.get('why')}"
        for row in _failed(results, "workers")
    ]
    tried = _of(results, "workers")
    if not tried:
        return Verdict(failed, [])
    best = max(one.rate for one in tried)
    enough = min(
        (one for one in tried if one.rate >= ENOUGH * best),
        key=lambda one: whole(one.row.get("workers")) or 0,
    )
    waits = positive(enough.row.get("waits_for_data")) or 0.0
    waited = positive(base.row.get("waits_for_data")) or 0.0
    workers = whole(enough.row.get("workers")) or 0
    had = whole(base.row.get("workers"))
    fewer = workers < (had or 0) and waits < WAITS and enough.rate >= ENOUGH * base.rate
    if waited < WAITS and not fewer:
        said = f"the workers that it has are enough: it waits {percent(waited)} of its time for data"
    elif best < ENOUGH * base.rate:
        said = f"no number of workers that was tried is as fast as what it has now: {digits(best)} samples/s at most"
    elif waits >= WAITS:
        said = (
            f"the loader is the limit: with {_number_of_workers(enough.row)}, the best that was tried, a step still waits "
            f"{percent(waits)} of its time for data"
        )
    else:
        are = "is" if workers == 1 else "are"
        said = f"{count(workers, 'data-loader worker')} {are} enough"
    now = max(one.rate for one in (base, *tried) if one is base or whole(one.row.get("workers")) == had)
    if workers == had or enough.rate <= now / ENOUGH:
        return Verdict([said, *failed], [])
    if waited < WAITS:  # all that workers can save is the waiting
        gain = enough.rate / now
        if gain > WORTH:
            said = (
                f"{_number_of_workers(enough.row)}: {gain:.2f} times as fast as now, although it waits only "
                f"{percent(waited)} of its time for data: {_DISTURBED}"
            )
        return Verdict([said, *failed], [])
    why = f"{digits(enough.rate)} samples/s in place of {digits(now)}"
    return Verdict([said, *failed], [Proposal("train.workers", workers, why)])


def _number_of_workers(row: Row) -> str:
    return count(whole(row.get("workers")) or 0, "worker")


def _precision(results: Results, base: _Try) -> Verdict:
    tried = _of(results, "precision")
    plain = next((one for one in tried if precision_of(one.row) == "fp32"), None)
    sentences, faster = [], list[_Try]()
    for one in tried:
        name = precision_of(one.row)
        if one is plain:
            continue
        others = [base] if plain is None or name in _LAYOUTS else [plain]
        named = "now" if others == [base] else "with fp32"
        if plain is not None and name in _LAYOUTS and base.row.get("precision") == "fp32":
            others.append(plain)  # more tries of what it has now
        close = next((other for other in others if not _is_apart(one, other)), None)
        if close is not None:
            sentences.append(
                f"no difference shows between {name} ({_range(one)} samples/s) and "
                f"{named.removeprefix('with ').replace('now', 'what it has now')} ({_range(close)}); longer tries (--seconds) or "
                "an idle machine may show one"
            )
            continue
        sentences.append(f"with {name}, it is {one.rate / others[0].rate:.2f} times as fast as {named}")
        if one.row.get("precision") == name and one.rate >= WORTH * max(
            base.rate, plain.rate if plain else 0
        ):
            faster.append(one)
    for row in _failed(results, "precision"):
        sentences.append(f"with {precision_of(row)}, it does not run: {row.get('why')}")
    if not faster:
        return Verdict(sentences, [])
    best = max(one.rate for one in faster)
    chosen = next(
        one for one in faster if one.rate >= ENOUGH * best
    )  # bf16, which needs no scaler, comes first
    why = f"{chosen.rate / base.rate:.2f} times as fast as now"
    return Verdict(sentences, [Proposal("train.precision", precision_of(chosen.row), why)])


def _rates(one: _Try) -> list[float]:
    """Return the rates of all tries of a setting."""
    rates = one.row.get("rates")
    found = [positive(rate) for rate in rates] if isinstance(rates, list) else []
    return [rate for rate in found if rate is not None] or [one.rate]


def _is_apart(one: _Try, other: _Try) -> bool:
    """Return whether all tries of one setting were faster, or slower, than all of the other: the rest is noise."""
    these, those = _rates(one), _rates(other)
    return min(these) > max(those) or max(these) < min(those)


def _range(one: _Try) -> str:
    rates = _rates(one)
    return f"{digits(min(rates))} to {digits(max(rates))}"


def _scaling(results: Results, base: _Try) -> Verdict:
    """Return what several processes gain, and for how many to ask: the job file's batch is that of all together, and stays."""
    each, kept = _of_several(results, "each"), _of_several(results, "whole")
    sentences, said_of = [], dict[int, str]()
    for number in sorted({*each, *kept}):
        parts = []
        if number in each:
            parts.append(_gained(each[number], base))
        if number in kept and not (number in each and _size(kept[number]) == _size(each[number])):
            parts.append(_gained(kept[number], base))
        said_of[number] = f"{number} processes do " + ", and ".join(parts)
        sentences.append(said_of[number])
    for one in _of(results, "scaling"):
        gpus = whole(one.row.get("gpus"))
        if one.row.get("how") == "dp" and gpus:
            sentences.append(f"DataParallel, one process on {gpus} GPUs, does {_gained(one, base, gpus)}")
        if one.row.get("how") == "fsdp2":
            sentences.append(
                f"FSDP2 in {_processes(one.row)} processes does {_gained(one, base)}{_memory_of(one, each)}"
            )
    for row in _failed(results, "scaling"):
        size = count(whole(row.get("batch_size")) or 0, "sample")
        what = f"{_processes(row)} processes do"
        if row.get("how") == "dp":
            what = f"DataParallel on {row.get('gpus')} GPUs does"
        elif row.get("how") == "fsdp2":
            what = f"FSDP2 in {_processes(row)} processes does"
        sentences.append(f"{what} not run with {size} a step: {row.get('why')}")
    if not said_of:
        return Verdict(sentences, [])
    as_is = max(_that_pay(kept or each, base), default=1)
    larger = max(_that_pay(each, base), default=1)
    on_gpus = results.machine.get("gpus") and base.row.get("device") != "cpu"
    if not on_gpus:
        sentences.append("this was measured on CPUs, and does not tell how many GPUs to ask for")
        return Verdict(sentences, [])
    if larger > as_is:
        sentences.append(
            f"{larger} GPUs are worth what they cost only with train.batch_size: {_size(each[larger])}, which is another training"
        )
    sentences.append(
        f"ask for {count(as_is, 'GPU')}" + ("" if as_is > 1 else ": more are not worth what they cost")
    )
    why = said_of[as_is] if as_is > 1 else said_of[min(said_of)]
    return Verdict(sentences, [Proposal("resources.gpus", as_is, why)])


def _epoch(results: Results, base: _Try) -> Verdict:
    """Return what an epoch takes and costs, on one process and on each number of them."""
    samples = whole(base.row.get("dataset_samples"))
    if not samples:
        return Verdict([], [])
    more = _of_several(results, "whole") or _of_several(results, "each")
    said = []
    for one in (base, *(more[number] for number in sorted(more))):
        seconds = samples / one.rate
        cost = f" ({amount(_processes(one.row) * seconds / 3600)} GPU-hours)" if _on_gpu(base) else ""
        said.append(
            f"{duration(seconds) if seconds >= 60 else f'{seconds:.3g} s'} in {_processes(one.row)} {_word(one)}{cost}"
        )
    return Verdict([f"an epoch of {count(samples, 'sample')} takes {', '.join(said)}"], [])


def _word(one: _Try) -> str:
    return "process" if _processes(one.row) == 1 else "processes"


def _of_several(results: Results, how: str) -> dict[int, _Try]:
    """By their number, the processes that each kept its micro-batch (``each``), or that together kept the batch (``whole``)."""
    tried = (one for one in _of(results, "scaling") if one.row.get("how") == how)
    return {_processes(one.row): one for one in tried if _processes(one.row) > 1}


def _gained(one: _Try, base: _Try, gpus: int | None = None) -> str:
    gain, number = one.rate / base.rate, gpus or _processes(one.row)
    return (
        f"{gain:.2f} times as much as one ({percent(gain / number)} of what they could) with "
        f"{count(_size(one), 'sample')} a step in all{_communication(one.row)}"
    )


def _memory_of(one: _Try, each: Mapping[int, _Try]) -> str:
    """Return what a process of FSDP2 needs, beside one of DDP."""
    own = positive(one.row.get("peak_bytes"))
    other = each.get(_processes(one.row))
    ddp = positive(other.row.get("peak_bytes")) if other is not None else None
    return (
        ""
        if own is None or ddp is None
        else f": memory {size_text(own)} at the peak, with DDP {size_text(ddp)}"
    )


def _communication(row: Row) -> str:
    if "communication" not in row or row.get("how") in ("dp", "fsdp2"):  # of these it is never known
        return ""
    share = positive(row["communication"])
    many = "how much" if share is None else percent(share)
    return f" ({many} of a step is communication{' is unknown' if share is None else ''})"


def _that_pay(tried: Mapping[int, _Try], base: _Try) -> list[int]:
    return [number for number, one in tried.items() if one.rate >= EFFICIENT * number * base.rate]


def _processes(row: Row) -> int:
    return whole(row.get("processes")) or 1
