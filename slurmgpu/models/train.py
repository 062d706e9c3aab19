"""The settings of the training entrypoint, as ``train:`` in a job file and as ``train.json``.

``slurmgpu.training.settings`` reads the same keys with the same defaults where Pydantic is missing.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationInfo, field_validator

from slurmgpu.errors import PlanError

__all__ = ["TRAIN_SCHEMA", "TrainSettings"]

TRAIN_SCHEMA = "slurmgpu.train/1"

_INSTEAD = (
    "start torchtitan or Megatron-LM as a command: for that; of a long or wide model, strategy: fsdp2, "
    "activation_checkpointing and strategy: pipeline share out or save memory"
)


class _Judged(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    metric: str = Field(
        min_length=1,
        description="A metric of the evaluation, as the log names it.",
        examples=["accuracy", "val/loss"],
    )
    mode: Literal["max", "min"] = Field(
        description="Whether a larger value is better (max), or a smaller one (min)."
    )


class BestSettings(_Judged):
    """Which evaluation is the best one."""


class EarlyStopSettings(_Judged):
    """When a training ends because it does not get better."""

    patience: int = Field(
        ge=1, description="Evaluations in a row without a better value, after which the training ends."
    )
    min_delta: float = Field(
        0.0, ge=0, description="A value counts as better only if it is so by more than this."
    )


class TrainSettings(BaseModel):
    """How the training entrypoint trains a task."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

    ABSENT: ClassVar[Mapping[str, str]] = {
        "context_parallel": "torch 2.13 cuts sequences over processes in a prototype alone, whose causal attention runs on GPUs "
        "only; for long sequences there are activation_checkpointing, micro_batch and strategy: pipeline",
        "tensor_parallel": f"it has been removed; {_INSTEAD}",
        "gradient_as_bucket_view": "it has been removed: gradients always lie in DDP's buckets, which saves memory; leave it out",
        "stages_each": f"it has been removed, and each process of a pipeline has one stage; {_INSTEAD}",
    }
    """What one may look for and what is not there, each with the reason and what to do."""

    task: str = Field(
        description="The task's file and class, FILE.py:CLASS (a relative file counts from the work folder), "
        "or slurmgpu:NAME for one that comes with slurmgpu.",
        examples=["task.py:Digits", "slurmgpu:gpt2"],
    )
    strategy: Literal["auto", "single", "ddp", "dp", "fsdp2", "model_parallel", "pipeline"] = Field(
        "auto",
        description="How the processes work together. auto: ddp for several processes, single for one; "
        "dp: one process with all GPUs (nn.DataParallel), for comparison and for old code; "
        "fsdp2: each process keeps a piece of the model and of the optimizer's state (torch 2.6 or newer); "
        "model_parallel: one process, with the model's layers one after the other on all its GPUs; "
        "pipeline: each process has a stage of the model, as the task's stages(model, count) says.",
    )
    reshard_after_forward: bool = Field(
        True,
        description="fsdp2: whether a block's parameters are given back after its forward pass and gathered once more for the "
        "backward pass; false: faster, and takes the memory of the whole model.",
    )
    cpu_offload: bool = Field(
        False,
        description="fsdp2: whether the pieces of the model, their gradients and the optimizer's state lie in the CPU's memory "
        "while they are not computed with; much slower.",
    )
    meta_device: bool = Field(
        False,
        description="fsdp2, pipeline: whether the model is made on torch's meta device, without memory, so that no process has "
        "all of it at a time. First values come from the task's init_weights(model), or from each module's reset_parameters().",
    )
    pipeline_schedule: Literal["gpipe", "1f1b"] = Field(
        "1f1b",
        description="pipeline: in which order a step's micro-batches go forward and back. gpipe: all forward, then all back; "
        "1f1b: back as soon as it can be, with fewer activations in memory.",
    )
    pipeline_stages: int | None = Field(
        None,
        ge=2,
        description="pipeline: how many processes are one pipeline; null: all of them. It must divide the number of processes; "
        "the others are copies of it with samples of their own.",
    )
    device: Literal["auto", "cpu"] = Field(
        "auto",
        description="Where to train. auto: on the GPUs, and it is an error when a job has some that torch does not see; "
        "cpu: on the CPUs, whatever GPUs there are.",
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32",
        description="What the forward pass computes in: fp32, or autocast to bf16 (GPUs of compute capability 8.0 or newer, "
        "or CPUs), or to fp16 (on a CPU as a trial).",
    )
    epochs: int | None = Field(
        None,
        ge=1,
        description="How often each training sample is used. null: as often as max_steps takes; once without max_steps.",
    )
    max_steps: int | None = Field(
        None,
        ge=1,
        description="Optimizer steps after which training ends, even inside an epoch; null: epochs say how long it is.",
    )
    batch_size: int = Field(
        32,
        ge=1,
        description="Samples of one optimizer step, over all processes and accumulation steps, in equal parts.",
    )
    accumulate: int = Field(
        1, ge=1, description="Micro-batches that each process adds up before an optimizer step."
    )
    micro_batch: int | Literal["auto"] | None = Field(
        None,
        description="Samples that a process takes at a time, at most; accumulate follows from it, and the micro-batches of a "
        "step are as equal as can be. auto: as many as fit into memory, found before the first step; null: batch_size "
        "divided by the processes and accumulate.",
    )
    eval_micro_batch: int | None = Field(
        None,
        ge=1,
        description="Samples that a process takes at a time in an evaluation; null: as in training, or fewer "
        "where micro_batch is auto and these do not fit.",
    )
    fit_head_room: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Share of the memory that micro_batch: auto leaves free at the peak of a step.",
    )
    drop_last: bool = Field(
        False,
        description="Whether to leave out the training's last step when too few samples are left for a whole one.",
    )
    lr: float = Field(
        1e-3, gt=0, description="Learning rate of the default optimizer (AdamW); the task reads it as cfg.lr."
    )
    weight_decay: float = Field(0.01, ge=0, description="Weight decay of the default optimizer (AdamW).")
    no_decay: bool = Field(
        False,
        description="Whether the default optimizer leaves parameters with fewer than two dimensions, biases and those of "
        "norms, without weight decay.",
    )
    schedule: Literal["constant", "linear", "cosine", "wsd"] = Field(
        "constant",
        description="How the learning rate goes on after the warm-up, where the task has no schedule of its own: "
        "as it is, or down to min_lr at the last step; wsd (warm-up, stable, decay): as it is until decay_steps before "
        "the end, then straight down.",
    )
    warmup_steps: int | str = Field(
        0,
        description="Steps in which the learning rate rises to its value, or a share of all steps such as 5%, unless the "
        "task has a schedule.",
    )
    decay_steps: int | str = Field(
        "20%", description="Schedule wsd: the last steps, or their share, in which the learning rate falls."
    )
    min_lr: float | str = Field(
        0.0,
        description="Where schedules end: a learning rate, or a share of the one that they begin with, such as 10%.",
    )
    clip_norm: float | None = Field(
        None,
        gt=0,
        description="Largest norm of the gradient; longer ones are scaled down to it. null: no clipping.",
    )
    log_grad_norm: bool = Field(
        False,
        description="Whether the norm of the gradient is in the metrics; with clip_norm it always is.",
    )
    nonfinite: Literal["stop", "skip", "ignore"] = Field(
        "stop",
        description="What a loss of NaN or infinity does: end the training, leave the step out "
        "(each step then waits for its gradients' norm), or nothing but a warning.",
    )
    ema: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Decay of a moving average of the weights, such as 0.999, which is evaluated, saved and exported beside "
        "the weights that are trained; null: none.",
    )
    freeze: list[str] = Field(
        default_factory=list,
        description="Patterns of names of parameters that stay as they are, such as 'encoder.*'.",
    )
    pretrained: str | None = Field(
        None,
        min_length=1,
        description="A file of weights to begin with, against the work folder: safetensors, a state_dict of torch, an index "
        "of several files, or a folder with one of these, such as a checkpoint. A resume does not read it; null: none.",
        examples=["weights/resnet50.safetensors"],
    )
    pretrained_rename: dict[str, str] = Field(
        default_factory=dict,
        description="What names in pretrained begin with, and what they are to begin with instead, as in {'backbone.': ''}.",
    )
    pretrained_strict: bool = Field(
        True,
        description="Whether all weights of pretrained must fit, and the model must have no others; false takes those that fit.",
    )
    seed: int = Field(
        0,
        ge=0,
        le=2**64 - 1,
        description="Seed of the model's first values, the order of samples, and the rest.",
    )
    deterministic: bool = Field(
        False,
        description="Whether to refuse operations that are not bit-for-bit repeatable on a GPU; slower.",
    )
    workers: int | Literal["auto"] = Field(
        "auto",
        description="Data-loader processes per rank. auto: its CPUs but one, at most 8; "
        "none when training on CPUs.",
    )
    tf32: bool = Field(
        True, description="Whether fp32 matrix products and convolutions may use TF32 (Ampere and newer)."
    )
    cudnn_benchmark: bool = Field(
        True,
        description="Whether cuDNN tries out its algorithms first; all batches have one size. Not when deterministic.",
    )
    channels_last: bool = Field(
        False, description="Whether images are laid out channels last; faster on GPUs in half precision."
    )
    compile: bool = Field(
        False, description="Whether the model goes through torch.compile; with fsdp2 each of its blocks does."
    )
    activation_checkpointing: bool = Field(
        False,
        description="Whether the blocks that the task names, blocks(model), compute their activations again "
        "in the backward pass instead of keeping them.",
    )
    init_scale: float = Field(65536.0, gt=0, description="First scale of the gradients with precision fp16.")
    find_unused_parameters: bool = Field(
        False, description="DDP: whether a step may leave parameters without a gradient; slower."
    )
    broadcast_buffers: bool = Field(
        True,
        description="DDP: whether all processes get rank 0's buffers, such as BatchNorm's averages, before each forward pass; "
        "false: each keeps its own, and evaluations and checkpoints have rank 0's.",
    )
    static_graph: bool = Field(
        False,
        description="DDP: whether every step uses the same parameters in the same order; faster. Not beside accumulate "
        "or micro_batch.",
    )
    bucket_cap_mb: float = Field(25.0, gt=0, description="DDP: size of a bucket of gradients, in MiB.")
    evaluate_every: int | None = Field(
        1,
        ge=1,
        description="Epochs between two evaluations; the end always gets one. null: none at epochs' ends.",
    )
    evaluate_steps: int | None = Field(
        None, ge=1, description="Optimizer steps between two evaluations, inside epochs; null: none."
    )
    best: BestSettings | None = Field(
        None,
        description="Keep the checkpoint of the evaluation with the best value of a metric, whatever keep says; null: none is "
        "kept for that.",
        examples=[{"metric": "accuracy", "mode": "max"}],
    )
    early_stop: EarlyStopSettings | None = Field(
        None,
        description="End the training when a metric has not got better for so many evaluations; null: it does not end early.",
        examples=[{"metric": "loss", "mode": "min", "patience": 5}],
    )
    checkpoint_every: int = Field(
        1, ge=1, description="Epochs between two checkpoints; the end always gets one."
    )
    checkpoint_steps: int | None = Field(
        None,
        ge=1,
        description="Steps that a kill may cost at most: further checkpoints, inside epochs; null: none. Each goes to the run "
        "directory, unless checkpoint_shared_steps is set.",
    )
    checkpoint_shared_steps: int | None = Field(
        None,
        ge=1,
        description="Steps that a lost node may cost at most: so often a checkpoint goes to the run directory, and those of "
        "checkpoint_steps between them are kept on the nodes alone (for small models: checkpoint_steps 1 keeps every step); "
        "null: all go to the run directory.",
        examples=[200],
    )
    checkpoint_node_folder: str | None = Field(
        None,
        min_length=1,
        description="The folder of each node in which checkpoint_shared_steps keeps steps; variables of the job may stand in it. "
        "null: /dev/shm, which is memory, else $SLURM_TMPDIR, $TMPDIR or /tmp.",
        examples=["/local/$USER"],
    )
    checkpoint_share: float | None = Field(
        0.05,
        gt=0,
        lt=1,
        description="Share of the time that checkpoints of epochs may take, as a part of 1; when they cost more, some are "
        "left out. null: none is. checkpoint_steps is kept to whatever it costs.",
    )
    keep: int = Field(2, ge=1, description="Checkpoints kept, the newest ones.")
    keep_every: int | None = Field(
        None, ge=1, description="Checkpoints of steps that this divides are kept for good; null: none are."
    )
    resume: bool = Field(
        True,
        description="Whether to go on from the newest intact checkpoint; false moves earlier ones aside.",
    )
    sanity: bool = Field(
        True,
        description="Whether to save, load and evaluate on trial right after a run's first step, so that what cannot be "
        "saved or evaluated ends the training there.",
    )
    stop_margin: float = Field(
        60.0,
        ge=0,
        description="Seconds to be ready before the job's time limit; at most a tenth of the time left at the start.",
    )
    hang_timeout: float | None = Field(
        1800.0,
        gt=0,
        description="Seconds without a step after which a process says where it hangs and ends the job; null: never.",
    )
    log_every: int = Field(10, ge=1, description="Optimizer steps between two lines of metrics.")
    checksum_steps: int | None = Field(
        None,
        ge=1,
        description="Optimizer steps between two checksums of each process's losses, gradients, weights and optimizer: two "
        "trainings that should be the same can be told apart by step and process; null: none.",
    )
    verify_steps: int | None = Field(
        None,
        ge=1,
        description="Each step whose number this divides is taken twice from the same state and compared bit for bit, so that "
        "a device that computes wrong is found while the training runs; null: none.",
    )
    mismatch: Literal["stop", "warn"] = Field(
        "stop",
        description="What happens when a step that verify_steps takes twice is not the same, and a third time says which was "
        "wrong: the training saves what is right and stops, or it warns and goes on with that.",
    )
    profile: bool = Field(
        False,
        description="Whether to profile some steps, once a run: trace, operators, memory and times in profile/.",
    )
    profile_after: int = Field(10, ge=0, description="Steps of a start that pass before a profile begins.")
    profile_steps: int = Field(
        5, ge=1, description="Steps that a profile times, and as many that it then records."
    )
    profile_stacks: bool = Field(
        False,
        description="Whether a profile records the lines of Python, too; its trace is much larger then.",
    )
    profile_snapshot: bool = Field(
        False,
        description="Whether a profile on GPUs records each allocation, for docs.pytorch.org/memory_viz.",
    )
    nvtx: bool = Field(
        False, description="Whether the phases of each step are NVTX ranges, for nsys; GPUs only."
    )
    track: list[Literal["tensorboard", "wandb"]] = Field(
        default_factory=list,
        description="Where metrics go beside metrics.jsonl; the package must be installed where the job runs.",
    )
    peak_flops: float | None = Field(
        None,
        gt=0,
        description="What one GPU can do at most, in FLOP/s, for the MFU; null: from a table, by the GPU's name.",
    )
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
        if re.fullmatch(r"(?s).+\.py:[^\W\d]\w*|slurmgpu:\w+", task) is None:
            raise ValueError(
                "must be FILE.py:CLASS, as in 'task.py:Digits', or slurmgpu:NAME, as in 'slurmgpu:gpt2'"
            )
        return task

    @field_validator("pipeline_schedule", mode="before")
    @classmethod
    def _is_not_interleaved(cls, schedule: Any) -> Any:
        if schedule == "interleaved":
            raise ValueError(f"interleaved has been removed; write 1f1b or gpipe, or {_INSTEAD}")
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

    @field_validator("micro_batch", mode="before")
    @classmethod
    def _is_in_place_of_accumulate(cls, micro_batch: Any, info: ValidationInfo) -> Any:
        if micro_batch not in ("auto", None) and (type(micro_batch) is not int or micro_batch < 1):
            raise ValueError("must be 'auto', a whole number of at least 1, or null")
        if micro_batch is not None and info.data.get("accumulate", 1) > 1:
            raise ValueError("accumulate follows from it; leave out one of them")
        return micro_batch

    @field_validator("workers", mode="before")
    @classmethod
    def _auto_or_number(cls, workers: Any) -> Any:
        if workers != "auto" and (type(workers) is not int or workers < 0):
            raise ValueError("must be 'auto' or a whole number of at least 0")
        return workers

    @field_validator("warmup_steps", "decay_steps", "min_lr", mode="before")
    @classmethod
    def _amount_or_share(cls, amount: Any, info: ValidationInfo) -> Any:
        if isinstance(amount, str):
            found = re.fullmatch(r"(\d+(\.\d+)?)%", amount)
            fits = found is not None and float(found[1]) <= 100
        elif info.field_name == "min_lr":
            fits = isinstance(amount, (int, float)) and not isinstance(amount, bool) and amount >= 0
        else:
            fits = type(amount) is int and amount >= (info.field_name == "decay_steps")
        if not fits:
            least = {
                "warmup_steps": "a whole number of at least 0",
                "decay_steps": "a whole number of at least 1",
            }
            valid = least.get(info.field_name or "", "a number of at least 0")
            raise ValueError(f"must be {valid}, or a share from '0%' to '100%'")
        return amount

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
