"""The settings of the training entrypoint as Pydantic sees them: ``train:`` in a job file, and what ``train.json`` holds."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationInfo, create_model, field_validator

from slurmgpu.errors import PlanError
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
    """Which evaluation is the best one."""


class EarlyStopSettings(_EarlyStop):
    """When a training ends because it does not get better."""


if not TYPE_CHECKING:
    _Train = _model(
        TrainFields,
        best=BestSettings | None,
        early_stop=EarlyStopSettings | None,
        config=dict[str, JsonValue],
    )


class TrainSettings(_Train):
    """How the training entrypoint trains a task."""

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

    @field_validator("static_graph")
    @classmethod
    def _is_not_beside_accumulate(cls, static_graph: bool, info: ValidationInfo) -> bool:
        for name in ("accumulate", "micro_batch"):
            if static_graph and info.data.get(name) not in (None, 1):
                raise ValueError(f"torch's DDP cannot do it beside {name}; leave out one of them")
        return static_graph

    @field_validator("checkpoint_shared_steps")
    @classmethod
    def _is_beyond_checkpoint_steps(cls, shared: int | None, info: ValidationInfo) -> int | None:
        steps = info.data.get("checkpoint_steps")
        if shared is not None and (steps is None or steps >= shared):
            raise ValueError(
                f"steps in between are kept on the nodes every checkpoint_steps, which is {steps or 'not set'}: set "
                f"checkpoint_steps to less than {shared}, such as 1, or leave checkpoint_shared_steps out"
            )
        return shared

    @field_validator("checkpoint_node_folder")
    @classmethod
    def _is_beside_checkpoint_shared_steps(cls, folder: str | None, info: ValidationInfo) -> str | None:
        if folder is not None and info.data.get("checkpoint_shared_steps") is None:
            raise ValueError("nothing is kept on the nodes: set checkpoint_shared_steps too, or leave it out")
        return folder

    @field_validator("micro_batch")
    @classmethod
    def _is_in_place_of_accumulate(cls, micro_batch: Any, info: ValidationInfo) -> Any:
        if micro_batch is not None and info.data.get("accumulate", 1) > 1:
            raise ValueError("accumulate follows from it; leave out one of them")
        return micro_batch

    @field_validator("config")
    @classmethod
    def _readable_by_name(cls, config: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for name in config:
            if not name.isidentifier():
                raise ValueError(
                    f"the key {name!r} cannot be read as cfg.NAME: use letters, digits and underscores"
                )
            if name in cls.model_fields:
                raise ValueError(f"{name} is a setting of its own; write it beside config, not inside")
        return config

    def copies(self, world_size: int) -> int:
        """Return how many processes, or pipelines of them, take samples of their own.

        The world size need not divide by the processes of a pipeline here (``require_processes``).
        """
        if self.strategy == "pipeline":
            return max(1, world_size // (self.pipeline_stages or world_size))
        return world_size

    def samples_at_a_time(self, world_size: int) -> int:
        """Samples of one process in a micro-batch: batch_size / (copies * accumulate); with ``micro_batch``, at most.

        Raises:
            PlanError: it does not divide; the message names all figures and the nearest batch size that does.
        """
        copies = self.copies(world_size)
        if self.micro_batch is not None:
            share = -(-self.batch_size // copies)
            return share if self.micro_batch == "auto" else min(share, self.micro_batch)
        parts = copies * self.accumulate
        micro, rest = divmod(self.batch_size, parts)
        if not rest:
            return micro
        nearest = max(parts, round(self.batch_size / parts) * parts)
        what = f"world size {world_size}" if copies == world_size else f"copies of the model {copies}"
        raise PlanError(
            f"train.batch_size {self.batch_size} does not divide by {parts} "
            f"({what} x accumulate {self.accumulate}); the nearest batch_size is {nearest}",
            hint=f"write batch_size: {nearest} under train:, or --set train.batch_size={nearest}",
        )

    def require_processes(self, world_size: int) -> None:
        """Refuse what the entrypoint would refuse at the start of the job, after its wait in the queue.

        With one process, nothing is cut, and numbers of processes are not judged: it may only prepare or estimate.

        Raises:
            PlanError: the strategy does not go with another setting, or with this number of processes; the message names both.
        """
        for reason, hint in self._clashes(world_size):
            raise PlanError(reason, hint=hint)

    def _clashes(self, world_size: int) -> Iterator[tuple[str, str]]:
        strategy, stages = self.strategy, self.pipeline_stages
        where = f"train.strategy is {strategy}"
        if self.meta_device and strategy not in ("fsdp2", "pipeline"):
            yield (
                f"train.meta_device is true, and {where}, with which each process has the whole model",
                "use strategy: fsdp2 or pipeline, or leave out meta_device",
            )
        if stages is not None and strategy != "pipeline":
            yield (
                f"train.pipeline_stages is {stages}, and {where}",
                "use strategy: pipeline, or leave out pipeline_stages",
            )
        if world_size > 1 and stages is not None and world_size % stages:
            yield (
                f"train.pipeline_stages is {stages}, and the job has {world_size} processes, which do not divide by it",
                f"ask for a multiple of {stages} GPUs, or change pipeline_stages",
            )
        offload = " with cpu_offload true" if self.cpu_offload else ""
        for name, value, holds in self._not_together(world_size):
            if holds:
                yield (
                    f"train.{name} is {value}, and {where}{offload}: the two are not done together yet",
                    f"change {name}, or the strategy",
                )

    def _not_together(self, world_size: int) -> Iterator[tuple[str, object, bool]]:
        cut = world_size > 1
        pipeline, sharded = cut and self.strategy == "pipeline", cut and self.strategy == "fsdp2"
        layers = self.strategy == "model_parallel"
        yield "compile", "true", self.compile and (pipeline or layers)
        yield "micro_batch", "auto", self.micro_batch == "auto" and (pipeline or layers)
        yield "ema", self.ema, self.ema is not None and pipeline
        yield "precision", "fp16", self.precision == "fp16" and (pipeline or (sharded and self.cpu_offload))
        yield "nonfinite", "skip", self.nonfinite == "skip" and pipeline
        several = pipeline and self.copies(world_size) > 1
        yield "broadcast_buffers", "false", not self.broadcast_buffers and several

    def without_effect(self) -> tuple[str, ...]:
        """A line for each setting that only another strategy looks at."""
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
        """What ``train.json`` holds: the schema and every setting, as JSON values."""
        return {"schema": TRAIN_SCHEMA, **self.model_dump(mode="json")}
