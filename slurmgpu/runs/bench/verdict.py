"""The verdict on a training's tries: what it gains from more of everything, and which smaller GPU would do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from slurmgpu.amounts import amount, count, duration, percent, size_text
from slurmgpu.models.cluster import Cluster
from slurmgpu.models.gpu_models import well_known
from slurmgpu.runs.bench.results import Results, Table, digits
from slurmgpu.training.formats.rows import Row, positive, whole

__all__ = ["FULL", "Kind", "Proposal", "Verdict", "judge", "kinds_of", "ratios", "runs", "would_do"]

FULL = "out of memory"
"""Why a try did not run that memory did not suffice for."""
_HEAD_ROOM = 1.3
"""Of what tensors use: the allocator holds more than these."""
_CONTEXT = 1 << 30
"""Bytes: CUDA itself and NCCL's buffers, which torch does not count."""
_SMALLER = 0.9
"""Of the memory that was measured: two GPUs of 80 GB differ a little in what they report."""
_BF16 = (8, 0)
_WAITS = 0.1
"""Share of a step from which on waiting for data is worth more workers."""
_ENOUGH = 0.97
"""Of the best rate: what reaches it with less is as good."""
_WORTH = 1.1
"""A setting that is not so much faster is not worth a change."""
_EFFICIENT = 0.7
"""Of the processes that are paid for, what has to come of them."""
_DISTURBED = "something else slowed down one of the two tries"
_PUBLISHED: Mapping[tuple[str, int], float] = {("dp", 4): 0.7, ("ddp", 4): 0.3}
"""A textbook's figure for 4 GPUs and a batch of 1,024: the time over that of one GPU. It is known here without the network
and the GPUs that it was measured with."""
_PUBLISHED_NOTE = (
    "published: a textbook's round figures for 4 GPUs and a batch of 1,024, network and GPUs not known"
)
_NAMES = {"dp": "DataParallel", "ddp": "DDP", "fsdp2": "FSDP2"}
_LAYOUTS = ("compile", "channels_last")


class Kind(NamedTuple):
    """A type of GPU of the cluster."""

    name: str
    bytes: float
    doubt: str | None
    """Why its memory is a guess; None: it is stated."""
    bf16: bool | None
    """True if it computes in bf16; None: not known."""


def kinds_of(cluster: Cluster) -> list[Kind]:
    """Return the types of GPU that jobs can get, by a profile: of a type without stated memory, that of the model as sold."""
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


def would_do(kinds: Sequence[Kind], peak: float, total: float, *, bf16: bool) -> str | None:
    """Return a sentence that names the smallest type that holds the peak with head room; None where there is none.

    ``peak`` and ``total``: bytes of tensors at the peak of one process, and of the GPU that was measured. ``bf16``: the training
    computes in it. A type whose memory is only guessed is named where no other suffices, and then as a hint.
    """
    enough = [
        one
        for one in sorted(kinds, key=lambda one: (one.doubt is not None, one.bytes, one.name))
        if _HEAD_ROOM * peak + _CONTEXT <= one.bytes < _SMALLER * total and not (bf16 and one.bf16 is False)
    ]
    if not enough:
        return None
    memory, best = f"memory {size_text(peak)} of {size_text(total)}", enough[0]
    if best.doubt is None:
        return f"{memory}: a smaller GPU would do, as {best.name} ({size_text(best.bytes)})"
    has = f"if it has {size_text(best.bytes)}, which is a guess ({best.doubt})"
    return f"{memory}: a smaller GPU may do, as {best.name}, {has}"


class _Try(NamedTuple):
    """A setting that ran."""

    row: Row
    rate: float
    rates: list[float]
    """Those of all its tries."""
    size: int
    """Samples at a time, of all processes together."""
    processes: int
    workers: int | None
    waits: float
    """Share of a step."""
    on_gpu: bool

    @property
    def range(self) -> str:
        return f"{digits(min(self.rates))} to {digits(max(self.rates))}"


def _tried(results: Results, what: str) -> list[_Try]:
    found = []
    for row, rate in _rates(results, what):
        if rate is not None:
            all_tries = row.get("rates")
            rates = [positive(one) for one in all_tries] if isinstance(all_tries, list) else []
            known = [one for one in rates if one is not None] or [rate]
            size, processes = whole(row.get("batch_size")) or 0, whole(row.get("processes")) or 1
            waits = positive(row.get("waits_for_data")) or 0.0
            on_gpu = row.get("device") == "cuda"
            found.append(_Try(row, rate, known, size, processes, whole(row.get("workers")), waits, on_gpu))
    return found


def _rates(results: Results, what: str) -> list[tuple[Row, float | None]]:
    return [(row, positive(row.get("samples_per_second")) or None) for row in results.of(what)]


def runs(results: Results) -> bool:
    """Return True if the training could be tried as it is; without that, nothing follows."""
    return bool(_tried(results, "base"))


def ratios(results: Results) -> Iterator[Table]:
    """Yield the tables of those parts that were tried."""
    base = next((rate for _, rate in _rates(results, "base")), None)
    found: dict[tuple[str, int], tuple[str, float | None]] = {}
    for row, rate in _rates(results, "scaling"):
        how = {"each": "ddp", "dp": "dp", "fsdp2": "fsdp2"}.get(str(row.get("how")))
        number = whole(row.get("gpus" if how == "dp" else "processes"))
        if how is not None and number is not None and number > 1:
            found[how, number] = (_way(how, number, whole(row.get("nodes")) or 1), rate)
    if base is not None and found:
        lines: list[tuple[str, ...]] = [("1 process", "100 %", "100 %")]
        for how, number in sorted({*found, *_PUBLISHED}, key=lambda at: (at[1], list(_NAMES).index(at[0]))):
            name, rate = found.get((how, number), (_way(how, number, 1), None))
            published = _PUBLISHED.get((how, number))
            here = "-" if rate is None else percent(base / rate)
            lines.append((name, here, "-" if published is None else f"about {percent(published)}"))
        title = "Time for as many samples, over that of one process; the micro-batch of each is kept"
        yield Table("scaling", title, ("How", "Here", "Published"), lines, 1, _PUBLISHED_NOTE)
    # The layouts are tried with the job's own precision: they have no place beside fp32.
    rates = [
        (_precision_of(row), rate)
        for row, rate in _rates(results, "precision")
        if not any(key in row for key in _LAYOUTS)
    ]
    plain = next((rate for name, rate in rates if name == "fp32"), None)
    if plain is not None:
        cells = [(name, "failed" if rate is None else f"{rate / plain:.2f}") for name, rate in rates]
        head = ("Precision", "Times as fast")
        yield Table("precision", "Samples/s, over those with fp32", head, cells, 1)


def _way(how: str, number: int, nodes: int) -> str:
    if how == "dp":
        return f"{_NAMES[how]}, {number} GPUs"
    return f"{_NAMES[how]}, {number} processes{'' if nodes == 1 else f' on {nodes} nodes'}"


def _precision_of(row: Row) -> str:
    """Return which precision or layout was tried: `fp32`, `TF32`, `bf16`, `compile`."""
    layout = next((key for key in _LAYOUTS if key in row), None)
    return layout or ("TF32" if row.get("tf32") is True else str(row.get("precision")))


class Proposal(NamedTuple):
    """A value of the job file, and why."""

    key: str
    value: str | int
    why: str


class Verdict(NamedTuple):
    """The verdict in words, and its changes to the job file."""

    sentences: list[str]
    proposals: list[Proposal]


def judge(results: Results) -> Verdict:
    """Return the verdict on what was tried; a part that was not tried is not spoken of."""
    base = next(iter(_tried(results, "base")), None)
    if base is None:
        failed = next(iter(results.of("base")), None)
        why = (
            "nothing was tried" if failed is None else f"the training does not run here: {failed.get('why')}"
        )
        return Verdict([why], [])
    sizes = [positive(one.get("bytes")) for one in results.gpus]
    memory = min((one for one in sizes if one is not None), default=None)
    peak = positive(base.row.get("peak_bytes"))
    step, waits = positive(base.row.get("step_seconds")), positive(base.row.get("waits_for_data"))
    said = f"one process does {digits(base.rate)} samples/s with {count(base.size, 'sample')} at a time"
    said += "" if step is None else f": {step:.3g} s a step"
    said += "" if waits is None else f", of which it waits {percent(waits)} for data"
    if peak is not None:
        of = f" of the {size_text(memory)}" if memory is not None and base.on_gpu else ""
        said += f"; {size_text(peak)}{of} of memory at the peak"
    found = Verdict([said], [])
    for judge_part in (_judge_batches, _judge_workers, _judge_precisions, _judge_scaling, _judge_epoch):
        for one in judge_part(results, base):
            if isinstance(one, str):
                found.sentences.append(one)
            else:
                found.proposals.append(one)
    if peak is not None and memory is not None and base.on_gpu:
        proposed = next((one.value for one in found.proposals if one.key == "train.precision"), None)
        bf16 = (proposed or base.row.get("precision")) == "bf16"
        smaller = would_do(list(_kinds_in(results.machine.get("gpu_types"))), peak, memory, bf16=bf16)
        found.sentences.extend([smaller] if smaller is not None else [])
    return found


def _kinds_in(value: object) -> Iterator[Kind]:
    """Yield the types of GPU in the row that a bench wrote; what is none is passed over."""
    for one in value if isinstance(value, list) else []:
        if isinstance(one, Mapping) and (memory := positive(one.get("bytes"))) is not None:
            doubt, bf16 = one.get("doubt"), one.get("bf16")
            doubt = None if doubt is None else str(doubt)
            yield Kind(str(one.get("name")), memory, doubt, bf16 if isinstance(bf16, bool) else None)


def _failed(results: Results, what: str) -> Iterator[tuple[Row, str, str]]:
    """Yield the tries that did not run, with the reason and the samples at a time."""
    for row in results.of(what):
        if "why" in row:
            yield row, str(row["why"]), count(whole(row.get("batch_size")) or 0, "sample")


def _judge_batches(results: Results, base: _Try) -> Iterator[str | Proposal]:
    tried = _tried(results, "batch")
    best = max(one.rate for one in (*tried, base))
    enough = min((one for one in (*tried, base) if one.rate >= _ENOUGH * best), key=lambda one: one.size)
    larger = [one for one in tried if one.size > base.size]

    def compared(one: _Try) -> str:
        are = "is" if one.size == 1 else "are"
        return f"{count(one.size, 'sample')} at a time {are} {one.rate / base.rate:.2f} times as fast as {base.size}"

    if enough.rate > _WORTH * base.rate:
        # A smaller one has more steps for as many samples, and cannot be so much faster.
        yield compared(enough) + (f": {_DISTURBED}" if enough.size < base.size else "")
    elif larger:
        yield f"larger micro-batches bring little: {compared(max(larger, key=lambda one: one.rate))}"
    for _, why, size in _failed(results, "batch"):
        yield (
            f"memory is full with {size} at a time"
            if why == FULL
            else f"with {size} at a time it does not run: {why}"
        )


def _judge_workers(results: Results, base: _Try) -> Iterator[str | Proposal]:
    tried = _tried(results, "workers")
    if tried:
        best = max(one.rate for one in tried)
        fast = [one for one in tried if one.rate >= _ENOUGH * best]
        enough = min(fast, key=lambda one: one.workers or 0)
        workers, has = enough.workers or 0, base.workers
        now = max(one.rate for one in (base, *tried) if one is base or one.workers == has)
        gains = workers != has and enough.rate > now / _ENOUGH
        waits = f"it waits {percent(base.waits)} of its time for data"
        fewer = workers < (has or 0) and enough.waits < _WAITS and enough.rate >= _ENOUGH * base.rate
        if (
            gains and base.waits < _WAITS and enough.rate / now > _WORTH
        ):  # all that workers can save is the waiting
            only = waits.replace("waits", "waits only")
            yield (
                f"{count(workers, 'worker')}: {enough.rate / now:.2f} times as fast as now, although {only}: {_DISTURBED}"
            )
        elif base.waits < _WAITS and not fewer:
            yield f"the workers that it has are enough: {waits}"
        elif best < _ENOUGH * base.rate:
            yield f"no number of workers that was tried is as fast as what it has now: {digits(best)} samples/s at most"
        elif enough.waits >= _WAITS:
            yield (
                f"the loader is the limit: with {count(workers, 'worker')}, the best that was tried, a step still waits "
                f"{percent(enough.waits)} of its time for data"
            )
        else:
            yield f"{count(workers, 'data-loader worker')} {'is' if workers == 1 else 'are'} enough"
        if gains and base.waits >= _WAITS:
            why = f"{digits(enough.rate)} samples/s in place of {digits(now)}"
            yield Proposal("train.workers", workers, why)
    for row, why, _ in _failed(results, "workers"):
        yield f"with {count(whole(row.get('workers')) or 0, 'worker')} it does not run: {why}"


def _judge_precisions(results: Results, base: _Try) -> Iterator[str | Proposal]:
    tried = _tried(results, "precision")
    plain = next((one for one in tried if _precision_of(one.row) == "fp32"), None)
    faster = list[_Try]()
    for one in tried:
        name = _precision_of(one.row)
        if one is plain:
            continue
        by_now = plain is None or name in _LAYOUTS
        others = [base] if plain is None or by_now else [plain]
        if plain is not None and by_now and base.row.get("precision") == "fp32":
            others.append(plain)  # more tries of what it has now
        # Only what all tries of one setting were faster than all of the other, or slower, is no noise.
        close = (
            other
            for other in others
            if not (min(one.rates) > max(other.rates) or max(one.rates) < min(other.rates))
        )
        if (alike := next(close, None)) is not None:
            yield (
                f"no difference shows between {name} ({one.range} samples/s) and "
                f"{'what it has now' if by_now else 'fp32'} ({alike.range}); longer tries (--seconds) or "
                "an idle machine may show one"
            )
            continue
        yield f"with {name}, it is {one.rate / others[0].rate:.2f} times as fast as {'now' if by_now else 'with fp32'}"
        usual = max(base.rate, plain.rate if plain else 0)
        if one.row.get("precision") == name and one.rate >= _WORTH * usual:
            faster.append(one)
    for row, why, _ in _failed(results, "precision"):
        yield f"with {_precision_of(row)}, it does not run: {why}"
    if faster:
        best = max(one.rate for one in faster)
        # bf16, which needs no scaler, comes first.
        chosen = next(one for one in faster if one.rate >= _ENOUGH * best)
        why = f"{chosen.rate / base.rate:.2f} times as fast as now"
        yield Proposal("train.precision", _precision_of(chosen.row), why)


def _of_several(results: Results, how: str) -> dict[int, _Try]:
    """Return, by their number, the processes that each kept its micro-batch (``each``), or together the batch (``whole``)."""
    tried = _tried(results, "scaling")
    return {one.processes: one for one in tried if one.row.get("how") == how and one.processes > 1}


def _judge_scaling(results: Results, base: _Try) -> Iterator[str | Proposal]:
    """Yield what several processes gain, and for how many to ask: the job file's batch is that of all together, and stays."""
    each, kept = _of_several(results, "each"), _of_several(results, "whole")

    def gained(one: _Try, gpus: int | None = None) -> str:
        gain, number = one.rate / base.rate, gpus or one.processes
        words = f"{gain:.2f} times as much as one ({percent(gain / number)} of what they could) with "
        words += f"{count(one.size, 'sample')} a step in all"
        if "communication" not in one.row or one.row.get("how") in (
            "dp",
            "fsdp2",
        ):  # of these it is never known
            return words
        share = positive(one.row["communication"])
        if share is None:
            return f"{words} (how much of a step is communication is unknown)"
        return f"{words} ({percent(share)} of a step is communication)"

    gains = dict[int, str]()
    for number in sorted({*each, *kept}):
        ways = [each[number]] if number in each else []
        if number in kept and not (ways and kept[number].size == ways[0].size):
            ways.append(kept[number])
        gains[number] = f"{number} processes do " + ", and ".join(map(gained, ways))
        yield gains[number]
    for one in _tried(results, "scaling"):
        gpus, number = whole(one.row.get("gpus")), one.processes
        if one.row.get("how") == "dp" and gpus:
            yield f"DataParallel, one process on {gpus} GPUs, does {gained(one, gpus)}"
        if one.row.get("how") == "fsdp2":
            own = positive(one.row.get("peak_bytes"))
            ddp = positive(each[number].row.get("peak_bytes")) if number in each else None
            memory = (
                ""
                if own is None or ddp is None
                else f": memory {size_text(own)} at the peak, with DDP {size_text(ddp)}"
            )
            yield f"FSDP2 in {number} processes does {gained(one)}{memory}"
    for row, why, size in _failed(results, "scaling"):
        number = whole(row.get("processes")) or 1
        ways_in_words = {
            "dp": f"DataParallel on {row.get('gpus')} GPUs does",
            "fsdp2": f"FSDP2 in {number} processes does",
        }
        what = ways_in_words.get(str(row.get("how")), f"{number} processes do")
        yield f"{what} not run with {size} a step: {why}"
    if not gains:
        return

    def most_that_pay(tried: Mapping[int, _Try]) -> int:
        return max((n for n, one in tried.items() if one.rate >= _EFFICIENT * n * base.rate), default=1)

    if not results.machine.get("gpus") or base.row.get("device") == "cpu":
        yield "this was measured on CPUs, and does not tell how many GPUs to ask for"
        return
    as_is, larger = most_that_pay(kept or each), most_that_pay(each)
    if larger > as_is:
        yield f"{larger} GPUs are worth what they cost only with train.batch_size: {each[larger].size}, which is another training"
    yield f"ask for {count(as_is, 'GPU')}" + ("" if as_is > 1 else ": more are not worth what they cost")
    yield Proposal("resources.gpus", as_is, gains[as_is if as_is > 1 else min(gains)])


def _judge_epoch(results: Results, base: _Try) -> Iterator[str | Proposal]:
    """Yield what an epoch takes and costs, on one process and on each number of them."""
    samples = whole(base.row.get("dataset_samples"))
    if not samples:
        return
    more = _of_several(results, "whole") or _of_several(results, "each")
    said = []
    for one in (base, *(more[number] for number in sorted(more))):
        seconds = samples / one.rate
        time = duration(seconds) if seconds >= 60 else f"{seconds:.3g} s"
        cost = f" ({amount(one.processes * seconds / 3600)} GPU-hours)" if base.on_gpu else ""
        said.append(f"{time} in {one.processes} {'process' if one.processes == 1 else 'processes'}{cost}")
    yield f"an epoch of {count(samples, 'sample')} takes {', '.join(said)}"
