"""A run from its directory to its last checkpoint: resume, train, save, report."""

from __future__ import annotations

import hashlib
import itertools
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import torch

from . import checkpoint, randomness
from .checkpoint import Generation
from .console import Console, describe, duration
from .errors import SettingsError, Stopped, TrainingError
from .group import Group
from .loop import Loop, Position
from .metrics import Metrics
from .settings import Config, Settings
from .task import Task, load

__all__ = ["train"]

# What may differ after a resume without changing what is computed; a changed schedule says so itself.
_FREE = {
    "strategy",
    "epochs",
    "max_steps",
    "workers",
    "checkpoint_every",
    "keep",
    "resume",
    "log_every",
    "timeout",
}
_SCHEDULE = "the schedule's state"


def train(settings: Settings, run_dir: Path, group: Group, environment: Mapping[str, str]) -> None:
    """Train as the settings say, from the newest intact checkpoint in the run directory if there is one."""
    started = time.perf_counter()
    console = Console(group.ranks.first)
    if settings.strategy == "single" and group.together:
        raise SettingsError(
            f"strategy is single, but world size is {group.ranks.world_size}: "
            "use strategy ddp or auto, or start one process"
        )
    limit, limit_name = _step_limit(settings, environment)
    found, notes = group.on_first(lambda: _open_checkpoints(run_dir / "checkpoints", settings))
    for note in notes:
        console.say(f"note: {note}")
    if found is not None and _finished(found.manifest, settings, limit):
        console.say(_already_finished(found))
        return
    restart = int(environment.get("SLURM_RESTART_COUNT") or 0)
    metrics = Metrics(run_dir / "metrics.jsonl" if group.ranks.first else None, restart)
    task = load(settings.task)
    group.on_first(lambda: task.prepare(Config(settings)))
    loop = Loop(task, settings, group, console, metrics, limit)
    try:
        if found is not None:
            _resume(loop, found)
        _state_of(loop.schedule, _SCHEDULE)  # what cannot be saved is found out now, not after an epoch
        loop.connect()
        _announce(loop, found)
        for _ in loop.epochs():
            whole = loop.position.samples_in_epoch == 0
            if loop.done or (whole and loop.position.epoch % settings.checkpoint_every == 0):
                found = _save(loop, run_dir / "checkpoints", restart)
            _report_epoch(loop)
    except Stopped as stop:
        metrics.write("end", loop.position.step, {"reason": stop.name})
        kept = f"checkpoints/{found.path.name}" if found is not None else "none"
        console.say(f"stopped by {stop.name} at step {loop.position.step}; newest checkpoint: {kept}")
        raise
    _finish(loop, time.perf_counter() - started, limit_name)
    group.barrier()  # nobody leaves before the last checkpoint is there: srun ends the rest after a while


def _step_limit(settings: Settings, environment: Mapping[str, str]) -> tuple[Optional[int], str]:
    """The step to stop at and the setting that says so; ``SLURMGPU_MAX_STEPS`` cuts a run short."""
    text = environment.get("SLURMGPU_MAX_STEPS", "")
    if not text:
        return settings.max_steps, "max_steps"
    if not text.isdecimal() or not int(text):
        raise SettingsError(f"SLURMGPU_MAX_STEPS is {text!r}; it must be a whole number of at least 1")
    if settings.max_steps is not None and settings.max_steps <= int(text):
        return settings.max_steps, "max_steps"
    return int(text), "SLURMGPU_MAX_STEPS"


def _open_checkpoints(folder: Path, settings: Settings) -> tuple[Optional[Generation], list[str]]:
    """Clear away what a kill left, and find where to go on (rank 0 only)."""
    checkpoint.sweep(folder)
    if not settings.resume and any(folder.glob("step-*")):
        aside = checkpoint.set_aside(folder, "earlier")
        return None, [
            f"resume is false: the earlier checkpoints are now in {aside.name}, training starts anew"
        ]
    return checkpoint.newest_intact(folder)


def _finished(manifest: Mapping[str, Any], settings: Settings, limit: Optional[int]) -> bool:
    return manifest["epoch"] >= settings.epochs or (limit is not None and manifest["step"] >= limit)


def _already_finished(found: Generation) -> str:
    facts = found.manifest
    return (
        f"already done: {facts['epoch']} epochs, {facts['step']} steps, {describe(facts['results'])} "
        f"(checkpoints/{found.path.name}); to train on, raise epochs or max_steps"
    )


def _resume(loop: Loop, found: Generation) -> None:
    """Put model, optimizer, schedule, scaler, position and random state back."""
    facts = found.manifest
    anew = loop.schedule is not None and facts["total_steps"] != loop.total_steps
    try:
        loop.model.load_state_dict(checkpoint.read(found, "model.pt"))
        state = checkpoint.read(found, "training.pt")
        loop.position = Position(facts["epoch"], facts["step"], facts["samples_in_epoch"])
        if anew:
            _restart_schedule(loop, state["optimizer"])
        else:
            loop.optimizer.load_state_dict(state["optimizer"])
            if loop.schedule is not None:
                loop.schedule.load_state_dict(state["schedule"])
        if loop.precision.scaler is not None and state["scaler"] is not None:
            loop.precision.scaler.load_state_dict(state["scaler"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise TrainingError(
            f"{found.path.name} does not fit the model and optimizer of {loop.task.path}: {error}\n"
            "undo the change, or set resume: false to start anew"
        ) from error
    loop.results = dict(facts["results"])
    states = checkpoint.read(found, "rng.pt")
    rank = loop.group.ranks.rank
    if len(states) == loop.group.ranks.world_size:
        randomness.restore(states[rank], loop.group.device)
    else:
        randomness.seed_all(loop.settings.seed + facts["step"] + 1 + rank)
    changed = _changes(loop, facts)
    if changed:
        kept = (
            "" if anew else "; what optimizer and schedule saved, such as the learning rate, stays in force"
        )
        loop.console.say(
            f"note: changed since {found.path.name}: {', '.join(changed)}. Training goes on{kept}"
        )


def _restart_schedule(loop: Loop, saved: dict[str, Any]) -> None:
    """For a training of another length: the new schedule moved on to here, with the optimizer's saved state.

    The old one would end too early, or fail when it is asked for more steps than it was made for.
    """
    done = loop.total_steps - loop.remaining_steps()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the schedule moves while the optimizer rests: here it must
        for _ in range(done):
            loop.schedule.step()  # type: ignore[union-attr]  # the caller has seen that there is one
    groups = loop.optimizer.state_dict()["param_groups"]
    loop.optimizer.load_state_dict({**saved, "param_groups": groups})
    loop.console.say(
        f"note: the schedule is made anew for {loop.total_steps} steps, of which {done} are through: "
        "the training's length has changed"
    )


def _changes(loop: Loop, facts: Mapping[str, Any]) -> list[str]:
    """What matters and is not as it was when the checkpoint was written, as ``name old -> new``."""
    before, now = dict(facts["settings"]), loop.settings.as_dict()
    pairs = [(name, before.get(name), now[name]) for name in now if name not in _FREE | {"config"}]
    old, new = before.get("config", {}), now["config"]
    pairs += [(f"config.{name}", old.get(name), new.get(name)) for name in {**old, **new}]
    pairs.append(("world size", facts["world_size"], loop.group.ranks.world_size))
    changed = [f"{name} {old} -> {new}" for name, old, new in pairs if old != new]
    if facts["task_sha256"] != _sha256(loop.task):
        changed.append(f"the text of {loop.task.path.name}")
    return changed


def _sha256(task: Task) -> str:
    return hashlib.sha256(task.path.read_bytes()).hexdigest()


def _announce(loop: Loop, found: Optional[Generation]) -> None:
    """Say and write down who trains what, and where it starts."""
    ranks, device = loop.group.ranks, loop.group.device
    loop.share.set_epoch(loop.position.epoch)
    place = {
        "rank": ranks.rank,
        "host": ranks.host,
        "pid": os.getpid(),
        "device": str(device),
        "samples": loop.share_size,
        "first_samples": list(itertools.islice(loop.share, 8)),
    }
    everyone = loop.group.gather(place)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    values = {
        "world_size": ranks.world_size,
        "launcher": ranks.launcher,
        "device_name": name,
        "torch": torch.__version__,
        "ranks": everyone,
        "micro_batch": loop.micro,
        "steps_per_epoch": loop.steps_per_epoch,
        "total_steps": loop.total_steps,
        "resumed_from": None if found is None else found.path.name,
        "settings": loop.settings.as_dict(),
    }
    loop.metrics.write("start", loop.position.step, values)
    nodes = len({each["host"] for each in everyone})
    loop.console.say(
        f"training {loop.settings.task}: processes: {ranks.world_size}, nodes: {nodes}, {name}, "
        f"{loop.settings.precision}, {loop.settings.epochs} epochs of {loop.steps_per_epoch} steps, "
        f"batch {loop.settings.batch_size} = {ranks.world_size} x {loop.settings.accumulate} x {loop.micro}"
    )
    if found is not None:
        loop.console.say(f"resuming from checkpoints/{found.path.name} (after epoch {loop.position.epoch})")


def _save(loop: Loop, folder: Path, restart: int) -> Generation:
    """Write a checkpoint on rank 0, with every rank's random state, while the others wait."""
    started = time.perf_counter()
    states = loop.group.gather(randomness.capture(loop.group.device))
    position = loop.position

    def write() -> Generation:
        parts = {
            "model.pt": checkpoint.plain(loop.model.state_dict(), "the model's state"),
            "training.pt": {
                "optimizer": checkpoint.plain(loop.optimizer.state_dict(), "the optimizer's state"),
                "schedule": _state_of(loop.schedule, _SCHEDULE),
                "scaler": _state_of(loop.precision.scaler, "the scaler's state"),
            },
            "rng.pt": states,
        }
        facts = {
            "epoch": position.epoch,
            "samples_in_epoch": position.samples_in_epoch,
            "time": time.time(),
            "restart": restart,
            "total_steps": loop.total_steps,
            "world_size": loop.group.ranks.world_size,
            "torch": torch.__version__,
            "task_sha256": _sha256(loop.task),
            "results": loop.results,
            "settings": loop.settings.as_dict(),
        }
        return checkpoint.save(folder, position.step, parts, facts, loop.settings.keep)

    written = loop.group.on_first(write)
    values = {
        "path": f"checkpoints/{written.path.name}",
        "seconds": time.perf_counter() - started,
        "bytes": sum(part["bytes"] for part in written.manifest["parts"].values()),
    }
    loop.metrics.write("checkpoint", position.step, values)
    return written


def _state_of(part: Any, where: str) -> Any:
    """A part's state as plain values; functions in it (older OneCycleLR) come back with the part itself."""
    if part is None:
        return None
    state = {name: value for name, value in part.state_dict().items() if not callable(value)}
    return checkpoint.plain(state, where)


def _report_epoch(loop: Loop) -> None:
    position = loop.position
    loop.console.say(
        f"epoch {position.epoch}/{loop.settings.epochs}  step {position.step}/{loop.last_step()}  "
        f"{describe(loop.results)}"
    )


def _finish(loop: Loop, seconds: float, limit_name: str) -> None:
    position, settings = loop.position, loop.settings
    cut = position.epoch < settings.epochs
    reason = limit_name if cut else "epochs"
    values = {"reason": reason, "epochs": position.epoch, "seconds": seconds, **loop.results}
    loop.metrics.write("end", position.step, values)
    loop.console.say(
        f"done: {position.epoch} epochs, {position.step} steps, {duration(seconds)}, {describe(loop.results)}"
        + (f" (stopped by {limit_name})" if cut else "")
    )
