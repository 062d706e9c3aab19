"""For scripts with a loop of their own: what makes a run resumable and stoppable, in a few lines."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional, Union

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import LRScheduler

from .data import count_workers, same_length, train_batches
from .errors import TrainingError
from .order import Order, shares
from .processes.given import check, visible
from .processes.group import Group
from .processes.ranks import from_environment
from .saving.pieces import fit_model, fit_optimizer, refuse_uneven
from .saving.saver import Saving
from .saving.snapshot import plain_state, try_out
from .session import Limits, Session
from .sharding.local import is_sharded
from .watching.console import Console
from .watching.signals import Signals

__all__ = ["Run"]

# What all ranks have in common while they train one model.
# GradScaler: torch.amp has it from 2.3 on, as the base of torch.cuda.amp's.
_COMMON = (torch.optim.Optimizer, LRScheduler, getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler))


class Run:
    """A training in a run directory: ``state`` puts it back, ``should_stop`` ends each step, ``save`` saves.

    With several processes, join the process group first (``init_process_group``), and make the same calls in the
    same order on every rank.

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
        ranks = from_environment(environment)
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
        atexit.register(self._session.close)
        self._seed = seed
        self._event = 0
        self._parts: dict[str, Any] = {}
        self.step = 0
        self._samples = 0
        self._through = False
        self.stopped = False

    def state(self, **parts: Any) -> int:
        """Name what is to be saved, whatever has ``state_dict``; all of it is put back from the newest checkpoint.

        Returns the number of steps so far; random states are as they were then. From now on signals and the
        time limit stop the run in good order.

        Models, optimizers, schedules and scalers are the same on all ranks, and rank 0 saves them; of a model's buffers,
        and of everything else, each rank saves its own. Of sharded models (``fully_shard``) and their
        optimizers each rank saves its pieces, and they can be put back with another number of processes, or not sharded.

        Raises:
            TrainingError: the checkpoint does not fit, or a part cannot be saved and put back.
        """
        for name, part in parts.items():
            try_out(part, name)
            if not isinstance(part, (torch.nn.Module, torch.optim.Optimizer)) and _sharded_in(
                plain_state(part)
            ):
                raise TrainingError(
                    f"{name} ({type(part).__name__}) has sharded tensors in its state, and is neither a model nor an "
                    "optimizer: nothing says how to cut them when they are put back; keep them in a module"
                )
        self._parts = parts
        self._session.sharded = any(map(_has_pieces, parts.values()))
        found = self._session.found
        if found is not None:
            saved = self._session.read_common("state.pt")
            if saved.keys() != parts.keys():
                raise TrainingError(
                    f"{found.path.name} holds {', '.join(saved)}; state() was given {', '.join(parts)}"
                )
            for name, part in parts.items():
                try:
                    part.load_state_dict(self._fitted(part, saved[name]))
                except (RuntimeError, ValueError, KeyError) as error:
                    raise TrainingError(
                        f"{found.path} does not fit what state() was given as {name}: {error}\n"
                        "undo the change, or begin anew in another run directory"
                    ) from error
            self.step, self._samples = found.manifest["step"], found.manifest["samples"]
            self._put_back_own(self._session.read_own())
        self._session.watch.step = self.step
        self._session.begin(Signals(os._exit))
        return self.step

    def batches(self, dataset: Any, batch_size: int, epochs: int, *, workers: int = 0) -> Iterator[Any]:
        """This rank's batches from where the run was left to the last epoch's end, each sample once an epoch.

        They are on this rank's ``device``; the model has to be there, too.

        ``batch_size`` counts over all ranks. The order is the same with any number of ranks and workers.
        """
        ranks = self._group.ranks
        micro, rest = divmod(batch_size, ranks.world_size)
        if rest:
            raise TrainingError(
                f"batch_size {batch_size} does not divide by the world size, {ranks.world_size}"
            )
        same_length(self._group, training=dataset)
        end = epochs * len(dataset)
        chosen = shares(self._samples, end, batch_size, micro, rank=ranks.rank, world_size=ranks.world_size)
        order = Order(len(dataset), self._seed)
        workers = count_workers(workers, self._group, dataset)
        for batch in train_batches(dataset, order, chosen, self._group, seed=self._seed, workers=workers):
            self._samples = min(end, self._samples + batch_size)
            yield batch
        self._through = True

    def should_stop(self) -> bool:
        """Call it at the end of each step: counts it, saves when it is time; True: all is saved, leave the loop."""
        watch = self._session.watch
        self.step += 1
        watch.step = self.step
        if self.step >= watch.line and watch.stop():
            self.save()
            self._session.stopped(self.step)
            self.stopped = True
            return True
        if self.step >= self._event:
            self._look_at_saves()
        return False

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
        self._begin_save()
        self._session.finish(self.step)
        self._group.barrier()
        if self._through:
            self._session.let_go()

    def _fitted(self, part: Any, saved: Any) -> Any:
        """A saved state, cut over the ranks as the part is now."""
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
        facts = {"samples": self._samples}
        self._session.save(self.step, lambda: {"state.pt": states}, lambda: self._own(states), facts)

    def _own(self, states: Mapping[str, Any]) -> dict[str, object]:
        """What is this rank's alone; with one process all is in the common part."""
        if not self._group.together:
            return {}
        buffers = {
            name: {each: buffer for each, buffer in part.named_buffers() if each in states[name]}
            for name, part in self._parts.items()
            if isinstance(part, torch.nn.Module)
        }
        return {"parts": {name: states[name] for name in self._apart()}, "buffers": buffers}

    def _apart(self) -> list[str]:
        """The parts of which each rank has its own."""
        common = (torch.nn.Module, *_COMMON)
        return [name for name, part in self._parts.items() if not isinstance(part, common)]

    def _put_back_own(self, own: Mapping[str, Any]) -> None:
        apart = self._apart()
        if not own and apart and self._group.together:
            self._session.console.say(
                f"note: with another number of processes {', '.join(apart)} begins as rank 0 had it, on every rank"
            )
        for name, state in own.get("parts", {}).items():
            self._parts[name].load_state_dict(state)
        for name, saved in own.get("buffers", {}).items():
            now = dict(self._parts[name].named_buffers())
            with torch.no_grad():
                for each, value in saved.items():
                    now[each].copy_(value)


def _sharded_in(value: Any) -> bool:
    """Whether there is a tensor in a state of which each rank has a piece."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(map(_sharded_in, value))
    return is_sharded(value)


def _has_pieces(part: Any) -> bool:
    """Whether it is a model of which each rank has a piece, or an optimizer of such a one."""
    if isinstance(part, torch.nn.Module):
        return any(map(is_sharded, part.parameters()))
    groups = part.param_groups if isinstance(part, torch.optim.Optimizer) else []
    return any(is_sharded(each) for group in groups for each in group["params"])
