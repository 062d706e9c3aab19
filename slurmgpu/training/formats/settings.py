"""The settings of a training, as ``train:`` in a job file and as ``train.json``: each with its type, rule, default and meaning.

The entrypoint reads them with the rules that are made here; on the command line, Pydantic gets types and limits from the
same table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, Literal, NamedTuple, Optional, Union, get_args, get_origin, get_type_hints

__all__ = [
    "ABSENT",
    "CHANGE_NO_BIT",
    "CHANGE_ONLY_ROUNDING",
    "NOT_INTERLEAVED",
    "REMOVED",
    "TRAIN_SCHEMA",
    "BestFields",
    "EarlyStopFields",
    "Rule",
    "TrainFields",
    "rules_of",
]

TRAIN_SCHEMA = "slurmgpu.train/1"
_INSTEAD = (
    "start torchtitan or Megatron-LM as a command: for that; of a long or wide model, strategy: fsdp2, "
    "activation_checkpointing and strategy: pipeline share out or save memory"
)
REMOVED = {
    "tensor_parallel": f"has been removed; {_INSTEAD}",
    "gradient_as_bucket_view": "has been removed: gradients always lie in DDP's buckets, which saves memory; leave it out",
    "stages_each": f"has been removed, and each process of a pipeline has one stage; {_INSTEAD}",
}
"""Settings that earlier versions had, and what to write instead."""
ABSENT = {
    "context_parallel": "torch 2.13 cuts sequences over processes in a prototype alone, whose causal attention runs on GPUs "
    "only; for long sequences there are activation_checkpointing, micro_batch and strategy: pipeline",
    **{name: f"it {why}" for name, why in REMOVED.items()},
}
"""Settings that one may look for and that do not exist, each with the reason and what to do."""
NOT_INTERLEAVED = f"interleaved has been removed; write 1f1b or gpipe, or {_INSTEAD}"
"""Of the setting ``pipeline_schedule``."""


class Rule(NamedTuple):
    """A rule for a value, in words and as a test."""

    valid: str
    holds: Callable[[Any], bool]


def _whole(least: float) -> Rule:
    return Rule(f"a whole number of at least {least}", lambda v: type(v) is int and v >= least)


def _number(ge: Optional[float] = None, gt: Optional[float] = None, lt: Optional[float] = None) -> Rule:
    valid = "a number " + (
        f"above {gt}" if ge is None else f"of at least {ge}" if lt is None else f"from {ge}"
    )
    if lt is not None:
        valid += f" {'to' if gt is None else 'and'} below {lt}"
    least, most = -math.inf if ge is None else ge, math.inf if lt is None else lt

    def holds(value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return least <= value < most and (gt is None or value > gt)

    return Rule(valid, holds)


def _or_share(rule: Rule) -> Rule:
    def holds(value: Any) -> bool:
        if not isinstance(value, str):
            return rule.holds(value)
        found = re.fullmatch(r"(\d+(\.\d+)?)%", value)
        return found is not None and float(found[1]) <= 100

    return Rule(f"{rule.valid}, or a share from '0%' to '100%'", holds)


_TASK = Rule(
    "FILE.py:CLASS, as in 'task.py:Digits', or slurmgpu:NAME, as in 'slurmgpu:gpt2'",
    lambda v: isinstance(v, str) and re.fullmatch(r"(?s).+\.py:[^\W\d]\w*|slurmgpu:\w+", v) is not None,
)
_MICRO = Rule(
    "'auto', a whole number of at least 1, or null", lambda v: v in ("auto", None) or _whole(1).holds(v)
)
_WORKERS = Rule("'auto' or a whole number of at least 0", lambda v: v == "auto" or _whole(0).holds(v))
_SEED = Rule("a whole number from 0 to 2**64 - 1", lambda v: type(v) is int and 0 <= v < 2**64)
_PATTERNS = Rule(
    "a list of patterns of parameter names",
    lambda v: isinstance(v, list) and all(isinstance(each, str) and each for each in v),
)
_NAMES = Rule(
    "a mapping of beginnings of names to others",
    lambda v: isinstance(v, dict) and all(isinstance(each, str) for each in (*v, *v.values())),
)


def _setting(default: Any, doc: str, **facts: Any) -> Any:
    """Describe a setting; ``...``: it must be given.

    Of a number, ``ge``, ``gt``, ``le`` and ``lt`` are its limits. ``valid`` says in words what a text must be, ``rule`` takes
    the place of what type and limits say, and ``table`` has the keys of a mapping.
    """
    metadata = {"description": doc, **facts}
    if default is ...:
        return field(metadata=metadata)
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class BestFields:
    """Choice of the best evaluation."""

    metric: str = _setting(
        ...,
        "A metric of the evaluation, as the log names it.",
        min_length=1,
        examples=["accuracy", "val/loss"],
        valid="the name of a metric of the evaluation",
    )
    mode: Literal["max", "min"] = _setting(
        ..., "Whether a larger value is better (max), or a smaller one (min)."
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class EarlyStopFields(BestFields):
    """End of a training that no longer improves."""

    patience: int = _setting(
        ..., "Evaluations in a row without a better value, after which the training ends.", ge=1
    )
    min_delta: float = _setting(0.0, "A value counts as better only if it is so by more than this.", ge=0)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class TrainFields:
    """Settings of the training entrypoint."""

    task: str = _setting(
        ...,
        "The task's file and class, FILE.py:CLASS (a relative file counts from the work folder), "
        "or slurmgpu:NAME for one that comes with slurmgpu.",
        rule=_TASK,
        examples=["task.py:Digits", "slurmgpu:gpt2"],
    )
    strategy: Literal["auto", "single", "ddp", "dp", "fsdp2", "model_parallel", "pipeline"] = _setting(
        "auto",
        "How the processes work together. auto: ddp for several processes, single for one; "
        "dp: one process with all GPUs (nn.DataParallel), for comparison and for old code; "
        "fsdp2: each process keeps a piece of the model and of the optimizer's state (torch 2.6 or newer); "
        "model_parallel: one process, with the model's layers one after the other on all its GPUs; "
        "pipeline: each process has a stage of the model, as the task's stages(model, count) says.",
    )
    reshard_after_forward: bool = _setting(
        True,
        "fsdp2: whether a block's parameters are given back after its forward pass and gathered once more for the "
        "backward pass; false: faster, and takes the memory of the whole model.",
    )
    cpu_offload: bool = _setting(
        False,
        "fsdp2: whether the pieces of the model, their gradients and the optimizer's state lie in the CPU's memory "
        "while they are not computed with; much slower.",
    )
    meta_device: bool = _setting(
        False,
        "fsdp2, pipeline: whether the model is made on torch's meta device, without memory, so that no process has "
        "all of it at a time. First values come from the task's init_weights(model), or from each module's reset_parameters().",
    )
    pipeline_schedule: Literal["gpipe", "1f1b"] = _setting(
        "1f1b",
        "pipeline: in which order a step's micro-batches go forward and back. gpipe: all forward, then all back; "
        "1f1b: back as soon as it can be, with fewer activations in memory.",
    )
    pipeline_stages: Optional[int] = _setting(
        None,
        "pipeline: how many processes are one pipeline; null: all of them. It must divide the number of processes; "
        "the others are copies of it with samples of their own.",
        ge=2,
    )
    device: Literal["auto", "cpu"] = _setting(
        "auto",
        "Where to train. auto: on the GPUs, and it is an error when a job has some that torch does not see; "
        "cpu: on the CPUs, whatever GPUs there are.",
    )
    precision: Literal["fp32", "bf16", "fp16"] = _setting(
        "fp32",
        "What the forward pass computes in: fp32, or autocast to bf16 (GPUs of compute capability 8.0 or newer, "
        "or CPUs), or to fp16 (on a CPU as a trial).",
    )
    epochs: Optional[int] = _setting(
        None,
        "How often each training sample is used. null: as often as max_steps takes; once without max_steps.",
        ge=1,
    )
    max_steps: Optional[int] = _setting(
        None,
        "Optimizer steps after which training ends, even inside an epoch; null: epochs say how long it is.",
        ge=1,
    )
    batch_size: int = _setting(
        32, "Samples of one optimizer step, over all processes and accumulation steps, in equal parts.", ge=1
    )
    accumulate: int = _setting(1, "Micro-batches that each process adds up before an optimizer step.", ge=1)
    micro_batch: Union[int, Literal["auto"], None] = _setting(
        None,
        "Samples that a process takes at a time, at most; accumulate follows from it, and the micro-batches of a "
        "step are as equal as can be. auto: as many as fit into memory, found before the first step; null: batch_size "
        "divided by the processes and accumulate.",
        rule=_MICRO,
    )
    eval_micro_batch: Optional[int] = _setting(
        None,
        "Samples that a process takes at a time in an evaluation; null: as in training, or fewer "
        "where micro_batch is auto and these do not fit.",
        ge=1,
    )
    fit_head_room: float = _setting(
        0.1, "Share of the memory that micro_batch: auto leaves free at the peak of a step.", ge=0, lt=1
    )
    drop_last: bool = _setting(
        False, "Whether to leave out the training's last step when too few samples are left for a whole one."
    )
    lr: float = _setting(
        1e-3, "Learning rate of the default optimizer (AdamW); the task reads it as cfg.lr.", gt=0
    )
    weight_decay: float = _setting(0.01, "Weight decay of the default optimizer (AdamW).", ge=0)
    no_decay: bool = _setting(
        False,
        "Whether the default optimizer leaves parameters with fewer than two dimensions, biases and those of "
        "norms, without weight decay.",
    )
    schedule: Literal["constant", "linear", "cosine", "wsd"] = _setting(
        "constant",
        "How the learning rate goes on after the warm-up, where the task has no schedule of its own: "
        "as it is, or down to min_lr at the last step; wsd (warm-up, stable, decay): as it is until decay_steps before "
        "the end, then straight down.",
    )
    warmup_steps: Union[int, str] = _setting(
        0,
        "Steps in which the learning rate rises to its value, or a share of all steps such as 5%, unless the "
        "task has a schedule.",
        rule=_or_share(_whole(0)),
    )
    decay_steps: Union[int, str] = _setting(
        "20%",
        "Schedule wsd: the last steps, or their share, in which the learning rate falls.",
        rule=_or_share(_whole(1)),
    )
    min_lr: Union[float, str] = _setting(
        0.0,
        "Where schedules end: a learning rate, or a share of the one that they begin with, such as 10%.",
        rule=_or_share(_number(ge=0)),
    )
    clip_norm: Optional[float] = _setting(
        None, "Largest norm of the gradient; longer ones are scaled down to it. null: no clipping.", gt=0
    )
    log_grad_norm: bool = _setting(
        False, "Whether the norm of the gradient is in the metrics; with clip_norm it always is."
    )
    nonfinite: Literal["stop", "skip", "ignore"] = _setting(
        "stop",
        "What a loss of NaN or infinity does: end the training, leave the step out "
        "(each step then waits for its gradients' norm), or nothing but a warning.",
    )
    ema: Optional[float] = _setting(
        None,
        "Decay of a moving average of the weights, such as 0.999, which is evaluated, saved and exported beside "
        "the weights that are trained; null: none.",
        gt=0,
        lt=1,
    )
    freeze: list[str] = _setting(
        list, "Patterns of names of parameters that stay as they are, such as 'encoder.*'.", rule=_PATTERNS
    )
    pretrained: Optional[str] = _setting(
        None,
        "A file of weights to begin with, against the work folder: safetensors, a state_dict of torch, an index "
        "of several files, or a folder with one of these, such as a checkpoint. A resume does not read it; null: none.",
        valid="a path",
        min_length=1,
        examples=["weights/resnet50.safetensors"],
    )
    pretrained_rename: dict[str, str] = _setting(
        dict,
        "What names in pretrained begin with, and what they are to begin with instead, as in {'backbone.': ''}.",
        rule=_NAMES,
    )
    pretrained_strict: bool = _setting(
        True,
        "Whether all weights of pretrained must fit, and the model must have no others; false takes those that fit.",
    )
    seed: int = _setting(
        0,
        "Seed of the model's first values, the order of samples, and the rest.",
        rule=_SEED,
        ge=0,
        le=2**64 - 1,
    )
    deterministic: bool = _setting(
        False, "Whether to refuse operations that are not bit-for-bit repeatable on a GPU; slower."
    )
    workers: Union[int, Literal["auto"]] = _setting(
        "auto",
        "Data-loader processes per rank. auto: its CPUs but one, at most 8; none when training on CPUs.",
        rule=_WORKERS,
    )
    tf32: bool = _setting(
        True, "Whether fp32 matrix products and convolutions may use TF32 (Ampere and newer)."
    )
    cudnn_benchmark: bool = _setting(
        True,
        "Whether cuDNN tries out its algorithms first; all batches have one size. Not when deterministic.",
    )
    channels_last: bool = _setting(
        False, "Whether images are laid out channels last; faster on GPUs in half precision."
    )
    compile: bool = _setting(
        False, "Whether the model goes through torch.compile; with fsdp2 each of its blocks does."
    )
    activation_checkpointing: bool = _setting(
        False,
        "Whether the blocks that the task names, blocks(model), compute their activations again "
        "in the backward pass instead of keeping them.",
    )
    init_scale: float = _setting(65536.0, "First scale of the gradients with precision fp16.", gt=0)
    find_unused_parameters: bool = _setting(
        False, "DDP: whether a step may leave parameters without a gradient; slower."
    )
    broadcast_buffers: bool = _setting(
        True,
        "DDP: whether all processes get rank 0's buffers, such as BatchNorm's averages, before each forward pass; "
        "false: each keeps its own, and evaluations and checkpoints have rank 0's.",
    )
    static_graph: bool = _setting(
        False,
        "DDP: whether every step uses the same parameters in the same order; faster. Not beside accumulate "
        "or micro_batch.",
    )
    bucket_cap_mb: float = _setting(25.0, "DDP: size of a bucket of gradients, in MiB.", gt=0)
    evaluate_every: Optional[int] = _setting(
        1, "Epochs between two evaluations; the end always gets one. null: none at epochs' ends.", ge=1
    )
    evaluate_steps: Optional[int] = _setting(
        None, "Optimizer steps between two evaluations, inside epochs; null: none.", ge=1
    )
    best: Optional[Mapping[str, Any]] = _setting(
        None,
        "Keep the checkpoint of the evaluation with the best value of a metric, whatever keep says; null: none is "
        "kept for that.",
        table=BestFields,
        examples=[{"metric": "accuracy", "mode": "max"}],
    )
    early_stop: Optional[Mapping[str, Any]] = _setting(
        None,
        "End the training when a metric has not got better for so many evaluations; null: it does not end early.",
        table=EarlyStopFields,
        examples=[{"metric": "loss", "mode": "min", "patience": 5}],
    )
    checkpoint_every: int = _setting(1, "Epochs between two checkpoints; the end always gets one.", ge=1)
    checkpoint_steps: Optional[int] = _setting(
        None,
        "Steps that a kill may cost at most: further checkpoints, inside epochs; null: none. Each goes to the run "
        "directory, unless checkpoint_shared_steps is set.",
        ge=1,
    )
    checkpoint_shared_steps: Optional[int] = _setting(
        None,
        "Steps that a lost node may cost at most: so often a checkpoint goes to the run directory, and those of "
        "checkpoint_steps between them are kept on the nodes alone (for small models: checkpoint_steps 1 keeps every step); "
        "null: all go to the run directory.",
        ge=1,
        examples=[200],
    )
    checkpoint_node_folder: Optional[str] = _setting(
        None,
        "The folder of each node in which checkpoint_shared_steps keeps steps; variables of the job may stand in it. "
        "null: /dev/shm, which is memory, else $SLURM_TMPDIR, $TMPDIR or /tmp.",
        valid="a path",
        min_length=1,
        examples=["/local/$USER"],
    )
    checkpoint_share: Optional[float] = _setting(
        0.05,
        "Share of the time that checkpoints of epochs may take, as a part of 1; when they cost more, some are "
        "left out. null: none is. checkpoint_steps is kept to whatever it costs.",
        gt=0,
        lt=1,
    )
    keep: int = _setting(2, "Checkpoints kept, the newest ones.", ge=1)
    keep_every: Optional[int] = _setting(
        None, "Checkpoints of steps that this divides are kept for good; null: none are.", ge=1
    )
    resume: bool = _setting(
        True, "Whether to go on from the newest intact checkpoint; false moves earlier ones aside."
    )
    sanity: bool = _setting(
        True,
        "Whether to save, load and evaluate on trial right after a run's first step, so that what cannot be "
        "saved or evaluated ends the training there.",
    )
    stop_margin: float = _setting(
        60.0,
        "Seconds to be ready before the job's time limit; at most a tenth of the time left at the start.",
        ge=0,
    )
    hang_timeout: Optional[float] = _setting(
        1800.0,
        "Seconds without a step after which a process says where it hangs and ends the job; null: never.",
        gt=0,
    )
    log_every: int = _setting(10, "Optimizer steps between two lines of metrics.", ge=1)
    checksum_steps: Optional[int] = _setting(
        None,
        "Optimizer steps between two checksums of each process's losses, gradients, weights and optimizer: two "
        "trainings that should be the same can be told apart by step and process; null: none.",
        ge=1,
    )
    verify_steps: Optional[int] = _setting(
        None,
        "Each step whose number this divides is taken twice from the same state and compared bit for bit, so that "
        "a device that computes wrong is found while the training runs; null: none.",
        ge=1,
    )
    mismatch: Literal["stop", "warn"] = _setting(
        "stop",
        "What happens when a step that verify_steps takes twice is not the same, and a third time says which was "
        "wrong: the training saves what is right and stops, or it warns and goes on with that.",
    )
    profile: bool = _setting(
        False, "Whether to profile some steps, once a run: trace, operators, memory and times in profile/."
    )
    profile_after: int = _setting(10, "Steps of a start that pass before a profile begins.", ge=0)
    profile_steps: int = _setting(5, "Steps that a profile times, and as many that it then records.", ge=1)
    profile_stacks: bool = _setting(
        False, "Whether a profile records the lines of Python, too; its trace is much larger then."
    )
    profile_snapshot: bool = _setting(
        False, "Whether a profile on GPUs records each allocation, for docs.pytorch.org/memory_viz."
    )
    nvtx: bool = _setting(False, "Whether the phases of each step are NVTX ranges, for nsys; GPUs only.")
    track: list[Literal["tensorboard", "wandb"]] = _setting(
        list, "Where metrics go beside metrics.jsonl; the package must be installed where the job runs."
    )
    peak_flops: Optional[float] = _setting(
        None,
        "What one GPU can do at most, in FLOP/s, for the MFU; null: from a table, by the GPU's name.",
        gt=0,
    )
    timeout: float = _setting(
        1800.0, "Longest wait of a process for the others, in seconds; prepare() counts too.", gt=0
    )
    config: dict[str, Any] = _setting(dict, "Settings of the task's own; the task reads them as cfg.NAME.")


CHANGE_NO_BIT = frozenset({
    "epochs", "max_steps", "fit_head_room", "workers", "meta_device",
    "evaluate_every", "evaluate_steps", "best", "early_stop",
    "checkpoint_every", "checkpoint_steps", "checkpoint_shared_steps", "checkpoint_node_folder", "checkpoint_share",
    "keep", "keep_every", "resume", "sanity", "stop_margin", "hang_timeout", "timeout",
    "log_every", "checksum_steps", "verify_steps", "mismatch", "track", "peak_flops",
    "profile", "profile_after", "profile_steps", "profile_stacks", "profile_snapshot", "nvtx",
})  # fmt: skip
"""Settings that change how long a training is and what is done between its steps, and no step."""
CHANGE_ONLY_ROUNDING = frozenset({"strategy", "pipeline_stages", "pipeline_schedule"})
"""Settings with which a step computes the same in another order."""


@cache
def rules_of(table: type) -> dict[str, Rule]:
    """Return the rule of each field of a table."""
    kinds = get_type_hints(table)
    return {
        each.name: each.metadata.get("rule") or _rule(kinds[each.name], each.metadata)
        for each in fields(table)
    }


def _rule(kind: Any, facts: Mapping[str, Any]) -> Rule:
    if get_origin(kind) is Union:  # Optional
        inner = _rule_of_mapping(facts["table"]) if "table" in facts else _rule(get_args(kind)[0], facts)
        return Rule(f"{inner.valid}, or null", lambda v: v is None or inner.holds(v))
    if get_origin(kind) is Literal:
        return Rule("one of " + ", ".join(get_args(kind)), lambda v: v in get_args(kind))
    if get_origin(kind) is list:
        words = get_args(get_args(kind)[0])
        return Rule(
            "a list of " + ", ".join(words),
            lambda v: isinstance(v, list) and all(each in words for each in v),
        )
    if get_origin(kind) is dict:
        return Rule("a mapping", lambda v: isinstance(v, dict))
    if kind is bool:
        return Rule("true or false", lambda v: type(v) is bool)
    if kind is int:
        return _whole(facts["ge"])
    if kind is float:
        return _number(**{name: facts[name] for name in ("ge", "gt", "lt") if name in facts})
    return Rule(facts["valid"], lambda v: isinstance(v, str) and bool(v))


def _rule_of_mapping(table: type) -> Rule:
    rules = rules_of(table)
    free = {each.name for each in fields(table) if each.default is not MISSING}
    words = ", ".join(f"{name} ({rule.valid})" for name, rule in rules.items() if name not in free)
    words += "".join(f" and at will {name} ({rules[name].valid})" for name in free)

    def holds(value: Any) -> bool:
        if not isinstance(value, dict) or not rules.keys() - free <= value.keys() <= rules.keys():
            return False
        return all(rules[name].holds(each) for name, each in value.items())

    return Rule(f"a mapping with {words}", holds)
