"""The settings of the training entrypoint as Pydantic sees them: ``train:`` in a job file, and what ``train.json`` holds."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationInfo, create_model, field_validator

from slurmgpu.errors import PlanError
from slurmgpu.training.formats.combinations import clashes, copies_of, misfit, uneven_batch
from slurmgpu.training.formats.settings import (
    ABSENT,
    NOT_INTERLEAVED,
    TRAIN_SCHEMA,
    BestFields,
    EarlyStopFields,
    TrainFields,
    rules_of,
)

__all__ = ["BestSettings", "EarlyStopSettings", "TrainSettings"]

_KNOWN_TO_PYDANTIC = ("description", "examples", "ge", "gt", "le", "lt", "min_length")


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)


def _model(table: type, **kinds: Any) -> Any:
    """Return a model with the fields of a table; ``kinds``: types that only Pydantic has."""
    hints = {**get_type_hints(table), **kinds}
    given: dict[str, Any] = {}
    for each in dataclasses.fields(table):
        facts: dict[str, Any] = {
            name: each.metadata[name] for name in _KNOWN_TO_PYDANTIC if name in each.metadata
        }
        if each.default is not dataclasses.MISSING:
            facts["default"] = each.default
        elif each.default_factory is not dataclasses.MISSING:
            facts["default_factory"] = each.default_factory
        given[each.name] = (hints[each.name], Field(**facts))
    # Not of this module, in whose source it would be looked for.
    return create_model(table.__name__, __base__=_Strict, __module__=create_model.__module__, **given)


if TYPE_CHECKING:

    class _Best(BestFields, BaseModel): ...

    class _EarlyStop(EarlyStopFields, BaseModel): ...

    class _Train(TrainFields, BaseModel): ...

else:
    _Best, _EarlyStop = _model(BestFields), _model(EarlyStopFields)


class BestSettings(_Best):
    """Choice of the best evaluation."""


class EarlyStopSettings(_EarlyStop):
    """End of a training that no longer improves."""


if not TYPE_CHECKING:
    _Train = _model(
        TrainFields,
        best=BestSettings | None,
        early_stop=EarlyStopSettings | None,
        config=dict[str, JsonValue],
    )


class TrainSettings(_Train):
    """Settings of the training entrypoint."""

    ABSENT: ClassVar[Mapping[str, str]] = ABSENT

    @field_validator("task")
    @classmethod
    def _keeps_its_rule(cls, value: Any, info: ValidationInfo) -> Any:
        rule = rules_of(TrainFields)[info.field_name or ""]
        if not rule.holds(value):
            raise ValueError(f"must be {rule.valid}")
        return value

    @field_validator("micro_batch", "workers", "warmup_steps", "decay_steps", "min_lr", mode="before")
    @classmethod
    def _keeps_the_rule_of_all_its_types(cls, value: Any, info: ValidationInfo) -> Any:
        return cls._keeps_its_rule(value, info)

    @field_validator("pipeline_schedule", mode="before")
    @classmethod
    def _is_not_interleaved(cls, schedule: Any) -> Any:
        if schedule == "interleaved":
            raise ValueError(NOT_INTERLEAVED)
        return schedule

    @field_validator(
        "micro_batch", "static_graph", "checkpoint_shared_steps", "checkpoint_node_folder", "config"
    )
    @classmethod
    def _goes_with_the_others(cls, value: Any, info: ValidationInfo) -> Any:
        reason = misfit(info.field_name or "", value, info.data, cls.model_fields)
        if reason is not None:
            raise ValueError(reason)
        return value

    def copies(self, world_size: int) -> int:
        """Return how many processes, or pipelines of them, take samples of their own.

        The world size need not divide by the processes of a pipeline here (``require_processes``).
        """
        return copies_of(self, world_size)

    def samples_at_a_time(self, world_size: int) -> int:
        """Samples of one process in a micro-batch: batch_size / (copies * accumulate); with ``micro_batch``, at most.

        Raises:
            PlanError: it does not divide; the message names all figures and the nearest batch size that does.
        """
        copies = self.copies(world_size)
        if self.micro_batch is not None:
            share = -(-self.batch_size // copies)
            return share if self.micro_batch == "auto" else min(share, self.micro_batch)
        what = "world size" if copies == world_size else "copies of the model"
        if (uneven := uneven_batch(self, copies, what)) is not None:
            reason, nearest = uneven
            raise PlanError(
                f"train.{reason}",
                hint=f"write batch_size: {nearest} under train:, or --set train.batch_size={nearest}",
            )
        return self.batch_size // (copies * self.accumulate)

    def require_processes(self, world_size: int) -> None:
        """Refuse what the entrypoint would refuse at the start of the job, after its wait in the queue.

        With one process, nothing is cut, and numbers of processes are not judged: it may only prepare or estimate.

        Raises:
            PlanError: the strategy does not go with another setting, or with this number of processes; the message names both.
        """
        for reason, hint in clashes(self, world_size if world_size > 1 else None, "train."):
            raise PlanError(reason, hint=hint)

    def without_effect(self) -> tuple[str, ...]:
        """Return a line for each setting that only another strategy looks at."""
        own = {
            "cpu_offload": ("fsdp2", self.cpu_offload),
            "reshard_after_forward": ("fsdp2", not self.reshard_after_forward),
            "pipeline_schedule": ("pipeline", self.pipeline_schedule != "1f1b"),
        }
        return tuple(
            f"train.{name} has no effect with strategy: {self.strategy}; it is a setting of strategy: {strategy}"
            for name, (strategy, given) in own.items()
            if given and self.strategy != strategy
        )

    def document(self) -> dict[str, Any]:
        """Return what ``train.json`` holds: the schema and every setting, as JSON values."""
        return {"schema": TRAIN_SCHEMA, **self.model_dump(mode="json")}
