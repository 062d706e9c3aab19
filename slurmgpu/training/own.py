"""For scripts with a loop of their own: what makes a run resumable and stoppable, in a few lines."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterator, Mapping
from multiprocessing.util import Finalize
from pathlib import Path
from typing import IO, Any, Optional, Union, cast

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import LRScheduler

from .data import count_workers, same_length, train_batches
from .errors import TrainingError
from .files import write_whole
from .order import Order, shares
from .processes.given import check, visible
from .processes.group import Group
from .processes.ranks import Ranks, from_environment
from .saving.late import LATE
from .saving.pieces import fit_model, fit_optimizer, refuse_uneven
from .saving.saver import Saving
from .saving.snapshot import plain_state, try_out
from .session import Limits, Session
from .sharding.local import is_sharded
from .task import Collate
from .watching.console import Console
from .watching.signals import Signals

__all__ = ["Run"]

# What all ranks have in common while they train one model.
# GradScaler: torch.amp has it from 2.3 on, as the base of torch.cuda.amp's.
_COMMON = (torch.optim.Optimizer, LRScheduler, getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler))


class Run:
    """A training in a run directory: ``state`` puts it back, ``should_stop`` ends each step, ``save`` saves.

    With several processes, join the process group first (``init_process_group``), and make the same calls in the
    same order on every rank. What is to be done once for each epoch stands in a loop over ``epochs``, behind ``batches``.

    Args:
        folder: The run directory; default SLURMGPU_RUN_DIR, else ``run``.
        save_every: Steps beyond the newest checkpoint that a kill may cost; they are written in the background.
        keep: Newest checkpoints to keep; those of steps that ``keep_every`` divides stay for good.
        seed: Seed of the order of samples, and of what is drawn for each.
        device: ``"cpu"`` to run on the CPU in a job that has GPUs, on purpose; default: the current CUDA device, and
            an error where Slurm gave GPUs that torch does not see.
        hang_timeout: Seconds between two calls of ``should_stop`` after which a rank writes where it is, and
            ends the job; None: never, because nobody knows what else the script does in a step.

    Attributes:
        device: This rank's: the current CUDA device, else the CPU.
        step: Steps so far.
        stopped: Whether ``should_stop`` has said so.
    """

    def __init__(
        self,
        folder: Union[str, Path, None] = None,
        *,
        save_every: int = 100,
        keep: int = 2,
        keep_every: Optional[int] = None,
        seed: int = 0,
        device: Optional[str] = None,
        hang_timeout: Optional[float] = None,
    ) -> None:
        if save_every < 1:
            raise TrainingError(f"save_every is {save_every}; it must be a number of steps, at least 1")
        if device not in (None, "cpu"):
            raise TrainingError(
                f'device is {device!r}; it must be "cpu", or left out: a GPU is chosen by torch.cuda.set_device'
            )
        environment: Mapping[str, str] = os.environ
        ranks = _ranks(environment)
        if ranks.world_size > 1 and not dist.is_initialized():
            raise TrainingError(
                "call torch.distributed.init_process_group before Run(), so that ranks can talk"
            )
        console = Console(ranks.first)
        if device != "cpu":
            check(ranks, environment, console.say, how_on_cpu='Run(device="cpu")')
        self.device = torch.device("cpu")
        if device != "cpu" and visible():
            self.device = torch.device("cuda", torch.cuda.current_device())
        run_dir = Path(folder or environment.get("SLURMGPU_RUN_DIR") or "run")
        run_dir.mkdir(parents=True, exist_ok=True)
        self._group = Group(ranks, self.device)
        saving = Saving(save_every, keep, keep_every)
        limits = Limits(hang_timeout=hang_timeout)
        self._session = Session(run_dir, self._group, environment, console, saving, limits)
        Finalize(None, self._session.close, exitpriority=0)  # atexit does not reach the processes of mp.spawn
        self._seed = seed
        self._event = 0
        self._parts: dict[str, Any] = {}
        self._saved: list[str] = []
        self._best: Optional[float] = None
        self.step = 0
        self._samples = 0
        self._drawn = 0
        self._draws: list[int] = []
        self._giving = self._ahead = False
        self._batch = 0
        self._length: Optional[int] = None
        self._end = -1
        self._ended = 0
        self._epoch: Optional[int] = None
        self._stepping = False
        self._through = False
        self.stopped = False

    def state(self, **parts: Any) -> int:
        """Name what is to be saved, whatever has ``state_dict``; all of it is put back from the newest checkpoint.

        Several calls add up. Returns the number of steps so far; random states are as they were then. From now on
        signals and the time limit stop the run in good order.

        Models, optimizers, schedules and scalers are the same on all ranks, and rank 0 saves them; of a model's buffers,
        and of everything else, each rank saves its own. Of sharded models (``fully_shard``) and their
        optimizers each rank saves its pieces, and they can be put back with another number of processes, or not sharded.

        Raises:
            TrainingError: the checkpoint does not fit, a part cannot be saved and put back, its name is taken, or the loop
                has begun.
        """
        if self._stepping:
            raise TrainingError(
                "call state() before the loop: what it names was not saved in the steps so far"
            )
        taken = sorted(self._parts.keys() & parts.keys())
        if taken:
            raise TrainingError(f"state() was given {taken[0]} before: give each part a name of its own")
        for name, part in parts.items():
            try_out(part, name)
            if not isinstance(part, (torch.nn.Module, torch.optim.Optimizer)) and _sharded_in(
                plain_state(part)
            ):
                raise TrainingError(
                    f"{name} ({type(part).__name__}) has sharded tensors in its state, and is neither a model nor an "
                    "optimizer: nothing says how to cut them when they are put back; keep them in a module"
                )
        first = not self._parts
        self._parts.update(parts)
        if any(map(_has_pieces, parts.values())):
            self._session.expect_pieces()
        found = self._session.found
        if found is not None:
            late = found.manifest["parts"].keys() & {LATE}
            saved = self._session.read_common(LATE if late else "state.pt")
            if not saved.keys() >= parts.keys():
                raise TrainingError(
                    f"{found.path.name} holds {', '.join(saved)}; state() was given {', '.join(self._parts)}"
                )
            self._saved = list(saved)
            for name, part in parts.items():
                try:
                    part.load_state_dict(self._fitted(part, saved[name]))
                except (RuntimeError, ValueError, KeyError) as error:
                    raise TrainingError(
                        f"{found.path} does not fit what state() was given as {name}: {error}\n"
                        "undo the change, or begin anew in another run directory"
                    ) from error
            self.step, self._samples = found.manifest["step"], found.manifest["samples"]
            self._ended, self._best = found.manifest.get("epochs", 0), found.manifest.get("best")
            self._put_back_own(self._session.read_own(), parts)
        if first:
            self._session.watch.step = self.step
            self._session.begin(Signals(os._exit))
        return self.step

    def _begin_steps(self) -> None:
        """Refuse a loop of which nothing, or not all that was saved, would be saved."""
        if self._stepping:
            return
        if not self._parts:
            raise TrainingError(
                "call state(model=model, optimizer=optimizer) before the loop: nothing would be saved"
            )
        missing = [name for name in self._saved if name not in self._parts]
        if missing:
            raise TrainingError(
                f"the checkpoint of step {self.step} holds {', '.join(self._saved)}; state() was given {', '.join(self._parts)}"
            )
        self._stepping = True

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the epochs that are left, of 0 to ``count`` - 1; the last batch of each ends with it.

        What stands behind ``batches`` in the loop's body (an evaluation, a scheduler) is done once for each epoch: a run
        that stopped before it was through does it after the resume.
        """
        self._begin_steps()
        while self._ended < count:
            self._epoch = self._ended
            yield self._epoch
            self._ended += 1
            if self.step >= self._event:
                self._look_at_saves()
        self._epoch = None
        self._through = True

    def batches(
        self,
        dataset: Any,
        batch_size: int,
        epochs: Optional[int] = None,
        *,
        workers: int = 0,
        collate: Optional[Collate] = None,
    ) -> Iterator[Any]:
        """This rank's batches from where the run was left to the last epoch's end, each sample once an epoch.

        They are on this rank's ``device``; the model has to be there, too. ``collate`` makes a batch of a list of samples;
        None: as torch does.

        ``batch_size`` counts over all ranks. The order is the same with any number of ranks and workers. In a loop over
        ``epochs`` it is called once for each, without a number of epochs.

        Raises:
            TrainingError: a second call has nothing left to give.
        """
        self._begin_steps()
        if isinstance(dataset, torch.utils.data.DataLoader):
            raise TrainingError(
                "batches takes the data set, and makes batches itself: run.batches(loader.dataset, batch_size=...)"
            )
        ranks = self._group.ranks
        micro, rest = divmod(batch_size, ranks.world_size)
        if rest:
            raise TrainingError(
                f"batch_size {batch_size} does not divide by the world size, {ranks.world_size}"
            )
        same_length(self._group, training=dataset)
        end, self._batch = self._until(len(dataset), epochs), batch_size
        start = self._drawn = self._samples
        chosen = shares(start, end, batch_size, micro, rank=ranks.rank, world_size=ranks.world_size)
        order = Order(len(dataset), self._seed)
        workers = count_workers(workers, self._group, dataset)
        self._giving = True
        try:
            for batch in train_batches(
                dataset, order, chosen, self._group, seed=self._seed, workers=workers, collate=collate
            ):
                self._drawn = min(end, self._drawn + batch_size)
                yield batch
        finally:
            self._giving = False
        self._through = self._epoch is None

    def _until(self, length: int, epochs: Optional[int]) -> int:
        """Up to which sample a call of ``batches`` goes; where it begins is the newest sample trained on."""
        if self._length not in (None, length):
            raise TrainingError(
                f"batches() was given a dataset of {self._length} samples, and now one of {length}: one run trains on one "
                "dataset (for another, such as that of an evaluation, take a DataLoader)"
            )
        self._length = length
        if self._epoch is not None:
            if epochs is not None:
                raise TrainingError(
                    "leave the number of epochs out of batches() within run.epochs(): it gives one epoch"
                )
            self._samples = max(self._samples, self._epoch * length)
            return (self._epoch + 1) * length
        if epochs is None:
            raise TrainingError(
                "batches() needs a number of epochs, as in batches(dataset, 32, epochs=5), outside run.epochs()"
            )
        end = epochs * length
        if self._samples >= end and end <= self._end:
            raise TrainingError(
                f"batches() has given all batches of its {epochs} epoch{'s' * (epochs != 1)}, and would give none now: one call "
                "goes through all epochs; or write\n"
                "    for epoch in run.epochs(5):\n        for batch in run.batches(dataset, 32):"
            )
        self._end = end
        return end

    def should_stop(self) -> bool:
        """Call it at the end of each step: counts it, saves when it is time; True: all is saved, leave the loop."""
        self._begin_steps()
        self._count_trained()
        watch = self._session.watch
        self.step += 1
        watch.step = self.step
        if self.step >= watch.line and watch.stop():
            self.save()
            self._session.stopped(self.step)
            self.stopped = True
            return True
        at_end = self._epoch is not None and self._samples == (self._epoch + 1) * (self._length or 0)
        # At an epoch's end what follows in the loop's body is to be in the checkpoint, too.
        if self.step >= self._event and not at_end:
            self._look_at_saves()
        return False

    def _count_trained(self) -> None:
        """Count the batches of this step as trained on; a loop that draws ahead would lose some at each resume."""
        new = self._drawn - self._samples
        if not new and (self._giving or self._ahead):
            raise TrainingError(
                f"step {self.step + 1}: no batch was drawn since the last should_stop(). Call it once for each step, at its end; "
                "and go through run.batches() itself, which loads ahead: what a list, an islice or a queue has drawn before its "
                "step would be left out by a resume"
            )
        self._ahead = new > self._batch
        if len(self._draws) < 4:
            self._draws.append(new)
            first, *more = self._draws
            if len(more) == 3 and len(set(more)) == 1 and 0 < more[0] < first:
                raise TrainingError(
                    f"the first step drew {first} samples and each of the next {more[0]}: the loop draws batches ahead of its "
                    "steps, and a resume would leave those out. Go through run.batches() "
                    "itself, which loads ahead; for a batch that is skipped, call should_stop(), too"
                )
        self._samples = self._drawn

    def _look_at_saves(self) -> None:
        bound = self._session.bound
        if bound.must_wait(self.step):
            self._session.collect()
        if bound.due(self.step):
            self._begin_save()
        self._event = bound.next(self.step)

    def save(self) -> None:
        """Save this step unless it is saved already, and wait until the checkpoint counts on all ranks.

        After the last of ``batches`` signals do again what they did before ``state``: no step asks ``should_stop``.
        """
        self._begin_steps()
        if self._drawn > self._samples and not self._draws:
            raise TrainingError(
                "save: batches were drawn, and no step has ended: call should_stop() at the end of each step, or nothing "
                "counts as trained"
            )
        self._begin_save()
        self._session.finish(self.step)
        self._group.barrier()
        if self._through:
            self._session.let_go()

    def save_best(self, value: float, *, mode: str = "min") -> bool:
        """Write the models to ``best.pt`` in the run directory if this is the best value so far; say whether it was.

        For the end of an epoch. The best value comes back after a resume; of several ranks that of rank 0 counts. The file
        is a dictionary for ``torch.load``: ``state`` has the ``state_dict`` of each model by its name, beside ``value`` and
        ``step``.

        Args:
            value: What an evaluation gave; one that is not finite is never the best.
            mode: ``"min"`` or ``"max"``.
        """
        if mode not in ("min", "max"):
            raise TrainingError(f'mode is {mode!r}; it must be "min" or "max"')
        self._begin_steps()
        value = self._group.on_first(lambda: float(value))
        best = self._best
        if not math.isfinite(value):
            return False
        if best is not None and (value >= best if mode == "min" else value <= best):
            return False
        models = {
            name: {key: _whole(each) for key, each in part.state_dict().items()}
            for name, part in self._parts.items()
            if isinstance(part, torch.nn.Module)
        }
        content = {"state": models, "value": value, "step": self.step}
        path = self._session.run_dir / "best.pt"
        self._group.on_first(
            lambda: write_whole(path, lambda file: torch.save(content, cast("IO[bytes]", file)))
        )
        self._best = value
        return True

    def _fitted(self, part: Any, saved: Any) -> Any:
        """Return a saved state, cut over the ranks as the part is now."""
        pieces, rank = self._session.pieces, self._group.ranks.rank
        if isinstance(part, torch.nn.Module):
            return fit_model(saved, part.state_dict(), pieces, rank)
        if isinstance(part, torch.optim.Optimizer):
            return fit_optimizer(part, saved, pieces, rank)
        return saved

    def _begin_save(self) -> None:
        if self._session.sharded:
            for part in self._parts.values():
                refuse_uneven(part)
        states = {name: plain_state(part) for name, part in self._parts.items()}
        facts: dict[str, object] = {"samples": self._samples, "epochs": self._ended, "best": self._best}
        found = self._session.found
        late = found is not None and self.step == found.manifest["step"] and not self._session.sharded
        if found is not None and late and found.manifest.get("epochs", 0) < self._ended:
            facts["complete"] = True  # a stop came after the last step, and before the end of its epoch
        self._session.save(self.step, lambda: {"state.pt": states}, lambda: self._own(states), facts)

    def _own(self, states: Mapping[str, Any]) -> dict[str, object]:
        """Return what is this rank's alone; with one process all is in the common part."""
        if not self._group.together:
            return {}
        buffers = {
            name: {each: buffer for each, buffer in part.named_buffers() if each in states[name]}
            for name, part in self._parts.items()
            if isinstance(part, torch.nn.Module)
        }
        return {"parts": {name: states[name] for name in self._apart()}, "buffers": buffers}

    def _apart(self) -> list[str]:
        """Return the parts of which each rank has its own."""
        common = (torch.nn.Module, *_COMMON)
        return [name for name, part in self._parts.items() if not isinstance(part, common)]

    def _put_back_own(self, own: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
        apart = [name for name in self._apart() if name in parts]
        if not own and apart and self._group.together:
            self._session.console.say(
                f"note: with another number of processes {', '.join(apart)} begins as rank 0 had it, on every rank"
            )
        for name in apart if own.get("parts") else ():
            parts[name].load_state_dict(own["parts"][name])
        for name in own.get("buffers", {}).keys() & parts.keys():
            saved = own["buffers"][name]
            now = dict(parts[name].named_buffers())
            with torch.no_grad():
                for each, value in saved.items():
                    now[each].copy_(value)


def _ranks(environment: Mapping[str, str]) -> Ranks:
    """This process's place as its launcher says, or as the process group does that the script's own processes have formed."""
    if not dist.is_initialized() or "RANK" in environment:
        return from_environment(environment)
    rank, world = dist.get_rank(), dist.get_world_size()
    if world == int(environment.get("SLURM_NTASKS", "0")):
        return from_environment(environment)
    if environment.get("SLURM_NNODES", "1") != "1" or "MASTER_ADDR" not in environment:
        raise TrainingError(
            "the processes started each other (mp.spawn), and Run() does not know where they are: start them with torchrun, "
            "without mp.spawn; or, on one node, set MASTER_ADDR and MASTER_PORT in place of init_method"
        )
    return Ranks(
        rank, rank, world, world, "spawn", environment.get("SLURMD_NODENAME") or socket.gethostname()
    )


def _whole(value: Any) -> Any:
    """Return a tensor of which each rank has a piece, put together; anything else as it is."""
    return value.full_tensor() if is_sharded(value) else value


def _sharded_in(value: Any) -> bool:
    """Return True if there is a tensor in a state of which each rank has a piece."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(map(_sharded_in, value))
    return is_sharded(value)


def _has_pieces(part: Any) -> bool:
    """Return True if it is a model of which each rank has a piece, or an optimizer of such a one."""
    if isinstance(part, torch.nn.Module):
        return any(map(is_sharded, part.parameters()))
    groups = part.param_groups if isinstance(part, torch.optim.Optimizer) else []
    return any(is_sharded(each) for group in groups for each in group["params"])
