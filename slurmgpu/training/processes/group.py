"""The processes of a run together: the device of each, and what they tell each other.

The process group may be used by one thread only, and on a GPU a collective would wait for the step. So background
threads talk by ``Channel`` over torch's TCP store, through connections of their own: a few bytes, none of it on the path
of a step.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Optional, TypeVar, cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ..errors import TrainingError
from . import recorder
from .given import require_one_each, visible
from .meeting import call_roll, connect
from .packing import as_bytes, pack, unpack
from .ranks import Ranks

__all__ = ["Channel", "Group", "choose_device", "join", "own_cpus", "shared_by"]

T = TypeVar("T")

_PIECES, _LEAST = (
    1 << 26,
    1 << 16,
)  # bytes that rank 0 collects at a time, from all ranks and from one at least


class Group:
    """All ranks of the run; with one process every method is local and free."""

    def __init__(self, ranks: Ranks, device: torch.device) -> None:
        self.ranks = ranks
        self.device = device
        self.data = ranks
        """This process's place among those that have other samples; the stages of a pipeline have the same."""
        self.pieces = ranks.world_size
        """Over how many processes a model is sharded; a trial of one process alone pretends to have others."""
        self.apart = False
        """True if each process has a stage of the model, and no buffer is for those with other stages."""
        self.stages = ranks.world_size
        """Processes of a pipeline; there are several copies of it where there are more."""
        self._copies: Optional[Any] = None
        self._averaged: Optional[list[bool]] = None

    @property
    def heads(self) -> range:
        """The ranks whose evaluations count: all, or the last one of each pipeline."""
        world = self.ranks.world_size
        return range(self.stages - 1, world, self.stages) if self.apart else range(world)

    def form_pipeline(self, stages: int) -> None:
        """From now on so many processes, one after the other, are a pipeline: they take the same samples.

        The last one of each alone has their losses. Processes of the same place in different pipelines are copies.
        """
        ranks = self.ranks
        self.stages, self.apart = stages, True
        copies = ranks.world_size // stages
        self.data = replace(ranks, rank=ranks.rank // stages, world_size=copies)
        for place in range(stages if copies > 1 else 0):
            found = dist.new_group(list(range(place, ranks.world_size, stages)))
            if ranks.rank % stages == place:
                self._copies = found

    def average_copies(self, parameters: Sequence[torch.nn.Parameter], bucket: int) -> None:
        """Average gradients over the copies of a stage, some ``bucket`` bytes at a time.

        Which parameters have one is agreed on after the first step, so that no later one waits for a GPU.

        Raises:
            TrainingError: a parameter has its first gradient later than that.
        """
        if self._copies is None:
            return
        if self._averaged is None:
            has = torch.tensor([float(each.grad is not None) for each in parameters], device=self.device)
            dist.all_reduce(has, group=self._copies)
            self._averaged = [bool(known) for known in has.tolist()]
        late = [
            each for each, known in zip(parameters, self._averaged) if each.grad is not None and not known
        ]
        if late:
            raise TrainingError(
                f"a parameter of shape {tuple(late[0].shape)} has its first gradient after the first step, and the copies of a "
                "pipeline average those that have one in the first: use all parameters in each step, or leave out pipeline_stages"
            )
        for part in _buckets([each for each, known in zip(parameters, self._averaged) if known], bucket):
            values = [torch.zeros_like(each) if each.grad is None else each.grad for each in part]
            flat = torch.cat([each.reshape(-1) for each in values])
            dist.all_reduce(flat, group=self._copies)
            flat.div_(self.data.world_size)
            for each, value, averaged in zip(
                part, values, torch.split(flat, [each.numel() for each in part])
            ):
                each.grad = value.copy_(averaged.view_as(value))

    @property
    def together(self) -> bool:
        """True if there is more than one process."""
        return self.ranks.world_size > 1

    def gather(self, value: T) -> list[T]:
        """Return each rank's value, by rank, on every rank; torch's own ``all_gather_object`` fails without numpy."""
        if not self.together:
            return [value]
        data = pickle.dumps(value)
        sizes = [int(size) for size in self._gather_equal(torch.tensor([len(data)])).tolist()]
        longest = max(sizes)
        padded = torch.frombuffer(bytearray(data.ljust(longest, b"\0")), dtype=torch.uint8)
        everything = bytearray(longest * len(sizes))
        torch.frombuffer(everything, dtype=torch.uint8).copy_(self._gather_equal(padded))
        view = memoryview(everything)
        return [pickle.loads(view[n * longest : n * longest + size]) for n, size in enumerate(sizes)]

    def first_of(self, value: Optional[T]) -> Optional[T]:
        """The value of the first rank that has one, on every rank; what each sends does not grow with the number of ranks."""
        if not self.together:
            return value
        world = self.ranks.world_size
        first = torch.tensor([world if value is None else self.ranks.rank], device=self.device)
        dist.all_reduce(first, op=dist.ReduceOp.MIN)
        rank = int(first)
        return None if rank == world else self._of(rank, value)

    def any(self, value: bool) -> bool:
        """Return True if it is so on any rank."""
        return self.first_of(True if value else None) is not None

    def all_alike(self, value: object) -> bool:
        """Return True if all ranks have the same value as rank 0."""
        return not self.together or self.first_of(None if self._of(0, value) == value else True) is None

    def _gather_equal(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks, of equal length, one after the other."""
        own = tensor.to(self.device)
        parts = [torch.empty_like(own) for _ in range(self.ranks.world_size)]
        dist.all_gather(parts, own)
        return torch.cat(parts)

    def collect(self, value: T) -> list[T]:
        """Return each rank's value, by rank, on rank 0 alone, elsewhere none; in pieces, for values of any size."""
        if not self.together:
            return [value]
        data, first, world = memoryview(pickle.dumps(value)), self.ranks.first, self.ranks.world_size
        size = torch.tensor([len(data)], device=self.device)
        dist.all_reduce(size, op=dist.ReduceOp.MAX)
        longest = int(size)
        found = [bytearray(longest) for _ in range(world)] if first else []
        piece = max(_LEAST, _PIECES // world)
        for start in range(0, longest, piece):
            length = min(piece, longest - start)
            padded = bytearray(data[start : start + length]).ljust(length, b"\0")
            own = torch.frombuffer(padded, dtype=torch.uint8).to(self.device)
            parts = [torch.empty_like(own) for _ in range(world)] if first else None
            dist.gather(own, parts, dst=0)
            for whole, part in zip(found, parts or []):
                torch.frombuffer(whole, dtype=torch.uint8, count=length, offset=start).copy_(part)
        return [pickle.loads(whole) for whole in found]  # what follows its end is not looked at

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Add up a tensor over all ranks, in place and without waiting for a GPU."""
        if self.together:
            dist.all_reduce(tensor)
        return tensor

    def largest(self, *values: float) -> list[float]:
        """Of each of the values the largest on any rank."""
        if not self.together:
            return list(values)
        found = torch.tensor(values, device=self.device)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        largest: list[float] = found.tolist()
        return largest

    def share(self, model: torch.nn.Module) -> None:
        """Give every rank the parameters and buffers of rank 0."""
        self._share(each.detach() for each in model.parameters())
        self.share_buffers(model)

    def share_buffers(self, model: torch.nn.Module) -> None:
        """Give every rank the buffers of rank 0, or of the first copy of its stage, so that all evaluate the same model."""
        if self.apart:
            self.share_copies(model.buffers())
        else:
            self._share(model.buffers())

    def share_copies(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give every copy of a stage the first copy's values."""
        if self._copies is not None:
            self._broadcast(tensors, self.ranks.rank % self.stages, self._copies)

    def send(self, tensor: torch.Tensor) -> None:
        """Give every rank rank 0's values of a tensor, which is there on each."""
        self._share([tensor])

    def _share(self, tensors: Iterable[torch.Tensor]) -> None:
        if self.together:
            self._broadcast(tensors, 0)

    def _broadcast(self, tensors: Iterable[torch.Tensor], source: int, among: Optional[Any] = None) -> None:
        for tensor in tensors:
            if tensor.is_meta:
                continue
            whole = tensor.detach().to(self.device).contiguous()  # nccl takes no other
            dist.broadcast(whole, src=source, group=among)
            if whole.data_ptr() != tensor.data_ptr():
                with torch.no_grad():
                    tensor.copy_(whole)

    def on_first(self, act: Callable[[], T]) -> T:
        """Run ``act`` on rank 0 and return its result on every rank; if it fails, every rank raises and none waits."""
        if not self.together:
            return act()
        result: T | None = None
        failure: Exception | SystemExit | None = None
        if self.ranks.first:
            try:
                result = act()
            except (Exception, SystemExit) as error:
                failure = error
        message = None if failure is None else f"{type(failure).__name__}: {failure}"
        result, message = self._of(0, (result, message))
        if failure is not None:
            raise failure
        if message is not None:
            raise TrainingError(f"ends because rank 0 failed ({message})")
        return cast("T", result)

    def read_on_first(self, act: Callable[[], T]) -> T:
        """As ``on_first``, for what has large tensors in it: each is sent by itself, and nobody has it in memory twice."""
        if not self.together:
            return act()
        kept: list[torch.Tensor] = []
        data, kinds = self.on_first(lambda: pack(act(), kept))
        for number, (dtype, shape, stride) in enumerate(kinds):
            if not self.ranks.first:
                kept.append(torch.empty_strided(shape, stride, dtype=dtype))
            self._send_flat(as_bytes(kept[number]))
        return cast("T", unpack(data, kept))

    def _send_flat(self, flat: torch.Tensor) -> None:
        """Give every rank rank 0's bytes, in pieces."""
        for piece in torch.split(flat, _PIECES):
            carried = piece.to(self.device)
            dist.broadcast(carried, src=0)
            if carried is not piece:
                piece.copy_(carried)

    def _of(self, rank: int, value: T) -> T:
        """Return the value of one rank, on every rank: what each sends and keeps does not grow with the number of ranks."""
        speaks = self.ranks.rank == rank
        data = pickle.dumps(value) if speaks else b""
        size = torch.tensor([len(data)], device=self.device)
        dist.broadcast(size, src=rank)
        if not speaks:
            data = bytes(int(size))
        buffer = bytearray(data)
        carried = torch.frombuffer(buffer, dtype=torch.uint8).to(self.device)
        dist.broadcast(carried, src=rank)
        torch.frombuffer(buffer, dtype=torch.uint8).copy_(carried)
        return cast("T", pickle.loads(buffer))

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.together:
            on_gpu = self.device.type == "cuda"
            dist.barrier(device_ids=[self.device.index] if on_gpu else None)


def _buckets(parameters: Sequence[torch.nn.Parameter], size: int) -> Iterator[list[torch.nn.Parameter]]:
    """Yield the parameters in their order, in runs of one type whose gradients have about so many bytes together."""
    run: list[torch.nn.Parameter] = []
    held = 0
    for each in parameters:
        if run and (held >= size or each.dtype != run[0].dtype):
            yield run
            run, held = [], 0
        run.append(each)
        held += each.numel() * each.element_size()
    if run:
        yield run


class Channel:
    """Small values by name, common to all ranks; with one process a mere dictionary."""

    def __init__(self, ranks: Ranks, timeout: float) -> None:
        self._store = connect(timeout) if ranks.world_size > 1 else None
        self._own: dict[str, object] = {}

    def put(self, name: str, value: object) -> None:
        """Publish a value (JSON)."""
        if self._store is None:
            self._own[name] = value
        else:
            self._store.set(name, json.dumps(value))

    def put_first(self, name: str, value: object) -> None:
        """Publish a value unless there is one already."""
        if self._store is None:
            self._own.setdefault(name, value)
        else:
            self._store.compare_set(name, "", json.dumps(value))

    def has(self, *names: str) -> bool:
        """Return True if all of the names have a value; does not wait."""
        if self._store is None:
            return all(name in self._own for name in names)
        return bool(self._store.check(list(names)))

    def get(self, name: str) -> Any:
        """Return the value, once it is there (RuntimeError after the time-out, or when rank 0 is gone)."""
        return self._own[name] if self._store is None else json.loads(self._store.get(name))

    def drop(self, name: str) -> None:
        """Forget a value."""
        if self._store is None:
            self._own.pop(name, None)
        else:
            self._store.delete_key(name)


def shared_by(wrapped: torch.nn.Module) -> Optional[DistributedDataParallel]:
    """Return the wrapper in a model by which the ranks share gradients, if there is one."""
    inner = getattr(wrapped, "_orig_mod", wrapped)  # torch.compile keeps what it compiles there
    return inner if isinstance(inner, DistributedDataParallel) else None


@contextlib.contextmanager
def join(ranks: Ranks, timeout: float, device: str = "auto") -> Iterator[Group]:
    """Choose the device, join the process group (nccl on GPUs, gloo on CPUs), and leave it at the end.

    ``device`` is ``cpu``, or ``auto`` for a GPU if one is visible; ``timeout`` is the longest wait for another rank, in
    seconds. After an error the group is not left: that can wait for ranks that are gone, and the process ends anyway.
    """
    chosen = choose_device(ranks, 0 if device == "cpu" else visible())
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    elif ranks.world_size > 1 and not _threads_are_chosen(os.environ.get("OMP_NUM_THREADS", "")):
        torch.set_num_threads(own_cpus(ranks))  # or all ranks of a node fight over all of its CPUs
    if ranks.world_size > 1:
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise TrainingError(
                f"world size is {ranks.world_size}, but {' and '.join(missing)} is not set: "
                "export the first node's name and a free port before srun, or start with torchrun"
            )
        if chosen.type == "cuda":
            recorder.prepare(os.environ)
        _start(ranks, chosen, timeout)
    yield Group(ranks, chosen)
    if ranks.world_size > 1:
        dist.destroy_process_group()


def _start(ranks: Ranks, device: torch.device, timeout: float) -> None:
    def meet() -> None:
        store = call_roll(ranks, timeout)
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            rank=ranks.rank,
            world_size=ranks.world_size,
            timeout=timedelta(seconds=timeout),
        )
        del store  # rank 0's has served until here

    try:
        try:
            meet()
        except RuntimeError as error:
            if "libuv" not in str(error):
                raise
            os.environ["USE_LIBUV"] = "0"  # a torch that was built without it, as Debian's
            meet()
    except (RuntimeError, ValueError) as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise TrainingError(
            f"could not meet the other ranks (world size {ranks.world_size}) at {place} "
            f"within {timeout:g} s: {str(error).splitlines()[0]}"
        ) from error


def choose_device(ranks: Ranks, seen: int) -> torch.device:
    """Return the GPU numbered as the local rank, or the only one where Slurm hides the others; the CPU without any.

    Not modulo the number of GPUs: that would silently put two ranks on one.
    """
    if seen == 0:
        return torch.device("cpu")
    require_one_each(ranks, seen)
    return torch.device("cuda", 0 if seen == 1 else ranks.local_rank)


def _threads_are_chosen(text: str) -> bool:
    """Return True if OMP_NUM_THREADS says something that this machine can do; a pretend node has more CPUs than it."""
    return bool(text) and not (text.isdecimal() and int(text) > (os.cpu_count() or 1))


def own_cpus(ranks: Ranks) -> int:
    """CPUs that this rank may use: its affinity mask, divided among the ranks that share it.

    srun gives each task its own mask where CPUs per task are known; torchrun's ranks share the node's, and so do those of
    a node that Slurm believes to be larger than it is.
    """
    try:
        mask = len(os.sched_getaffinity(0))
    except AttributeError:  # no affinity on this system
        mask = os.cpu_count() or 1
    per_task = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if ranks.launcher == "srun" and per_task.isdecimal():
        own = int(per_task)
        if own <= mask or mask != os.cpu_count():
            return max(1, min(mask, own))
    return max(1, mask // ranks.local_world_size)
