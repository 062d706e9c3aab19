"""The state of a training: into a checkpoint and back; what has changed in between is said."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

from .build import Training
from .errors import TrainingError
from .evaluation import Results
from .formats.checkpoint import AVERAGE, step_folder
from .formats.settings import CHANGE_NO_BIT, CHANGE_ONLY_ROUNDING
from .generators import put_back as put_generators_back
from .generators import seed_all, states_of
from .names import with_versions
from .optimizers import (
    Schedule,
    by_name,
    load_state,
    states_in,
    with_states,
    without_states,
)
from .order import mix
from .saving.checkpoint import Generation, counts
from .saving.late import LATE, with_late
from .saving.pieces import Owned, fit_model, fit_optimizer, refuse_uneven
from .saving.snapshot import plain_state
from .settings import Settings
from .step import put_back

if TYPE_CHECKING:
    from .sharding.pipeline import Staged
    from .streams import Stream

__all__ = ["common_state", "facts_of", "own_state", "restore", "restore_rank"]

# What may differ after a resume; a changed schedule says so itself.
_FREE = CHANGE_NO_BIT | CHANGE_ONLY_ROUNDING | {"config"}


def facts_of(training: Training, complete: bool) -> dict[str, object]:
    """Return what the manifest says of the training at this step."""
    position = training.position
    return {
        "samples": position.samples,
        "dataset_samples": training.dataset_samples,
        "epoch": training.epoch,
        "evaluated": position.closed_epochs,
        "tested": position.evaluated_step,
        "complete": complete,
        "total_steps": training.total_steps,
        "task_sha256": training.task.sha256,
        "results": training.results.values,
        **training.judge.facts(position.step),
        "order": training.order_mark(),
        "settings": training.settings.as_dict(),
        "stages": None if training.staged is None else training.staged.count,
    }


def common_state(training: Training) -> dict[str, object]:
    """Return what all ranks have in common, by the names of the files."""
    if training.staged is not None:
        return _common_of_stages(training, training.staged)
    if training.sharded:
        for each in by_name(training.optimizer).values():
            refuse_uneven(each)
    average = {} if training.average is None else {AVERAGE: training.average.state_dict()}
    others = {
        "optimizer": training.optimizer.state_dict(),
        "schedule": plain_state(training.schedule),
        "scaler": plain_state(training.precision.scaler),
    }
    if training.epoch_schedule is not None:
        others["epoch_schedule"] = training.epoch_schedule.state_dict()
    return {"model.pt": training.model.state_dict(), "training.pt": others, **average}


def _common_of_stages(training: Training, staged: Staged) -> dict[str, object]:
    """Return the same of a pipeline: each stage has its own weights, and keeps the state of their optimizer itself."""
    state, found = training.model.state_dict(), dict[str, object]()
    model = {
        name: Owned(each, staged.owners[name]) if name in staged.owners else each
        for name, each in state.items()
    }
    found["model.pt"] = with_versions(model, state)
    others = {
        "optimizer": without_states(training.optimizer.state_dict()),
        "schedule": plain_state(training.schedule),
        "scaler": None,
    }
    if training.epoch_schedule is not None:
        others["epoch_schedule"] = training.epoch_schedule.state_dict()
    return {**found, "training.pt": others}


def own_state(training: Training) -> dict[str, object]:
    """Return what a rank has of its own, beside its random state."""
    own: dict[str, object] = {"meter": training.meter.state()}
    if training.staged is not None and training.group.data.first:
        own["optimizer"] = states_in(training.optimizer.state_dict())
    buffers = training.own_buffers()
    if buffers:
        own["buffers"] = buffers
    generators = training.generators()
    if generators:
        own["generators"] = states_of(generators)
    if training.stream is not None:
        own["stream"] = training.stream.state()
    if training.task.own is not None:
        own["task"] = training.task.state()
    return own


def restore(training: Training) -> None:
    """Put model, optimizer, schedule, scaler and position back, and say what is not as it was.

    Raises:
        TrainingError: the checkpoint does not fit the model or the optimizer.
    """
    session, found = training.session, training.session.found
    assert found is not None
    name, facts = found.path.name, found.manifest
    try:
        pieces, rank = session.pieces, training.group.ranks.rank
        training.model.load_state_dict(
            fit_model(session.read_common("model.pt"), training.model.state_dict(), pieces, rank)
        )
        late = session.read_common(LATE) if LATE in facts["parts"] else {}
        state = with_late(session.read_common("training.pt"), late)
        state["optimizer"] = _optimizer_state(training, facts, state["optimizer"])
        if training.average is not None and AVERAGE in facts["parts"]:
            averages = fit_model(session.read_common(AVERAGE), training.average.state_dict(), pieces, rank)
            training.average.load_state_dict(averages)
        # Earlier versions evaluated at the ends of epochs alone, and do not say at which step.
        tested = facts.get("tested", 0)
        position = training.position
        position.step, position.samples = facts["step"], _samples(training, found)
        position.closed_epochs, position.evaluated_step = facts["evaluated"], tested
        if training.stream is not None:
            _restore_stream(training, training.stream, found)
        training.total_steps = facts["step"] + training.remaining_steps()
        anew = None
        if training.schedule is not None and facts["total_steps"] != training.total_steps:
            anew = "the training's length has changed"
        elif training.schedule is not None and state["schedule"] is None:
            anew = "there was none before"
        if anew is not None:
            _restart_schedule(training, state["optimizer"], facts["step"], anew)
        else:
            load_state(training.optimizer, state["optimizer"])
            if training.schedule is not None:
                _load_schedule(training.schedule, state["schedule"])
        if training.epoch_schedule is not None:
            training.epoch_schedule.load_state_dict(state.get("epoch_schedule"))
        if training.task.own is not None:
            _restore_task(training, found, state.get("task"))
        if training.precision.scaler is not None and state["scaler"] is not None:
            training.precision.scaler.load_state_dict(state["scaler"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise TrainingError(
            f"{name} does not fit the model and optimizer of {training.task.path}: {error}\n"
            "undo the change, or submit the job again: a new run starts at the first step"
        ) from error
    training.results = Results(dict(facts["results"]), {})
    _restore_judge(training, found)
    changed = _changes(training, found)
    if changed:
        kept = (
            ""
            if anew is not None
            else "; what optimizer and schedule saved, such as the learning rate, stays in force"
        )
        training.console.say(f"note: changed since {name}: {', '.join(changed)}. Training goes on{kept}")


def _optimizer_state(
    training: Training, facts: Mapping[str, Any], common: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the state that this process's optimizer loads, out of what all have in common, and what stages keep themselves."""
    session = training.session
    stages = _stages_to_read(training, facts)
    for stage in stages:
        read = session.read if len(stages) < facts["stages"] else session.read_common
        common = with_states(common, read(f"rank-{stage}.pt")["optimizer"])
    return fit_optimizer(training.optimizer, common, session.pieces, training.group.ranks.rank)


def _stages_to_read(training: Training, facts: Mapping[str, Any]) -> range:
    """Return the processes of a pipeline whose optimizer's state is needed: this one's own, or all where they have others now."""
    stages = facts.get("stages") or 0
    # Earlier versions could give a process several stages.
    if training.staged is not None and training.staged.count == stages and facts.get("stages_each", 1) == 1:
        return range(training.staged.number, training.staged.number + 1)
    return range(stages)


def _restore_judge(training: Training, found: Generation) -> None:
    """Let the judge go on; a best checkpoint that somebody has removed is said, and is none any more."""
    judge = training.judge
    for note in judge.restore(found.manifest):
        training.console.say(f"note: {note}")
    step, folder = judge.kept, found.path.parent
    if step is not None and not training.group.on_first(lambda: counts(step_folder(folder, step))):
        judge.lose()
        training.console.say(
            f"note: the best checkpoint, step-{step}, is gone: the next evaluation is the best one"
        )


def _samples(training: Training, found: Generation) -> int:
    """Return the position in samples; with data of another size, as far into the same epoch as there is."""
    samples: int = found.manifest["samples"]
    size: Optional[int] = found.manifest["dataset_samples"]
    now = training.samples
    if size is None or training.stream is not None or size == now:
        return samples
    epoch, inside = divmod(samples, size)
    return epoch * now + min(inside, now)


def _restore_stream(training: Training, stream: Stream, found: Generation) -> None:
    """Let the stream go on where this rank's readers were; with other ranks these have other shares of it."""
    ranks = training.group.ranks
    saved = None
    if found.manifest["world_size"] == ranks.world_size:
        saved = training.session.read(f"rank-{ranks.rank}.pt").get("stream")
    if saved is not None:
        stream.restore(saved)
    else:
        training.console.say(
            f"note: the stream begins anew, because {found.path.name} is of {found.manifest['world_size']} process(es) and "
            "holds no place in it for the shares of now: samples come again"
        )


def _restore_task(training: Training, found: Generation, late: Optional[dict[str, Any]]) -> None:
    """Give the task its own state back: a later one, this rank's, or rank 0's where there were other ranks."""
    ranks = training.group.ranks
    same = found.manifest["world_size"] == ranks.world_size
    saved = late or training.session.read(f"rank-{ranks.rank if same else 0}.pt").get("task")
    if saved is None:
        training.console.say(
            f"note: the task's own state begins anew, because {found.path.name} was saved without one"
        )
        return
    if not same:
        training.console.say(
            f"note: the task's own state is that of rank 0 on every rank, because {found.path.name} is of "
            f"{found.manifest['world_size']} process(es)"
        )
    training.task.own.load_state_dict(saved)


def restore_rank(training: Training) -> None:
    """Restore this rank's random state, and the losses that are not logged yet.

    With another number of ranks these mean nothing, and the random states are seeded anew from the step.
    """
    own, found = training.session.read_own(), training.session.found
    if own:
        put_back(training.model.buffers(), own.get("buffers", []))
        if not put_generators_back(training.generators(), own.get("generators", [])):
            training.console.say(
                "note: random generators that the model and the task keep begin anew: the checkpoint has others"
            )
        # With a complete one all losses are logged, those that its parts were saved with too.
        if found is not None and not found.manifest["complete"]:
            training.meter.restore(own["meter"])
            training.meter.open = training.group.any(training.meter.has_losses)
    else:
        rank = training.group.data.rank
        seed_all(mix(training.settings.seed, 1 + rank, training.position.step) >> 1)


def _load_schedule(schedule: Schedule, saved: Mapping[str, Any]) -> None:
    """Put a schedule's state back; what it says to one of another kind is no word for a user."""
    try:
        schedule.load_state_dict(dict(saved))
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the schedule, a {type(schedule).__name__}, does not take the saved state, which seems to be of another kind "
            f"({type(error).__name__}: {error})"
        ) from error


def _restart_schedule(training: Training, saved: Mapping[str, object], done: int, why: str) -> None:
    """Make the schedule for a training of another length and move it to this step; keep the optimizer's saved state.

    The old schedule would end too early, or fail when asked for more steps than it was made for.
    """
    training.renew_schedule()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the schedule moves while the optimizer rests: here it must
        for _ in range(done):
            training.schedule.step()  # type: ignore[union-attr]  # the caller has seen that there is one
    load_state(training.optimizer, saved, keep_groups=True)
    training.console.say(
        f"note: the schedule is made anew for {training.total_steps} steps, of which {done} are through: {why}"
    )


def _changes(training: Training, found: Generation) -> list[str]:
    """Return what matters and is not as it was when the checkpoint was written, as ``name old -> new``."""
    facts = found.manifest
    # What an earlier version did not know was as it is by default.
    before = {**Settings(training.settings.task).as_dict(), **facts["settings"]}
    now = training.settings.as_dict()
    pairs = [(name, before.get(name), now[name]) for name in now if name not in _FREE]
    old, new = before.get("config", {}), training.settings.config
    pairs += [(f"config.{name}", old.get(name), new.get(name)) for name in {**old, **new}]
    pairs.append(("world size", facts["world_size"], training.group.ranks.world_size))
    pairs.append(("the data's size", facts["dataset_samples"], training.dataset_samples))
    changed = [f"{name} {old} -> {new}" for name, old, new in pairs if old != new]
    same_size = facts["dataset_samples"] == training.dataset_samples
    if same_size and facts.get("order") is not None and facts["order"] != training.order_mark():
        changed.append(f"the order of samples ({training.task.ordered_by or 'now a shuffle'})")
    if facts["task_sha256"] != training.task.sha256:
        changed.append(f"the text of {training.task.path.name}")
    return changed
