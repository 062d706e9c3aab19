"""How fast known networks train, beside a bare loop that computes the same, in turns in one process.

    python benchmarks/gpu/speed.py [--tiny] [--json FILE]

GPT-2 (124 million parameters, compiled, with torch's fused attention) and ResNet-50 (channels last), both in bf16;
the images lie in the host's memory, or are JPEG files that worker processes read and cut. The bare loop has the same
network, optimizer and batches, torch's own DataLoader where there are workers, and nothing else. The entrypoint has
its metrics, stop check, hang watch and resumable order of samples on; what a checkpoint costs beside it, stall.py
measures. From files, each turn begins with batches that do not count: those that were loaded in the other's turn.
"""

from __future__ import annotations

import gc
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import common
import torch
from overhead import GOAL, Entrypoint
from step_overhead import interval
from torch.utils.data import DataLoader, TensorDataset


class Case(NamedTuple):
    """A training, and how long each turn of it is: ``skipped`` steps do not count, then ``steps`` do."""

    task: str
    config: dict[str, Any]
    values: dict[str, Any]
    turns: int
    steps: int
    skipped: int = 0
    tokens: int = 1
    """Of a sample."""


def cases(tiny: bool, images: Path) -> dict[str, Case]:
    if tiny:
        small = {"depth": 20, "image": 32, "classes": 8}
        gpt2 = {"size": "tiny", "samples": 64}
        values = {"batch_size": 4, "precision": "bf16"}
        return {
            "gpt2": Case("Gpt2", gpt2, values, 2, 2, tokens=64),
            "resnet from memory": Case("Pictures", {**small, "samples": 32}, values, 2, 2),
            "resnet from JPEG files": Case(
                "Files", {**small, "data": str(images)}, {**values, "workers": 1}, 2, 2
            ),
        }
    gpt2 = {"size": "124M", "vocabulary": 50304, "samples": 20_000}
    images_of = {"precision": "bf16", "channels_last": True}
    return {
        "gpt2": Case(
            "Gpt2", gpt2, {"batch_size": 32, "precision": "bf16", "compile": True}, 16, 10, tokens=1024
        ),
        "resnet from memory": Case(
            "Pictures", {"depth": 50, "samples": 4096}, {"batch_size": 256, **images_of}, 16, 10
        ),
        "resnet from JPEG files": Case(
            "Files",
            {"depth": 50, "data": str(images), "classes": 1000},
            {"batch_size": 64, "workers": 12, **images_of},
            7,
            40,
            35,
        ),
    }


def _draw(job: tuple[Path, int]) -> None:
    """Soft spots of colour under noise. Nothing of torch: this process is a copy of one that has imported it."""
    from PIL import Image

    path, size = job
    whole = (size, size * 3 // 4)
    colours = [Image.effect_noise((24, 18), 120).resize(whole, 3) for _ in range(3)]
    noise = [Image.effect_noise(whole, 24) for _ in range(3)]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.blend(Image.merge("RGB", colours), Image.merge("RGB", noise), 0.3).save(path, quality=90)


def draw(folder: Path, classes: int, each: int, size: int, processes: int) -> int:
    """JPEG files in folders of classes, as those of ImageNet; the mean of their bytes."""
    jobs = [
        (folder / "train" / f"{one:04d}" / f"{number:04d}.jpg", size)
        for one in range(classes)
        for number in range(each)
    ]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        pool.map(_draw, jobs)
    return sum(path.stat().st_size for path, _ in jobs) // len(jobs)


def _batches(dataset: Any, batch: int, workers: int) -> Iterator[Any]:
    pinned = torch.cuda.is_available()
    if isinstance(dataset, TensorDataset):
        while True:
            order = torch.randperm(len(dataset))
            for start in range(0, len(dataset) - batch + 1, batch):
                chosen = order[start : start + batch]
                rows = [each.index_select(0, chosen) for each in dataset.tensors]
                yield [each.pin_memory() for each in rows] if pinned else rows
    loader = DataLoader(
        dataset,
        batch,
        shuffle=True,
        num_workers=workers,
        drop_last=True,
        pin_memory=pinned,
        persistent_workers=workers > 0,
    )
    while True:
        yield from loader


def bare(case: Case) -> Iterator[None]:
    """One step each time it is asked, as one would write it."""
    from slurmgpu.training.settings import Config, parse

    document = common.settings(case.task, case.config, **case.values)
    settings = parse(document)
    cfg, device = Config(settings), common.device()
    task = common.bare_task(case.task)
    model = task.model(cfg).to(device)
    if hasattr(task, "normalized"):
        task.normalized.to(device)
    if settings.channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = task.optimizer(model, cfg)
    called = torch.compile(model) if settings.compile else model
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    workers = settings.workers if isinstance(settings.workers, int) else 0
    for batch in _batches(task.dataset(cfg, "train"), settings.batch_size, workers):
        rows = [each.to(device, non_blocking=True) for each in batch]
        if settings.channels_last:
            rows[0] = rows[0].contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = task.measure(called, rows)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield


def _flops(case: Case) -> float:
    from slurmgpu.training.settings import Config, parse

    found: float = common.bare_task(case.task).flops(
        Config(parse(common.settings(case.task, case.config, **case.values)))
    )
    return found


def compare(case: Case, folder: Path) -> dict[str, Any]:
    from slurmgpu.training.watching.gauges import peak_flops

    document = common.settings(case.task, case.config, **case.values, log_every=10, hang_timeout=1800.0)
    mine, own_steps = Entrypoint(document, folder), bare(case)

    def base(count: int) -> None:
        for _ in range(count):
            next(own_steps)

    asked: dict[str, Callable[[int], None]] = {"bare": base, "slurmgpu": mine.take}
    began = time.perf_counter()
    for take in asked.values():  # compiles, and tries algorithms
        take(max(3, case.steps))
    common.finish()
    first = time.perf_counter() - began
    found: dict[str, list[float]] = {each: [] for each in asked}
    for _ in range(case.turns):
        for each in random.sample(list(asked), len(asked)):
            asked[each](case.skipped)
            common.finish()
            began = time.perf_counter()
            asked[each](case.steps)
            common.finish()
            found[each].append((time.perf_counter() - began) / case.steps)
    mine.end()
    pairs = list(zip(found["slurmgpu"], found["bare"], strict=True))
    usual = {name: statistics.median(seconds) for name, seconds in found.items()}
    batch = case.values["batch_size"]
    rates = {name: batch * case.tokens / seconds for name, seconds in usual.items()}
    result: dict[str, Any] = {
        "batch": batch,
        "step_seconds": usual,
        "tokens_per_second" if case.tokens > 1 else "images_per_second": rates,
        "extra_seconds": interval([own - base for own, base in pairs]),
        "ratio": interval([own / base for own, base in pairs]),
        "turns": case.turns,
        "steps_a_turn": case.steps,
        "seconds_of_the_first_steps": first,
    }
    if torch.cuda.is_available():
        peak = peak_flops(torch.cuda.get_device_name(0), "bf16", False)
        done = {name: _flops(case) * batch / seconds for name, seconds in usual.items()}
        result["mfu"] = None if peak is None else {name: each / peak for name, each in done.items()}
        result["peak_bytes_of_both"] = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    return result


def measure(tiny: bool, folder: Path) -> dict[str, Any]:
    images = folder / "images"
    size = draw(images, 2, 8, 64, 1) if tiny else draw(images, 100, 40, 500, 14)
    result: dict[str, Any] = {"goal": GOAL, "bytes_of_a_jpeg": size}
    for name, case in cases(tiny, images).items():
        try:
            result[name] = compare(case, folder / name.replace(" ", "-"))
        except Exception as error:
            result[name] = {"failed": f"{type(error).__name__}: {error}"[:500]}
        common.keep(result)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    if any("failed" in each for each in result.values() if isinstance(each, dict)):
        result["failed"] = "see the cases"
    return result


if __name__ == "__main__":
    common.main(__doc__, measure)
