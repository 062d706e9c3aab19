"""A training tried with other batches, workers, precisions and numbers of processes, for a while each."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import torch

from ..data import auto_workers
from ..formats.metrics import METRICS_FILE, METRICS_SCHEMA, metrics_rows
from ..formats.rows import rows_in
from ..formats.settings import TRAIN_SCHEMA
from ..precision import can_bf16
from ..step import Step
from .starting import Place, end, run_folder, start
from .timing import cpus, doubled

__all__ = ["APART", "ApartStep", "counted", "summed", "tried", "tries"]


_LOOK = 0.2
_HARDLY_WAITS = 0.05
_MOST_STEPS = 1_000_000
_MOST_STEPS_A_SECOND = 10_000
# Not what is measured, or what would end it.
_WITHOUT: Mapping[str, object] = {
    "evaluate_every": None, "evaluate_steps": None, "best": None,
    "early_stop": None, "checkpoint_every": 1 << 40, "checkpoint_steps": None, "checkpoint_shared_steps": None,
    "checkpoint_node_folder": None, "resume": False, "sanity": False,
    "track": [], "profile": False, "log_every": 1, "hang_timeout": None,
}  # fmt: skip
_FULL = re.compile(
    r"out of memory|can't allocate memory|not enough memory|bad_alloc|Cannot allocate memory|MemoryError"
)
_MOST_READ = 1 << 20
APART = "apart"
"""A file in the run directory: from there on, the processes have exchanged nothing."""
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)


class _Ended(NamedTuple):
    """The exit codes of those processes that ended by themselves; none: the next step was not done in time."""

    codes: list[int]


def tried(settings: Mapping[str, Any], place: Place, *, apart: bool = False) -> dict[str, Any]:
    """Return what a training with these settings does a second, and where its steps' time goes; ``why`` where it does not run.

    Rates are those of all processes together; times and memory those of rank 0, as ``metrics.jsonl`` has them. ``apart``: the
    processes exchange no gradients, and ``apart`` of what is found says whether they could be kept from it.
    """
    with run_folder(place) as run:
        # As many steps as no try takes, and not more: some schedules make a list of all.
        steps = max(_MOST_STEPS, int(_MOST_STEPS_A_SECOND * place.seconds))
        document = {"schema": TRAIN_SCHEMA, **settings, **_WITHOUT, "epochs": steps, "max_steps": steps}
        Path(run, "train.json").write_text(json.dumps(document), encoding="utf-8")
        said = Path(run, "said")
        variables = {"SLURMGPU_APART": "1"} if apart else {}
        workers = _loader_workers(settings, place)
        with said.open("wb") as file:
            started = start(__package__.rpartition(".")[0], run, place, file.fileno(), variables)
            try:
                rows = _watched(started, Path(run, METRICS_FILE), place, max(1, workers))
            finally:
                end(started, place)
        found: dict[str, Any] = {
            "processes": place.processes, "nodes": place.nodes, "threads": place.threads, "workers": workers,
            "dataset_samples": _samples(Path(run, METRICS_FILE)),
            **({"apart": Path(run, APART).exists()} if apart else {}),
        }  # fmt: skip
        if isinstance(rows, _Ended):
            return {**found, "why": _why(_end_of(said), rows)}
        return {**found, **summed(rows)}


def _watched(
    started: list[subprocess.Popen[bytes]], metrics: Path, place: Place, each_round: int
) -> Union[list[dict[str, Any]], _Ended]:
    """Return the ``train`` lines that count; or how the processes ended before these were there."""
    ends: Optional[float] = None
    first, moved = 0, time.monotonic()
    rows: list[dict[str, Any]] = []
    lines = _Lines(metrics)
    while True:
        time.sleep(_LOOK)
        fresh = lines.more()
        rows += fresh
        gone = [each for each in started if each.poll() is not None]
        if gone:
            if first and not any(each.returncode for each in gone):
                return rows[first:] or rows[-1:]  # it took all of its steps: these will do
            return _Ended([each.returncode for each in gone])
        now = time.monotonic()
        moved = now if fresh else moved
        if now - moved > place.patience:
            return _Ended([])
        if ends is None:
            if len(rows) >= 3:  # the first line has the loader's start; what warms up is over after two more
                first, ends = len(rows), now + place.seconds
        elif now >= ends:
            enough = counted(rows[first:], each_round, place.seconds)
            if enough:
                return enough


def _loader_workers(settings: Mapping[str, Any], place: Place) -> int:
    """Return the loader's workers of each process, also where the settings leave them to us."""
    workers = settings.get("workers", "auto")
    if workers == "auto":
        on_cpu = settings.get("device") == "cpu" or not torch.cuda.is_available()
        workers = 0 if on_cpu else auto_workers(cpus() // (place.processes // place.nodes))
    return int(workers)


def counted(rows: list[dict[str, Any]], each_round: int, seconds: float) -> list[dict[str, Any]]:
    """Those lines that tell the rate; empty as long as too few are there.

    A step that waits for the loader waits for a whole round of its workers, whose other batches then lie ready: of such steps,
    whole rounds count.
    """
    total = sum(row["step_seconds"] for row in rows)
    waited = sum(row["data_wait_seconds"] for row in rows)
    if total >= seconds / 2 and waited < _HARDLY_WAITS * total:
        return rows
    return rows[len(rows) % each_round :]


class _Lines:
    """The lines of one kind of a file that grows: each is read once, for a short step writes thousands while others are timed."""

    def __init__(self, metrics: Path, kind: str = "train") -> None:
        self._metrics, self._kind, self._at = metrics, kind, 0

    def more(self) -> list[dict[str, Any]]:
        """Those that came since the last call; the last line may still be being written."""
        try:
            with self._metrics.open("rb") as file:
                file.seek(self._at)
                text = file.read()
        except OSError:
            return []
        text = text[: text.rfind(b"\n") + 1]
        self._at += len(text)
        rows = metrics_rows(rows_in(text, METRICS_SCHEMA))
        return [dict(row.values) for row in rows if row.kind == self._kind]


def _samples(metrics: Path) -> Optional[int]:
    """Samples of an epoch; None where the training did not come so far, or reads a stream that does not say."""
    return next((row.get("dataset_samples") for row in _Lines(metrics, "start").more()), None)


def _end_of(said: Path) -> str:
    """Return the last of what the processes printed: some print without end."""
    with said.open("rb") as file:
        file.seek(max(0, said.stat().st_size - _MOST_READ))
        return file.read().decode(errors="replace")


def _why(said: str, ended: _Ended) -> str:
    if not ended.codes:
        return "no step was done in time"
    error = _error(said)
    if _FULL.search(said) or (not error and any(code in _KILLED for code in ended.codes)):
        return "out of memory"
    return error or f"the training ended with exit code {ended.codes[0]}"


def _error(said: str) -> str:
    """Return the last line that tells of an error."""
    lines = [line.strip() for line in said.splitlines() if re.search(r"error|Error|refused", line)]
    return lines[-1][:300] if lines else ""


def summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the lines come to: rates a second, times in seconds for a mean step, waits as a share of the time."""
    steps = [row["step_seconds"] for row in rows]
    total = sum(steps)
    found: dict[str, Any] = {
        "steps": len(steps),
        "step_seconds": total / len(steps),
        "samples_per_second": sum(row["samples_per_second"] * row["step_seconds"] for row in rows) / total,
        "waits_for_data": sum(row["data_wait_seconds"] for row in rows) / total,
        "peak_bytes": max(row["peak_memory_bytes"] for row in rows),
    }
    busy = [row["gpu_utilization"] for row in rows if row.get("gpu_utilization") is not None]
    if busy:
        found["gpu_busy"] = sum(busy) / len(busy)
    return found


_GAIN = 1.03
"""A batch twice as large that does not do so much more in the same time: larger ones will not, either."""
_MOST_SIZES = 8
_MOST_WORKERS = 16
_NOISE = 0.05
"""Of a step: by so much two tries of the same differ on a quiet machine."""
_MOST_ON_A_CPU = 8
"""Processes: more tell nothing, and fill the memory."""


class _Bench:
    """The training that is tried. ``samples``: those that one process takes at a time."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self.train = dict(asked["train"])
        self.samples: int = asked["samples"]
        self.batch: int = asked["batch"]
        self.gpu = torch.cuda.is_available() and self.train.get("device") != "cpu"
        if self.gpu:
            most = torch.cuda.device_count()
        elif "scaling" in asked["parts"]:
            most = min(2, cpus())
        else:  # one process is tried, on its share of the CPUs among those that the job will have on a node
            most = asked.get("tasks") or 1
        self.nodes: int = asked.get("nodes") or 1
        self.processes: list[int] = asked["processes"] or doubled(most)
        each = max(1, cpus() // max(self.processes))
        self.cpus = each
        self.place = Place(
            Path(asked["folder"]), 1, threads=each, suffix=asked.get("suffix") or "", seconds=asked["seconds"]
        )

    def shapes(self) -> list[tuple[int, int]]:
        """Processes in all, and nodes: what is named on one node, and the most of it on 2, 4, ... nodes."""
        most = max(self.processes)
        return [
            *((number, 1) for number in self.processes),
            *((most * nodes, nodes) for nodes in doubled(self.nodes)[1:]),
        ]

    def one(
        self,
        what: str,
        processes: int = 1,
        nodes: int = 1,
        gpus: Optional[int] = None,
        apart: bool = False,
        **changed: Any,
    ) -> dict[str, Any]:
        """One try: the job's own settings, with a batch of its own, and what is changed.

        A process has one GPU, and several are DDP's, also of a job whose strategy is for one process. ``apart``: they exchange
        no gradients.
        """
        named = {"batch_size": self.samples, "accumulate": 1, "micro_batch": None, **changed}
        place = self.place._replace(processes=processes, nodes=nodes, gpus=gpus)
        most = _MOST_ON_A_CPU * cpus() * nodes
        if not self.gpu and processes > most:
            why = f"on this machine, {most} processes are the most that are tried"
            return {"what": what, **named, "processes": processes, "nodes": nodes, "why": why}
        found = tried({**self.train, "strategy": "auto", **named}, place, apart=apart)
        return {"what": what, **named, **found}


def tries(asked: Mapping[str, Any], say: Any) -> Iterator[dict[str, Any]]:
    """Yield a row for each try; ``parts`` says which are made: base, batch, workers, precision, scaling."""
    bench = _Bench(asked)
    parts = asked["parts"]
    say("the training as it is, in one process")
    as_is = {"device": "cuda" if bench.gpu else "cpu", "precision": bench.train.get("precision", "fp32")}
    base = {**bench.one("base"), **as_is}
    yield base
    if "why" in base:
        return  # it would not run otherwise, either
    if "batch" in parts:
        yield from _batches(bench, base, say)
    if "workers" in parts:
        yield from _workers(bench, say)
    if "precision" in parts:
        yield from _precisions(bench, say)
    if "scaling" in parts:
        yield from _scaling(bench, base, say)
        yield from _data_parallel(bench, say)
        yield from _sharded(bench, say)


def _batches(bench: _Bench, base: Mapping[str, Any], say: Any) -> Iterator[dict[str, Any]]:
    for size in (bench.samples // 4, bench.samples // 2):
        if size:
            say(f"{size} samples at a time")
            yield bench.one("batch", batch_size=size)
    rate, size = base["samples_per_second"], bench.samples
    for _ in range(_MOST_SIZES):
        size *= 2
        say(f"{size} samples at a time")
        row = bench.one("batch", batch_size=size)
        yield row
        if "why" in row or row["samples_per_second"] < _GAIN * rate:
            return
        rate = row["samples_per_second"]


def _workers(bench: _Bench, say: Any) -> Iterator[dict[str, Any]]:
    number = 0
    while number <= min(bench.cpus, _MOST_WORKERS):
        say(f"{number} data-loader worker{'' if number == 1 else 's'}")
        yield bench.one("workers", workers=number)
        number = max(1, 2 * number)


_ROUNDS, _STEADY = 3, 1.05
"""Rounds of tries at most, and how far those of one setting may lie apart for two rounds to do."""


def _precisions(bench: _Bench, say: Any) -> Iterator[dict[str, Any]]:
    settings: list[dict[str, Any]] = [{"precision": "fp32", "tf32": False}]
    if bench.gpu:
        settings.append({"precision": "fp32", "tf32": True})
    if not bench.gpu or can_bf16(torch.device("cuda", 0)):
        settings.append({"precision": "bf16"})
    if bench.gpu:
        settings.append({"precision": "fp16"})
    settings += [{name: True} for name in ("channels_last", "compile") if not bench.train.get(name)]
    rows: list[list[dict[str, Any]]] = [[] for _ in settings]
    for number in range(_ROUNDS):
        for one, made in zip(settings, rows):
            if not any("why" in row for row in made):
                say(", ".join(f"{name} {value}" for name, value in one.items()) + f", round {number + 1}")
                made.append(bench.one("precision", **one))
        rates = [[row["samples_per_second"] for row in made if "why" not in row] for made in rows]
        if number and all(max(each) <= _STEADY * min(each) for each in rates if each):
            break
    for made in rows:
        failed = next((row for row in made if "why" in row), None)
        made.sort(key=lambda row: row.get("samples_per_second", 0.0))
        rates_of = [row.get("samples_per_second") for row in made]
        yield failed or {**made[len(made) // 2], "rates": rates_of}
    if bench.gpu and {"precision": "bf16"} not in settings:
        yield {"what": "precision", "precision": "bf16", "why": "this GPU does not compute in bf16"}


def _data_parallel(bench: _Bench, say: Any) -> Iterator[dict[str, Any]]:
    """One process that spreads each batch over several GPUs of a node, the micro-batch of each kept."""
    if not bench.gpu:
        return
    for gpus in bench.processes:
        if 1 < gpus <= torch.cuda.device_count():
            size = bench.samples * gpus
            say(f"DataParallel on {gpus} GPUs, {size} samples a step")
            row = bench.one("scaling", gpus=gpus, strategy="dp", batch_size=size)
            yield {**row, "how": "dp", "gpus": gpus, "communication": None}


def _sharded(bench: _Bench, say: Any) -> Iterator[dict[str, Any]]:
    """Processes that each keep a piece of the model (FSDP2), the micro-batch of each kept."""
    for number, nodes in bench.shapes():
        if number > 1:
            size = bench.samples * number
            say(
                f"FSDP2 in {number} processes{'' if nodes == 1 else f' on {nodes} nodes'}, {size} samples a step"
            )
            row = bench.one("scaling", number, nodes, strategy="fsdp2", batch_size=size)
            yield {**row, "how": "fsdp2", "communication": None}


def _scaling(bench: _Bench, base: Mapping[str, Any], say: Any) -> Iterator[dict[str, Any]]:
    for number, nodes in bench.shapes():
        each = bench.samples * number
        whole = bench.batch if bench.batch % number == 0 else None
        tried = {bench.samples: base} if number == 1 else {}
        for how, size in (("each", each), ("whole", whole)):
            if size is None:
                continue
            if size not in tried:
                on = "" if nodes == 1 else f" on {nodes} nodes"
                say(f"{number} process{'' if number == 1 else 'es'}{on}, {size} samples a step")
                row = bench.one("scaling", number, nodes, batch_size=size)
                if number > 1 and "why" not in row:
                    say(f"the same without the exchange of gradients{on}")
                    row.update(
                        _exchange(row, bench.one("scaling", number, nodes, apart=True, batch_size=size))
                    )
                tried[size] = row
            yield {**tried[size], "what": "scaling", "how": how}


def _exchange(row: Mapping[str, Any], apart: Mapping[str, Any]) -> dict[str, Any]:
    """Return the share of a step that the exchange of gradients takes.

    None where the training could not be kept from it, or where a step took longer without it: others use the machine.
    """
    seconds = apart.get("step_seconds") if apart.get("apart") else None
    share = None if seconds is None else 1 - seconds / row["step_seconds"]
    share = None if share is None or share < -_NOISE else max(0.0, share)
    return {"step_seconds_apart": seconds, "communication": share}


_TOGETHER = 2
"""Steps that exchange: DDP sets up its buckets in the first ones, and with a static graph it must (pytorch's issue 143580)."""


class ApartStep(Step):
    """A step as it would be if the exchange of gradients took no time."""

    _taken = 0

    def take(self, size: int) -> None:
        """One step, over this process's own share of ``size`` samples from the third on."""
        if self._ddp is not None and self._taken == _TOGETHER:
            self._ddp.require_backward_grad_sync = False  # as in its no_sync(), and for good
            (self.session.run_dir / APART).touch()
        self._taken += 1
        super().take(size)
