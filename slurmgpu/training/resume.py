"""From a checkpoint back into a training: everything put back, and what has changed since is said."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Optional

from .errors import TrainingError
from .evaluation import Results
from .export import AVERAGE
from .formats.checkpoint import step_folder
from .formats.settings import CHANGE_NO_BIT, CHANGE_ONLY_ROUNDING
from .generators import put_back as put_generators_back
from .loop import Loop, Position
from .optimizers import Schedule, load_state, with_states
from .order import mix
from .saving import randomness
from .saving.checkpoint import Generation, counts
from .saving.late import LATE, with_late
from .saving.pieces import fit_model, fit_optimizer
from .settings import Settings
from .step import put_back
from .streams import Stream

__all__ = ["restore", "restore_rank"]

# What may differ after a resume; a changed schedule says so itself.
_FREE = CHANGE_NO_BIT | CHANGE_ONLY_ROUNDING | {"config"}


def restore(loop: Loop) -> None:
    """Put model, optimizer, schedule, scaler and position back, and say what is not as it was.

    Raises:
        TrainingError: the checkpoint does not fit the model or the optimizer.
    """
    session, found = loop.session, loop.session.found
    assert found is not None
    name, facts = found.path.name, found.manifest
    try:
        pieces, rank = session.pieces, loop.group.ranks.rank
        loop.model.load_state_dict(
            fit_model(session.read_common("model.pt"), loop.model.state_dict(), pieces, rank)
        )
        late = session.read_common(LATE) if LATE in facts["parts"] else {}
        state = with_late(session.read_common("training.pt"), late)
        state["optimizer"] = _optimizer_state(loop, facts, state["optimizer"])
        if loop.average is not None and AVERAGE in facts["parts"]:
            averages = fit_model(session.read_common(AVERAGE), loop.average.state_dict(), pieces, rank)
            loop.average.load_state_dict(averages)
        # Earlier versions evaluated at the ends of epochs alone, and do not say at which step.
        tested = facts.get("tested", 0)
        loop.position = Position(facts["step"], _samples(loop, found), facts["evaluated"], tested)
        if loop.stream is not None:
            _restore_stream(loop, loop.stream, found)
        loop.total_steps = facts["step"] + loop.remaining_steps()
        anew = None
        if loop.schedule is not None and facts["total_steps"] != loop.total_steps:
            anew = "the training's length has changed"
        elif loop.schedule is not None and state["schedule"] is None:
            anew = "there was none before"
        if anew is not None:
            _restart_schedule(loop, state["optimizer"], facts["step"], anew)
        else:
            load_state(loop.optimizer, state["optimizer"])
            if loop.schedule is not None:
                _load_schedule(loop.schedule, state["schedule"])
        if loop.epoch_schedule is not None:
            loop.epoch_schedule.load_state_dict(state.get("epoch_schedule"))
        if loop.task.own is not None:
            _restore_task(loop, found, state.get("task"))
        if loop.precision.scaler is not None and state["scaler"] is not None:
            loop.precision.scaler.load_state_dict(state["scaler"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise TrainingError(
            f"{name} does not fit the model and optimizer of {loop.task.path}: {error}\n"
            "undo the change, or submit the job again: a new run starts at the first step"
        ) from error
    loop.results = Results(dict(facts["results"]), {})
    _restore_judge(loop, found)
    changed = _changes(loop, found)
    if changed:
        kept = (
            ""
            if anew is not None
            else "; what optimizer and schedule saved, such as the learning rate, stays in force"
        )
        loop.console.say(f"note: changed since {name}: {', '.join(changed)}. Training goes on{kept}")


def _optimizer_state(loop: Loop, facts: Mapping[str, Any], common: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state that this process's optimizer loads, out of what all have in common, and what stages keep themselves."""
    session = loop.session
    stages = _stages_to_read(loop, facts)
    for stage in stages:
        read = session.read if len(stages) < facts["stages"] else session.read_common
        common = with_states(common, read(f"rank-{stage}.pt")["optimizer"])
    return fit_optimizer(loop.optimizer, common, session.pieces, loop.group.ranks.rank)


def _stages_to_read(loop: Loop, facts: Mapping[str, Any]) -> range:
    """Return the processes of a pipeline whose optimizer's state is needed: this one's own, or all where they have others now."""
    stages = facts.get("stages") or 0
    # Earlier versions could give a process several stages.
    if loop.staged is not None and loop.staged.count == stages and facts.get("stages_each", 1) == 1:
        return range(loop.staged.number, loop.staged.number + 1)
    return range(stages)


def _restore_judge(loop: Loop, found: Generation) -> None:
    """Let the judge go on; a best checkpoint that somebody has removed is said, and is none any more."""
    judge = loop.judge
    for note in judge.restore(found.manifest):
        loop.console.say(f"note: {note}")
    step, folder = judge.kept, found.path.parent
    if step is not None and not loop.group.on_first(lambda: counts(step_folder(folder, step))):
        judge.lose()
        loop.console.say(
            f"note: the best checkpoint, step-{step}, is gone: the next evaluation is the best one"
        )


def _samples(loop: Loop, found: Generation) -> int:
    """Return the position in samples; with data of another size, as far into the same epoch as there is."""
    samples: int = found.manifest["samples"]
    size: Optional[int] = found.manifest["dataset_samples"]
    now = loop.samples
    if size is None or loop.stream is not None or size == now:
        return samples
    epoch, inside = divmod(samples, size)
    return epoch * now + min(inside, now)


def _restore_stream(loop: Loop, stream: Stream, found: Generation) -> None:
    """Let the stream go on where this rank's readers were; with other ranks these have other shares of it."""
    ranks = loop.group.ranks
    saved = None
    if found.manifest["world_size"] == ranks.world_size:
        saved = loop.session.read(f"rank-{ranks.rank}.pt").get("stream")
    if saved is not None:
        stream.restore(saved)
    else:
        loop.console.say(
            f"note: the stream begins anew, because {found.path.name} is of {found.manifest['world_size']} process(es) and "
            "holds no place in it for the shares of now: samples come again"
        )


def _restore_task(loop: Loop, found: Generation, late: Optional[dict[str, Any]]) -> None:
    """Give the task its own state back: a later one, this rank's, or rank 0's where there were other ranks."""
    ranks = loop.group.ranks
    same = found.manifest["world_size"] == ranks.world_size
    saved = late or loop.session.read(f"rank-{ranks.rank if same else 0}.pt").get("task")
    if saved is None:
        loop.console.say(
            f"note: the task's own state begins anew, because {found.path.name} was saved without one"
        )
        return
    if not same:
        loop.console.say(
            f"note: the task's own state is that of rank 0 on every rank, because {found.path.name} is of "
            f"{found.manifest['world_size']} process(es)"
        )
    loop.task.own.load_state_dict(saved)


def restore_rank(loop: Loop) -> None:
    """Restore this rank's random state, and the losses that are not logged yet.

    With another number of ranks these mean nothing, and the random states are seeded anew from the step.
    """
    own, found = loop.session.read_own(), loop.session.found
    if own:
        put_back(loop.model.buffers(), own.get("buffers", []))
        if not put_generators_back(loop.generators(), own.get("generators", [])):
            loop.console.say(
                "note: random generators that the model and the task keep begin anew: the checkpoint has others"
            )
        # With a complete one all losses are logged, those that its parts were saved with too.
        if found is not None and not found.manifest["complete"]:
            loop.meter.restore(own["meter"])
            loop.meter.open = loop.group.any(loop.meter.has_losses)
    else:
        rank = loop.group.data.rank
        randomness.seed_all(mix(loop.settings.seed, 1 + rank, loop.position.step) >> 1)


def _load_schedule(schedule: Schedule, saved: Mapping[str, Any]) -> None:
    """Put a schedule's state back; what it says to one of another kind is no word for a user."""
    try:
        schedule.load_state_dict(dict(saved))
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the schedule, a {type(schedule).__name__}, does not take the saved state, which seems to be of another kind "
            f"({type(error).__name__}: {error})"
        ) from error


def _restart_schedule(loop: Loop, saved: Mapping[str, object], done: int, why: str) -> None:
    """Make the schedule for a training of another length and move it to this step; keep the optimizer's saved state.

    The old schedule would end too early, or fail when asked for more steps than it was made for.
    """
    loop.renew_schedule()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the schedule moves while the optimizer rests: here it must
        for _ in range(done):
            loop.schedule.step()  # type: ignore[union-attr]  # the caller has seen that there is one
    load_state(loop.optimizer, saved, keep_groups=True)
    loop.console.say(
        f"note: the schedule is made anew for {loop.total_steps} steps, of which {done} are through: {why}"
    )


def _changes(loop: Loop, found: Generation) -> list[str]:
    """Return what matters and is not as it was when the checkpoint was written, as ``name old -> new``."""
    facts = found.manifest
    # What an earlier version did not know was as it is by default.
    before = {**Settings(loop.settings.task).as_dict(), **facts["settings"]}
    now = loop.settings.as_dict()
    pairs = [(name, before.get(name), now[name]) for name in now if name not in _FREE]
    old, new = before.get("config", {}), loop.settings.config
    pairs += [(f"config.{name}", old.get(name), new.get(name)) for name in {**old, **new}]
    pairs.append(("world size", facts["world_size"], loop.group.ranks.world_size))
    pairs.append(("the data's size", facts["dataset_samples"], loop.dataset_samples))
    changed = [f"{name} {old} -> {new}" for name, old, new in pairs if old != new]
    same_size = facts["dataset_samples"] == loop.dataset_samples
    if same_size and facts.get("order") is not None and facts["order"] != loop.order_mark():
        changed.append(f"the order of samples ({loop.task.ordered_by or 'now a shuffle'})")
    if facts["task_sha256"] != loop.task.sha256:
        changed.append(f"the text of {loop.task.path.name}")
    return changed
