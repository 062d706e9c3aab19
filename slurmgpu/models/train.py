"""The settings of the training entrypoint, as ``train:`` in a job file and as ``train.json``.

``slurmgpu.training.settings`` reads the same keys with the same defaults where Pydantic is missing.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator

from slurmgpu.errors import PlanError

__all__ = ["TRAIN_SCHEMA", "TrainSettings"]

TRAIN_SCHEMA = "slurmgpu.train/1"


class TrainSettings(BaseModel):
    """How the training entrypoint trains a task."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

    task: str = Field(
        description="The task's file and class, FILE.py:CLASS; a relative file counts from the work folder.",
        examples=["task.py:Digits"],
    )
    strategy: Literal["auto", "single", "ddp"] = Field(
        "auto",
        description="How the processes work together. auto: ddp for several processes, single for one.",
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32",
        description="What the forward pass computes in: fp32, or autocast to bf16 or to fp16 (GPU only).",
    )
    epochs: int = Field(1, ge=1, description="How often each training sample is used.")
    max_steps: int | None = Field(
        None,
        ge=1,
        description="Optimizer steps after which training ends, even inside an epoch; null: no such end.",
    )
    batch_size: int = Field(
        32, ge=1, description="Samples of one optimizer step, over all processes and accumulation steps."
    )
    accumulate: int = Field(
        1, ge=1, description="Micro-batches that each process adds up before an optimizer step."
    )
    lr: float = Field(
        1e-3, gt=0, description="Learning rate of the default optimizer (AdamW); the task reads it as cfg.lr."
    )
    weight_decay: float = Field(0.01, ge=0, description="Weight decay of the default optimizer (AdamW).")
    clip_norm: float | None = Field(
        None,
        gt=0,
        description="Largest norm of the gradient; longer ones are scaled down to it. null: no clipping.",
    )
    seed: int = Field(
        0, ge=0, description="Seed of the model's first values, the order of samples, and the rest."
    )
    workers: int | Literal["auto"] = Field(
        "auto",
        description="Data-loader processes per rank. auto: its CPUs but one, at most 8; "
        "none when training on CPUs.",
    )
    checkpoint_every: int = Field(
        1, ge=1, description="Epochs between two checkpoints; the end always gets one."
    )
    keep: int = Field(2, ge=1, description="Checkpoints kept, the newest ones.")
    resume: bool = Field(
        True,
        description="Whether to go on from the newest intact checkpoint; false moves earlier ones aside.",
    )
    log_every: int = Field(10, ge=1, description="Optimizer steps between two lines of metrics.")
    timeout: float = Field(
        1800.0,
        gt=0,
        description="Longest wait of a process for the others, in seconds; prepare() counts too.",
    )
    config: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Settings of the task's own; the task reads them as cfg.NAME.",
    )

    @field_validator("task")
    @classmethod
    def _file_and_class(cls, task: str) -> str:
        if re.fullmatch(r"(?s).+\.py:[^\W\d]\w*", task) is None:
            raise ValueError("must be FILE.py:CLASS, as in 'task.py:Digits'")
        return task

    @field_validator("workers", mode="before")
    @classmethod
    def _auto_or_number(cls, workers: Any) -> Any:
        if workers != "auto" and (type(workers) is not int or workers < 0):
            raise ValueError("must be 'auto' or a whole number of at least 0")
        return workers

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

    def micro_batch(self, world_size: int) -> int:
        """Samples that each process takes at a time: batch_size / (world size * accumulate).

        Raises:
            PlanError: it does not divide; the message names all figures and the nearest batch size that does.
        """
        parts = world_size * self.accumulate
        micro, rest = divmod(self.batch_size, parts)
        if not rest:
            return micro
        nearest = max(parts, round(self.batch_size / parts) * parts)
        raise PlanError(
            f"batch_size {self.batch_size} does not divide by {parts} "
            f"(world size {world_size} x accumulate {self.accumulate}); the nearest batch_size is {nearest}"
        )

    def document(self) -> dict[str, Any]:
        """What ``train.json`` holds: the schema and every setting, as JSON values."""
        return {"schema": TRAIN_SCHEMA, **self.model_dump(mode="json")}
