"""``train.json`` (schema ``slurmgpu.train/1``): its keys, defaults and checks.

A plain dataclass, because Pydantic is missing where this runs; ``slurmgpu.models.train`` is its twin on the
side of the command line, and a test holds one against the other.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Optional, Union, get_type_hints

from .errors import SettingsError
from .files import write_whole

__all__ = ["REMOVED", "SCHEMA", "Config", "Settings", "complete", "divided", "load", "micro_batch", "parse"]

SCHEMA = "slurmgpu.train/1"

_INSTEAD = (
    "start torchtitan or Megatron-LM as a command: for that; of a long or wide model, strategy: fsdp2, "
    "activation_checkpointing and strategy: pipeline share out or save memory"
)
REMOVED = {
    "tensor_parallel": f"has been removed; {_INSTEAD}",
    "gradient_as_bucket_view": "has been removed: gradients always lie in DDP's buckets, which saves memory; leave it out",
    "stages_each": f"has been removed, and each process of a pipeline has one stage; {_INSTEAD}",
    "pipeline_schedule": f"interleaved has been removed; write 1f1b or gpipe, or {_INSTEAD}",
}
"""Settings and values that earlier versions had, and what to write instead."""
_AS_NOW = {"tensor_parallel": 1, "stages_each": 1, "gradient_as_bucket_view": True}
"""What earlier versions wrote into each train.json, and what is done without it."""


class _Rule(NamedTuple):
    valid: str
    holds: Callable[[object], bool]


def _whole(minimum: int) -> _Rule:
    return _Rule(f"a whole number of at least {minimum}", lambda v: type(v) is int and v >= minimum)


def _number(positive: bool) -> _Rule:
    def holds(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return False
        return value > 0 if positive else value >= 0

    return _Rule("a number above 0" if positive else "a number of at least 0", holds)


def _one_of(*values: str) -> _Rule:
    return _Rule("one of " + ", ".join(values), lambda v: v in values)


def _or_null(rule: _Rule) -> _Rule:
    return _Rule(f"{rule.valid}, or null", lambda v: v is None or rule.holds(v))


_PERCENT = re.compile(r"(\d+(\.\d+)?)%")


def _or_percent(rule: _Rule) -> _Rule:
    def holds(value: object) -> bool:
        if not isinstance(value, str):
            return rule.holds(value)
        found = _PERCENT.fullmatch(value)
        return found is not None and float(found[1]) <= 100

    return _Rule(f"{rule.valid}, or a share from '0%' to '100%'", holds)


_SWITCH = _Rule("true or false", lambda v: type(v) is bool)
_MAPPING = _Rule("a mapping", lambda v: isinstance(v, dict))
_COUNT = _whole(1)
_POSITIVE = _number(positive=True)
_FRACTION = _Rule("a number above 0 and below 1", lambda v: isinstance(v, float) and 0 < v < 1)
_TASK = _Rule(
    "FILE.py:CLASS, as in 'task.py:Digits', or slurmgpu:NAME, as in 'slurmgpu:gpt2'",
    lambda v: isinstance(v, str) and re.fullmatch(r"(?s).+\.py:[^\W\d]\w*|slurmgpu:\w+", v) is not None,
)
_PATTERNS = _Rule(
    "a list of patterns of parameter names",
    lambda v: isinstance(v, list) and all(isinstance(each, str) and each for each in v),
)
_TEXT = _Rule("a path", lambda v: isinstance(v, str) and bool(v))
_NAMES = _Rule(
    "a mapping of beginnings of names to others",
    lambda v: isinstance(v, dict) and all(isinstance(each, str) for each in (*v, *v.values())),
)
_MICRO = _Rule(
    "'auto', a whole number of at least 1, or null", lambda v: v in ("auto", None) or _COUNT.holds(v)
)
_SHARE = _Rule("a number from 0 to below 1", lambda v: _number(positive=False).holds(v) and float(str(v)) < 1)
_SEED = _Rule("a whole number from 0 to 2**64 - 1", lambda v: type(v) is int and 0 <= v < 2**64)
_WORKERS = _Rule("'auto' or a whole number of at least 0", lambda v: v == "auto" or _whole(0).holds(v))
_METRIC = _Rule("the name of a metric of the evaluation", lambda v: isinstance(v, str) and bool(v))
_MODE = _one_of("max", "min")


def _fields(required: Mapping[str, _Rule], optional: Mapping[str, _Rule]) -> _Rule:
    """A mapping with these keys, or null."""
    told = ", ".join([f"{name} ({rule.valid})" for name, rule in required.items()])
    told += "".join(f" and at will {name} ({rule.valid})" for name, rule in optional.items())

    def holds(value: object) -> bool:
        if not isinstance(value, dict):
            return value is None
        if not required.keys() <= value.keys() <= required.keys() | optional.keys():
            return False
        return all(
            rule.holds(value[name]) for name, rule in {**required, **optional}.items() if name in value
        )

    return _Rule(f"a mapping with {told}, or null", holds)


_BEST = _fields({"metric": _METRIC, "mode": _MODE}, {})
_EARLY_STOP = _fields(
    {"metric": _METRIC, "mode": _MODE, "patience": _COUNT}, {"min_delta": _number(positive=False)}
)
_TRACKERS = _Rule(
    "a list of tensorboard, wandb",
    lambda v: isinstance(v, list) and all(each in ("tensorboard", "wandb") for each in v),
)


@dataclass(frozen=True)
class Settings:
    """The settings of one training with their rules; ``slurmgpu.models.train`` says what each means."""

    task: Annotated[str, _TASK]
    strategy: Annotated[
        str, _one_of("auto", "single", "ddp", "dp", "fsdp2", "model_parallel", "pipeline")
    ] = "auto"
    reshard_after_forward: Annotated[bool, _SWITCH] = True
    cpu_offload: Annotated[bool, _SWITCH] = False
    meta_device: Annotated[bool, _SWITCH] = False
    pipeline_schedule: Annotated[str, _one_of("gpipe", "1f1b")] = "1f1b"
    pipeline_stages: Annotated[Optional[int], _or_null(_whole(2))] = None
    device: Annotated[str, _one_of("auto", "cpu")] = "auto"
    precision: Annotated[str, _one_of("fp32", "bf16", "fp16")] = "fp32"
    epochs: Annotated[Optional[int], _or_null(_COUNT)] = None
    max_steps: Annotated[Optional[int], _or_null(_COUNT)] = None
    batch_size: Annotated[int, _COUNT] = 32
    accumulate: Annotated[int, _COUNT] = 1
    micro_batch: Annotated[Union[int, str, None], _MICRO] = None
    eval_micro_batch: Annotated[Optional[int], _or_null(_COUNT)] = None
    fit_head_room: Annotated[float, _SHARE] = 0.1
    drop_last: Annotated[bool, _SWITCH] = False
    lr: Annotated[float, _POSITIVE] = 1e-3
    weight_decay: Annotated[float, _number(positive=False)] = 0.01
    no_decay: Annotated[bool, _SWITCH] = False
    schedule: Annotated[str, _one_of("constant", "linear", "cosine", "wsd")] = "constant"
    warmup_steps: Annotated[Union[int, str], _or_percent(_whole(0))] = 0
    decay_steps: Annotated[Union[int, str], _or_percent(_whole(1))] = "20%"
    min_lr: Annotated[Union[float, str], _or_percent(_number(positive=False))] = 0.0
    clip_norm: Annotated[Optional[float], _or_null(_POSITIVE)] = None
    log_grad_norm: Annotated[bool, _SWITCH] = False
    nonfinite: Annotated[str, _one_of("stop", "skip", "ignore")] = "stop"
    ema: Annotated[Optional[float], _or_null(_FRACTION)] = None
    freeze: Annotated[Sequence[str], _PATTERNS] = field(default_factory=list)
    pretrained: Annotated[Optional[str], _or_null(_TEXT)] = None
    pretrained_rename: Annotated[Mapping[str, str], _NAMES] = field(default_factory=dict)
    pretrained_strict: Annotated[bool, _SWITCH] = True
    seed: Annotated[int, _SEED] = 0
    deterministic: Annotated[bool, _SWITCH] = False
    workers: Annotated[Union[int, str], _WORKERS] = "auto"
    tf32: Annotated[bool, _SWITCH] = True
    cudnn_benchmark: Annotated[bool, _SWITCH] = True
    channels_last: Annotated[bool, _SWITCH] = False
    compile: Annotated[bool, _SWITCH] = False
    activation_checkpointing: Annotated[bool, _SWITCH] = False
    init_scale: Annotated[float, _POSITIVE] = 65536.0
    find_unused_parameters: Annotated[bool, _SWITCH] = False
    broadcast_buffers: Annotated[bool, _SWITCH] = True
    static_graph: Annotated[bool, _SWITCH] = False
    bucket_cap_mb: Annotated[float, _POSITIVE] = 25.0
    evaluate_every: Annotated[Optional[int], _or_null(_COUNT)] = 1
    evaluate_steps: Annotated[Optional[int], _or_null(_COUNT)] = None
    best: Annotated[Optional[Mapping[str, Any]], _BEST] = None
    early_stop: Annotated[Optional[Mapping[str, Any]], _EARLY_STOP] = None
    checkpoint_every: Annotated[int, _COUNT] = 1
    checkpoint_steps: Annotated[Optional[int], _or_null(_COUNT)] = None
    checkpoint_shared_steps: Annotated[Optional[int], _or_null(_COUNT)] = None
    checkpoint_node_folder: Annotated[Optional[str], _or_null(_TEXT)] = None
    checkpoint_share: Annotated[Optional[float], _or_null(_FRACTION)] = 0.05
    keep: Annotated[int, _COUNT] = 2
    keep_every: Annotated[Optional[int], _or_null(_COUNT)] = None
    resume: Annotated[bool, _SWITCH] = True
    sanity: Annotated[bool, _SWITCH] = True
    stop_margin: Annotated[float, _number(positive=False)] = 60.0
    hang_timeout: Annotated[Optional[float], _or_null(_POSITIVE)] = 1800.0
    log_every: Annotated[int, _COUNT] = 10
    checksum_steps: Annotated[Optional[int], _or_null(_COUNT)] = None
    verify_steps: Annotated[Optional[int], _or_null(_COUNT)] = None
    mismatch: Annotated[str, _one_of("stop", "warn")] = "stop"
    profile: Annotated[bool, _SWITCH] = False
    profile_after: Annotated[int, _whole(0)] = 10
    profile_steps: Annotated[int, _COUNT] = 5
    profile_stacks: Annotated[bool, _SWITCH] = False
    profile_snapshot: Annotated[bool, _SWITCH] = False
    nvtx: Annotated[bool, _SWITCH] = False
    track: Annotated[Sequence[str], _TRACKERS] = field(default_factory=list)
    peak_flops: Annotated[Optional[float], _or_null(_POSITIVE)] = None
    timeout: Annotated[float, _POSITIVE] = 1800.0
    config: Annotated[Mapping[str, object], _MAPPING] = field(default_factory=dict)

    @property
    def most_epochs(self) -> Optional[int]:
        """Epochs of the training at most; None where ``max_steps`` alone says how long it is."""
        return 1 if self.epochs is None and self.max_steps is None else self.epochs

    def as_dict(self) -> dict[str, object]:
        """The settings as plain JSON values."""
        return asdict(self)


_RULES: dict[str, _Rule] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Settings, include_extras=True).items()
}


def load(path: Path) -> Settings:
    """Read the settings from a JSON file.

    Raises:
        SettingsError: the file is missing, is not JSON, or holds an invalid key or value.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read the settings {path}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{path} is not valid JSON: {error}") from None
    return parse(document, str(path))


def complete(path: Path, settings: Settings) -> None:
    """Add to the file what it leaves to the defaults: a later start must not take those of another version."""
    told = json.loads(path.read_text(encoding="utf-8"))
    document = {"schema": SCHEMA, **settings.as_dict(), **told}
    if document.keys() != told.keys():
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        write_whole(path, lambda file: file.write(text.encode()))


def parse(document: object, source: str = "train.json") -> Settings:
    """Check a decoded ``train.json`` and fill in the defaults."""
    if not isinstance(document, dict):
        raise SettingsError(f"{source} holds a {type(document).__name__}; it must hold a mapping")
    values = dict(document)
    schema = values.pop("schema", None)
    if schema != SCHEMA:
        raise SettingsError(f"{source}: schema is {schema!r}; this entrypoint reads {SCHEMA!r}")
    for name, usual in _AS_NOW.items():
        if name in values and values.pop(name) != usual:
            raise SettingsError(f"{source}: {name} {REMOVED[name]}")
    if values.get("pipeline_schedule") == "interleaved":
        raise SettingsError(f"{source}: pipeline_schedule {REMOVED['pipeline_schedule']}")
    for name, value in values.items():
        rule = _RULES.get(name)
        if rule is None:
            raise SettingsError(f"{source}: unknown key {name!r}{_nearest(name, _RULES)}")
        if not rule.holds(value):
            raise SettingsError(f"{source}: {name} is {value!r}; it must be {rule.valid}")
    if "task" not in values:
        raise SettingsError(f"{source}: task is missing; it must be {_RULES['task'].valid}")
    _check_accumulation(values, source)
    _check_nodes(values, source)
    _check_config(values.get("config", {}), source)
    return Settings(**values)


def _check_accumulation(values: Mapping[str, object], source: str) -> None:
    accumulate, micro = values.get("accumulate", 1), values.get("micro_batch")
    if micro is not None and accumulate != 1:
        raise SettingsError(
            f"{source}: accumulate is {accumulate} and micro_batch is {micro!r}: each follows from the other; "
            "leave out one of them"
        )
    if values.get("static_graph") and (accumulate != 1 or micro is not None):
        # Its first backward pass must not be one of no_sync: an assertion fails (pytorch's issue 143580).
        said = f"accumulate is {accumulate}" if micro is None else f"micro_batch is {micro!r}"
        raise SettingsError(
            f"{source}: static_graph is True and {said}: torch's DDP cannot do it with several micro-batches a step; "
            "set static_graph to false, or leave the other out"
        )


def _check_nodes(values: Mapping[str, object], source: str) -> None:
    steps, shared, folder = (
        values.get(name) for name in ("checkpoint_steps", "checkpoint_shared_steps", "checkpoint_node_folder")
    )
    if isinstance(shared, int) and not (isinstance(steps, int) and steps < shared):
        raise SettingsError(
            f"{source}: checkpoint_shared_steps is {shared}, but checkpoint_steps, after which steps in between are kept on "
            f"the nodes, is {steps or 'not set'}: set checkpoint_steps to less than {shared}, such as 1, or leave "
            "checkpoint_shared_steps out"
        )
    if folder is not None and shared is None:
        raise SettingsError(
            f"{source}: checkpoint_node_folder is {folder!r}, and nothing is kept on the nodes: set "
            "checkpoint_shared_steps too, or leave it out"
        )


def _check_config(config: Iterable[str], source: str) -> None:
    for name in config:
        if not name.isidentifier():
            raise SettingsError(
                f"{source}: config has the key {name!r}; the task reads it as cfg.NAME, "
                "so it must be letters, digits and underscores"
            )
        if name in _RULES:
            raise SettingsError(
                f"{source}: config.{name} is a setting of its own; write {name} beside config, not inside"
            )


def _nearest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; valid are {', '.join(names)}"


def divided(settings: Settings, world_size: int) -> Settings:
    """The settings with ``accumulate`` worked out, where they give ``micro_batch`` as a number.

    As few micro-batches as fit, and these as equal as can be: 100 samples of which 40 fit are 34, 34 and 32.
    """
    if not isinstance(settings.micro_batch, int):
        return settings
    share = -(-settings.batch_size // world_size)
    rounds = -(-share // settings.micro_batch)
    return replace(settings, micro_batch=-(-share // rounds), accumulate=rounds)


def micro_batch(settings: Settings, world_size: int) -> int:
    """Samples that one process takes at a time: batch_size / (world size * accumulate), or what ``divided`` has set.

    Raises:
        SettingsError: it does not divide; the message names all figures and the nearest value that does.
    """
    if isinstance(settings.micro_batch, int):
        return settings.micro_batch
    parts = world_size * settings.accumulate
    micro, rest = divmod(settings.batch_size, parts)
    if not rest:
        return micro
    nearest = max(parts, round(settings.batch_size / parts) * parts)
    raise SettingsError(
        f"batch_size {settings.batch_size} does not divide by {parts} "
        f"(world size {world_size} x accumulate {settings.accumulate}); the nearest batch_size is {nearest}"
    )


class Config:
    """What a task gets as ``cfg``: each setting and each key of ``config``, as a read-only attribute."""

    def __init__(self, settings: Settings) -> None:
        self.__dict__.update(vars(settings), epochs=settings.most_epochs, **settings.config)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle look for such names, and expect a plain refusal
            raise AttributeError(name)
        raise AttributeError(
            f"cfg.{name} is neither a setting nor a key of config{_nearest(name, vars(self))}"
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"cfg.{name} cannot be set: cfg is read-only")

    def __repr__(self) -> str:
        return f"Config({vars(self)!r})"
