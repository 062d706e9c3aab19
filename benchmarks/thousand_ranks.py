"""What each rank asks of the file system and of the others: for a start, a save, a resume, and a stop that all agree on.

Counted in processes that talk over gloo (1, 2, 4, 8), and with threads in place of processes up to 1,024 ranks. Both run the
session of a training as it is: its lock, its saves and its way back; in the threads' case the collectives and the store are
stand-ins, which take what the real ones take. With ``--fan 2`` eight ranks have as many levels of folders as 2**18 have with
64, so the formula is held against real processes, too.

    python benchmarks/thousand_ranks.py [--out benchmarks/results/thousand_ranks.json]
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from slurmgpu.training import files, session
from slurmgpu.training.processes import group as groups
from slurmgpu.training.processes import ranks as places
from slurmgpu.training.processes import tree
from slurmgpu.training.saving.pieces import Owned
from slurmgpu.training.saving.saver import Saving
from slurmgpu.training.watching.console import Console

PER_NODE = 8
PHASES = ("start", "trial", "save", "agreement", "resume")
_CALLS = {
    "stat": (os, ("stat", "lstat")),
    "mkdir": (os, ("mkdir",)),
    "rename": (os, ("rename", "replace")),
    "list": (os, ("scandir", "listdir")),
    "sync": (os, ("fsync",)),
    "unlink": (os, ("unlink", "remove")),
    "rmdir": (os, ("rmdir",)),
}
_TIMEOUT = 600.0
OPERATIONS = ("open", *_CALLS)


_OWN, _COMMON, _KEPT = 2, 2, 2  # files of each rank, files of all together, checkpoints that stay


def formula(rank: int, world: int, fan: int) -> dict[str, dict[str, int]]:
    """What a rank does in each phase, as docs/training.md has it: exact numbers, and at most for mkdir and stat.

    Nothing in it grows with ``world`` but the number of levels, which is its logarithm to the base ``fan``.
    """
    spans = tree.Tree(rank, world, fan).spans
    *folders, _ = spans
    levels = len(folders)
    leads = [span for span in spans if rank % span == 0]
    heard = sum(len(tree.Tree(rank, world, fan).heard(span)) for span in leads)
    first, node = int(rank == 0), min(PER_NODE, world)
    indexes = sum(span in folders for span in leads)
    written = _OWN + _COMMON * first + indexes
    speakers = tree.Tree(rank // fan, -(-world // fan), fan)
    removed = 0  # folders of an old checkpoint
    gone = 0  # files in them
    again = 0  # messages about it
    if levels and rank % fan == 0:
        removed = indexes
        gone = _OWN * min(fan, world - rank) + indexes
        others = sum(len(speakers.heard(span)) for span in speakers.spans if speakers.rank % span == 0)
        again = 2 * others + (not first)
    elif first:
        gone = _OWN * world
    speaks = int(levels > 0 and rank % fan == 0)
    save = {
        "open": 3 * written + speaks + removed + first * (6 + _KEPT + 2 * (levels > 0)),
        "sync": 2 * written + 3 * first,
        "rename": written + first,
        "unlink": gone + first * (1 + _COMMON),
        "rmdir": removed + first,
        "list": removed + 2 * first,
        "messages": 2 * heard + 2 + again,
        "collectives": 0,
        "mkdir at most": written + 2 * (levels + 2),
        "stat at most": written + (levels + 2) + removed + first * (_KEPT + 6),
    }
    together = world > 1
    common = len(range(rank, _COMMON, node)) if rank < node else 0
    resume = {
        # The checksums of its own files, and these again; and of the lock, the count of starts, and the manifest.
        "open": _OWN + common + levels + _OWN + first * (7 + _COMMON),
        "messages": 0,
        "collectives": together * (15 + 1),
        "stat at most": _OWN * 4 + common + first * 24,
        "unlink": first,
        "mkdir at most": 3 * first,
        "list at most": 6 * first,
    }
    return {
        "start": {
            "open": 5 * first,
            "messages": 0,
            "collectives": 6 * together,
            "stat at most": 2 * first,
            "mkdir": 3 * first,
        },
        "trial": {
            "messages": 0,
            "collectives": together * (4 + (levels > 0)),
            "sync": 2 * (_OWN + _COMMON * first),
        },
        "save": save,
        "agreement": {"messages": together * (heard + 3 + (rank == world // 2)), "open": 0, "collectives": 0},
        "resume": resume,
    }


def astray(counts: dict[tuple[str, int], Counter[str]], world: int, fan: int) -> list[str]:
    """Where counts are not what the formula says."""
    found = []
    for rank in range(world):
        for phase, expected in formula(rank, world, fan).items():
            counted = counts.get((phase, rank), Counter())
            for what, number in expected.items():
                kind, most, _ = what.partition(" at most")
                if counted[kind] > number or (not most and counted[kind] < number):
                    found.append(
                        f"{phase}, rank {rank} of {world}: {kind} {counted[kind]}, expected {what}: {number}"
                    )
    return found


class Tally:
    """Counts of every rank by phase; a thread counts for the rank of the thread that has started it."""

    def __init__(self) -> None:
        self.phase = ""
        self.counts: dict[tuple[str, int], Counter[str]] = {}
        self._own = threading.local()

    def be(self, rank: int | None) -> None:
        self._own.rank = rank

    def rank(self) -> int | None:
        return getattr(self._own, "rank", None)

    def add(self, what: str, number: int = 1) -> None:
        rank = self.rank()
        if rank is not None and self.phase:
            self.counts.setdefault((self.phase, rank), Counter())[what] += number

    @contextlib.contextmanager
    def counting(self, folder: Path) -> Iterator[None]:
        """Count what is done below a folder, and all that is said to other ranks."""
        undo: list[tuple[Any, str, Any]] = []

        def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
            before = getattr(owner, name)
            undo.append((owner, name, before))
            setattr(owner, name, around(before))

        def operation(what: str) -> Callable[[Any], Any]:
            def around(call: Any) -> Any:
                def counted(path: Any = ".", *arguments: Any, **named: Any) -> Any:
                    below = isinstance(path, int) or named.get("dir_fd") is not None
                    if below or str(os.fspath(path)).startswith(str(folder)):
                        self.add(what)
                    return call(path, *arguments, **named)

                return counted

            return around

        def opened(call: Any) -> Any:
            def counted(path: Any, *arguments: Any, **named: Any) -> Any:
                found = call(path, *arguments, **named)
                if not isinstance(path, int) and str(os.fspath(path)).startswith(str(folder)):
                    self.add("open")
                    mode = arguments[0] if arguments else named.get("mode", "r")
                    if "r" in mode:
                        self.add("bytes read", os.fstat(found.fileno()).st_size)
                return found

            return counted

        def writing(call: Any) -> Any:
            def counted(digest: Any, data: Any) -> Any:
                self.add("bytes written", len(data))
                return call(digest, data)

            return counted

        def said(what: str) -> Callable[[Any], Any]:
            def around(call: Any) -> Any:
                def counted(channel: Any, *arguments: Any) -> Any:
                    self.add(what)
                    return call(channel, *arguments)

                return counted

            return around

        def collective(call: Any) -> Any:
            def counted(tensor: Any, *arguments: Any, **named: Any) -> Any:
                own = tensor if isinstance(tensor, torch.Tensor) else arguments[0]
                lists = [each for each in (tensor, *arguments, *named.values()) if isinstance(each, list)]
                self.add("collectives")
                self.add(
                    "bytes of collectives", own.numel() * own.element_size() * max([1, *map(len, lists)])
                )
                return call(tensor, *arguments, **named)

            return counted

        def waiting(call: Any) -> Any:
            def counted(*arguments: Any, **named: Any) -> Any:
                self.add("collectives")
                return call(*arguments, **named)

            return counted

        def born(call: Any) -> Any:
            def started(thread: threading.Thread) -> Any:
                rank, run = self.rank(), thread.run
                if thread.name != "lock":  # its heart beats by the clock

                    def attributed() -> None:
                        self.be(rank)
                        run()

                    thread.run = attributed  # type: ignore[method-assign]
                return call(thread)

            return started

        for what, (owner, names) in _CALLS.items():
            for name in names:
                wrap(owner, name, operation(what))
        wrap(os, "open", operation("open"))
        wrap(io, "open", opened)
        undo.append((builtins, "open", builtins.open))
        builtins.open = io.open  # type: ignore[assignment]
        wrap(files.Digest, "write", writing)
        for name in ("put", "put_first", "get", "drop"):
            wrap(groups.Channel, name, said("messages"))
        wrap(groups.Channel, "has", said("looks"))
        for name in ("broadcast", "all_reduce", "gather", "all_gather"):
            wrap(dist, name, collective)
        wrap(dist, "barrier", waiting)
        wrap(threading.Thread, "start", born)
        try:
            yield
        finally:
            for owner, name, before in reversed(undo):
                setattr(owner, name, before)


def one_rank(rank: int, world: int, folder: Path, next_phase: Callable[[str], None], size: int) -> None:
    """What a training does with its session, phase by phase; the model has ``size`` values, and each rank a piece of it."""
    local = min(PER_NODE, world)
    own = places.Ranks(rank, rank % local, world, local, "torchrun", f"node-{rank // local}")
    group = groups.Group(own, torch.device("cpu"))
    common = {
        "model.pt": {"w": torch.zeros(size), "piece": Owned(torch.zeros(64), rank)},
        "training.pt": {"step": 1},
    }

    def opened() -> session.Session:
        limits = session.Limits(timeout=_TIMEOUT, hang_timeout=None)
        found = session.Session(folder, group, {}, Console(speaks=False), Saving(keep=2), limits)
        found.sharded = True
        return found

    def saved(step: int) -> None:
        run.save(step, lambda: common, dict, {"samples": step})
        one = run.collect()
        assert one is not None
        assert one.error is None, one.error

    next_phase("start")
    run = opened()
    next_phase("trial")
    run.try_saving(1, lambda: common, dict)
    next_phase("")
    for step in (10, 20, 30):
        saved(step)
    next_phase("save")  # as any later one: there is an older one to remove
    saved(40)
    next_phase("")
    run.begin(None)
    next_phase("agreement")
    if rank == world // 2:
        run.watch.want("SIGUSR1")
    while run.watch._stop_at is None:
        time.sleep(0.5)  # a thousand threads have two processors
    next_phase("")
    run.close()
    group.barrier()
    next_phase("resume")
    run = opened()
    run.read_common("model.pt")
    run.read_common("training.pt")
    run.read_own()
    run.pieces._file(rank)
    next_phase("")
    run.close()


class Threads:
    """Collectives and a store for threads in place of processes."""

    def __init__(self, world: int, tally: Tally) -> None:
        self.world, self._tally = world, tally
        self._meet = threading.Barrier(world, timeout=_TIMEOUT)
        self._slots: list[Any] = [None] * world
        self._values: dict[str, str] = {}
        self._events: dict[str, threading.Event] = {}
        self._guard = threading.Lock()

    def _rank(self) -> int:
        rank = self._tally.rank()
        assert rank is not None
        return rank

    def get_rank(self) -> int:
        return self._rank()

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        if self._rank() == src:
            self._slots[0] = tensor
        self._meet.wait()
        if self._rank() != src:
            tensor.copy_(self._slots[0])
        self._meet.wait()

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> None:
        self._slots[self._rank()] = tensor.clone()
        if self._meet.wait() == 0:
            every = torch.stack(self._slots)
            how = {dist.ReduceOp.MIN: every.amin, dist.ReduceOp.MAX: every.amax, dist.ReduceOp.SUM: every.sum}
            self._slots[0] = how[op](0)
        self._meet.wait()
        tensor.copy_(self._slots[0])
        self._meet.wait()

    def gather(self, own: torch.Tensor, parts: list[torch.Tensor] | None, dst: int) -> None:
        self._slots[self._rank()] = own
        self._meet.wait()
        for part, value in zip(parts or [], self._slots, strict=False):
            part.copy_(value)
        self._meet.wait()

    def all_gather(self, parts: list[torch.Tensor], own: torch.Tensor) -> None:
        self.gather(own, parts, 0)

    def barrier(self, **_named: Any) -> None:
        self._meet.wait()

    def _event(self, name: str) -> threading.Event:
        with self._guard:
            return self._events.setdefault(name, threading.Event())

    def set(self, name: str, value: str) -> None:
        self._values[name] = value
        self._event(name).set()

    def compare_set(self, name: str, _expected: str, value: str) -> None:
        with self._guard:
            self._values.setdefault(name, value)
        self._event(name).set()

    def get(self, name: str) -> str:
        assert self._event(name).wait(_TIMEOUT)
        return self._values[name]

    def check(self, names: list[str]) -> bool:
        return all(name in self._values for name in names)

    def delete_key(self, name: str) -> None:
        with self._guard:
            self._values.pop(name, None)
            self._events.pop(name, None)


def simulated(world: int, size: int) -> dict[tuple[str, int], Counter[str]]:
    """The counts of so many ranks, each a thread."""
    tally = Tally()
    threads = Threads(world, tally)
    failures: list[BaseException] = []
    names = ("broadcast", "all_reduce", "gather", "all_gather", "barrier", "get_rank")
    before = {name: getattr(dist, name) for name in names}, groups.connect
    # In memory where there is some: what is asked of a disk is counted, and not timed.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place:

        def phase(name: str) -> None:
            if world > 1 and threads._meet.wait() == 0:
                tally.phase = name
            if world == 1:
                tally.phase = name
            if world > 1:
                threads._meet.wait()

        def act(rank: int) -> None:
            tally.be(rank)
            try:
                one_rank(rank, world, Path(place), phase, size)
            except BaseException as error:
                failures.append(error)
                threads._meet.abort()

        for name in names:
            setattr(dist, name, getattr(threads, name))
        groups.connect = lambda _timeout: threads  # type: ignore[assignment]
        stack = threading.stack_size(1 << 20)
        try:
            with tally.counting(Path(place)):
                workers = [threading.Thread(target=act, args=(rank,)) for rank in range(world)]
                for each in workers:
                    each.start()
                for each in workers:
                    each.join()
        finally:
            threading.stack_size(stack)
            for name in names:
                setattr(dist, name, before[0][name])
            groups.connect = before[1]
    if failures:
        raise next(
            (each for each in failures if not isinstance(each, threading.BrokenBarrierError)), failures[0]
        )
    return tally.counts


def processes(world: int, size: int, fan: int) -> dict[tuple[str, int], Counter[str]]:
    """The counts of so many processes, which talk over gloo."""
    with tempfile.TemporaryDirectory() as place:
        command = [
            sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={world}", "--rdzv-backend=c10d",
            "--rdzv-endpoint=127.0.0.1:0", __file__, "--as-rank-in", place, "--size", str(size), "--fan", str(fan),
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        found = {}
        for rank in range(world):
            for name, counts in json.loads((Path(place) / f"counts-{rank}.json").read_text()).items():
                found[name, rank] = Counter(counts)
        return found


def _as_rank(place: Path, size: int) -> None:
    tally, ranks = Tally(), places.from_environment(os.environ)
    tally.be(ranks.rank)
    with groups.join(ranks, _TIMEOUT, "cpu"):

        def phase(name: str) -> None:
            tally.phase = ""
            if ranks.world_size > 1:
                dist.barrier()
            tally.phase = name

        with tally.counting(place / "run"):
            (place / "run").mkdir(exist_ok=True)
            one_rank(ranks.rank, ranks.world_size, place / "run", phase, size)
        counts = {name: dict(found) for (name, _), found in tally.counts.items()}
        (place / f"counts-{ranks.rank}.json").write_text(json.dumps(counts))
        phase("")


def summary(counts: dict[tuple[str, int], Counter[str]], world: int) -> dict[str, dict[str, Any]]:
    """By phase: the most that any rank does, what the last rank does, and the most that a node reads."""
    found = {}
    for phase in PHASES:
        ranks = [counts.get((phase, rank), Counter()) for rank in range(world)]
        operations = [sum(each[kind] for kind in OPERATIONS) for each in ranks]
        found[phase] = {
            "operations": {"most": max(operations), "last": operations[-1], "all": sum(operations)},
            **{
                what.replace(" ", "_"): {"most": max(each[what] for each in ranks), "last": ranks[-1][what]}
                for what in ("messages", "collectives", "bytes of collectives", "bytes written", "bytes read")
            },
            "bytes_read_by_a_node": max(
                sum(each["bytes read"] for each in ranks[first : first + PER_NODE])
                for first in range(0, world, PER_NODE)
            ),
            "by_kind": {
                kind: [ranks[0][kind], ranks[-1][kind]]
                for kind in OPERATIONS
                if any(each[kind] for each in ranks)
            },
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", default="1,2,4,8,16,64,65,128,256,512,1000,1024")
    parser.add_argument("--processes", default="2,4,8")
    parser.add_argument("--size", type=int, default=1 << 16)
    parser.add_argument("--fan", type=int, default=tree.FAN)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--as-rank-in", type=Path)
    arguments = parser.parse_args()
    tree.FAN = arguments.fan
    torch.set_num_threads(1)
    if arguments.as_rank_in:
        _as_rank(arguments.as_rank_in, arguments.size)
        return
    rows = []
    for how, listed in (("threads", arguments.threads), ("processes", arguments.processes)):
        for world in map(int, filter(None, listed.split(","))):
            began = time.monotonic()
            counts = (
                simulated(world, arguments.size)
                if how == "threads"
                else processes(world, arguments.size, tree.FAN)
            )
            wrong = astray(counts, world, tree.FAN)
            if wrong:
                print("\n".join(wrong[:20]), file=sys.stderr)
            rows.append(
                {
                    "ranks": world,
                    "as": how,
                    "fan": tree.FAN,
                    "as_the_formula_says": not wrong,
                    **summary(counts, world),
                }
            )
            print(how, world, f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    document = {
        "what": "what a rank asks of the file system and of the others, by phase of a run",
        "machine": f"{os.cpu_count()} CPUs, {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "results": rows,
    }
    text = json.dumps(document, indent=1) + "\n"
    if arguments.out:
        arguments.out.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
