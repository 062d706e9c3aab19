"""A training over sizes of its batch, data-loader workers, precisions and processes: each setting tried by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

import torch

from ..precision import can_bf16
from . import machine
from .starting import Place
from .trying import tried

__all__ = ["tries"]

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
            most = min(2, machine.cpus())
        else:  # one process is tried, on its share of the CPUs among those that the job will have on a node
            most = asked.get("tasks") or 1
        self.nodes: int = asked.get("nodes") or 1
        self.processes: list[int] = asked["processes"] or machine.doubled(most)
        each = max(1, machine.cpus() // max(self.processes))
        self.cpus = each
        self.place = Place(
            Path(asked["folder"]), 1, threads=each, suffix=asked.get("suffix") or "", seconds=asked["seconds"]
        )

    def shapes(self) -> list[tuple[int, int]]:
        """Processes in all, and nodes: what is named on one node, and the most of it on 2, 4, ... nodes."""
        most = max(self.processes)
        return [
            *((number, 1) for number in self.processes),
            *((most * nodes, nodes) for nodes in machine.doubled(self.nodes)[1:]),
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
        most = _MOST_ON_A_CPU * machine.cpus() * nodes
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
