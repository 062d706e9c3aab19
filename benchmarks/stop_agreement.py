"""How long a thousand ranks take to agree on a stop: from the signal at one of them until all know the step.

The ranks are threads of a few processes, each with a watch and a connection of its own to one TCP store: what they
send is what ranks on nodes of their own would send, while their processors are two instead of a thousand.

    python benchmarks/stop_agreement.py [--ranks 8,64,512,1000] [--out benchmarks/results/stop_agreement.json]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import socket
import statistics
import sys
import threading
import time
from datetime import timedelta
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from slurmgpu.training.processes.ranks import Ranks
from slurmgpu.training.watching.watch import NEVER, Duties, Watch

_PROCESSES = 4
_STEP = 0.2  # seconds of a step


def _never(_seconds: float) -> NoReturn:
    raise AssertionError("no rank hangs here")


def _rank(rank: int, world: int, ready: Barrier, go: Event, told: list[tuple[float, int]]) -> None:
    watch = Watch(Ranks(rank=rank, world_size=world), 120)
    watch.start(Duties(lambda: float("inf"), _never))
    ready.wait()
    go.wait()
    if rank == world // 2:
        watch.want("SIGUSR1")
    while True:
        time.sleep(_STEP)
        watch.step += 1
        if watch.line != NEVER and watch._stop_at is None:
            until = time.monotonic() + 100
            while watch._stop_at is None and time.monotonic() < until:
                time.sleep(
                    0.1
                )  # a thousand ranks that look every 2 ms, as they do, want more than two processors
        if watch._stop_at is not None:
            told.append((time.time(), watch._stop_at))
            break
    ready.wait()  # the store's connections end together
    watch.close()


def _process(ranks: list[int], world: int, port: int, ready: Barrier, go: Event, answers: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    threading.stack_size(1 << 18)
    told: list[tuple[float, int]] = []
    threads = [threading.Thread(target=_rank, args=(rank, world, ready, go, told)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers.put(told)


def agree(world: int) -> dict[str, object]:
    """One stop of so many ranks."""
    context = multiprocessing.get_context("fork")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ready, go, answers = context.Barrier(world + 1), context.Event(), context.Queue()
    count = min(_PROCESSES, world)
    shares = [list(range(world))[number::count] for number in range(count)]
    processes = [
        context.Process(target=_process, args=(each, world, port, ready, go, answers)) for each in shares
    ]
    for process in processes:
        process.start()
    # The store is this process's own, as that of torchrun or of rank 0 is.
    store = dist.TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=120)
    )  # type: ignore[attr-defined]
    ready.wait(120)
    time.sleep(1)
    began = time.time()
    go.set()
    told: list[tuple[float, int]] = []
    ready.wait(200)
    for _ in processes:
        told += answers.get(timeout=60)
    for process in processes:
        process.join(60)
    del store
    moments = sorted(moment - began for moment, _ in told)
    steps = {step for _, step in told}
    assert len(told) == world, (len(told), world)
    assert len(steps) == 1, steps
    return {
        "ranks": world,
        "last_seconds": moments[-1],
        "median_seconds": statistics.median(moments),
        "step_seconds": _STEP,
    }


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="8,64,512,1000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rows = []
    for world in map(int, arguments.ranks.split(",")):
        for _ in range(arguments.rounds):
            rows.append(agree(world))
            print(rows[-1], file=sys.stderr, flush=True)
    document = {
        "what": "seconds from a signal at one rank until the last rank knows at which step all stop",
        "machine": f"{os.cpu_count()} CPUs, {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_before": os.getloadavg()[0],
        "rounds": rows,
    }
    text = json.dumps(document, indent=1) + "\n"
    if arguments.out:
        arguments.out.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
