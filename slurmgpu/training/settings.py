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
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from .errors import SettingsError

__all__ = ["SCHEMA", "Config", "Settings", "load", "micro_batch", "parse"]

SCHEMA = "slurmgpu.train/1"


@dataclass(frozen=True)
class Settings:
    """The settings of one training; each one's meaning stands in ``slurmgpu.models.train``."""

    task: str
    strategy: str = "auto"
    device: str = "auto"
    precision: str = "fp32"
    epochs: int = 1
    max_steps: Optional[int] = None
    batch_size: int = 32
    accumulate: int = 1
    drop_last: bool = False
    lr: float = 1e-3
    weight_decay: float = 0.01
    schedule: str = "constant"
    warmup_steps: int = 0
    clip_norm: Optional[float] = None
    nonfinite: str = "stop"
    freeze: Sequence[str] = field(default_factory=list)
    seed: int = 0
    deterministic: bool = False
    workers: Union[int, str] = "auto"
    tf32: bool = True
    cudnn_benchmark: bool = True
    channels_last: bool = False
    compile: bool = False
    activation_checkpointing: bool = False
    init_scale: float = 65536.0
    find_unused_parameters: bool = False
    gradient_as_bucket_view: bool = True
    static_graph: bool = False
    bucket_cap_mb: float = 25.0
    checkpoint_every: int = 1
    checkpoint_steps: Optional[int] = None
    keep: int = 2
    keep_every: Optional[int] = None
    resume: bool = True
    stop_margin: float = 60.0
    hang_timeout: Optional[float] = 1800.0
    log_every: int = 10
    profile: bool = False
    profile_after: int = 10
    profile_steps: int = 5
    track: Sequence[str] = field(default_factory=list)
    peak_flops: Optional[float] = None
    timeout: float = 1800.0
    config: Mapping[str, object] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """The settings as plain JSON values."""
        return asdict(self)


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


_SWITCH = _Rule("true or false", lambda v: type(v) is bool)

_RULES = {
    "task": _Rule(
        "FILE.py:CLASS, as in 'task.py:Digits'",
        lambda v: isinstance(v, str) and re.fullmatch(r"(?s).+\.py:[^\W\d]\w*", v) is not None,
    ),
    "strategy": _one_of("auto", "single", "ddp", "dp"),
    "device": _one_of("auto", "cpu"),
    "precision": _one_of("fp32", "bf16", "fp16"),
    "epochs": _whole(1),
    "max_steps": _or_null(_whole(1)),
    "batch_size": _whole(1),
    "accumulate": _whole(1),
    "drop_last": _SWITCH,
    "lr": _number(positive=True),
    "weight_decay": _number(positive=False),
    "schedule": _one_of("constant", "linear", "cosine"),
    "warmup_steps": _whole(0),
    "clip_norm": _or_null(_number(positive=True)),
    "nonfinite": _one_of("stop", "skip", "ignore"),
    "freeze": _Rule(
        "a list of patterns of parameter names",
        lambda v: isinstance(v, list) and all(isinstance(each, str) and each for each in v),
    ),
    "seed": _Rule(
        "a whole number from 0 to 2**64 - 1",
        lambda v: _whole(0).holds(v) and isinstance(v, int) and v < 2**64,
    ),
    "deterministic": _SWITCH,
    "workers": _Rule("'auto' or a whole number of at least 0", lambda v: v == "auto" or _whole(0).holds(v)),
    "tf32": _SWITCH,
    "cudnn_benchmark": _SWITCH,
    "channels_last": _SWITCH,
    "compile": _SWITCH,
    "activation_checkpointing": _SWITCH,
    "init_scale": _number(positive=True),
    "find_unused_parameters": _SWITCH,
    "gradient_as_bucket_view": _SWITCH,
    "static_graph": _SWITCH,
    "bucket_cap_mb": _number(positive=True),
    "checkpoint_every": _whole(1),
    "checkpoint_steps": _or_null(_whole(1)),
    "keep": _whole(1),
    "keep_every": _or_null(_whole(1)),
    "resume": _SWITCH,
    "stop_margin": _number(positive=False),
    "hang_timeout": _or_null(_number(positive=True)),
    "log_every": _whole(1),
    "profile": _SWITCH,
    "profile_after": _whole(0),
    "profile_steps": _whole(1),
    "track": _Rule(
        "a list of tensorboard, wandb",
        lambda v: isinstance(v, list) and all(each in ("tensorboard", "wandb") for each in v),
    ),
    "peak_flops": _or_null(_number(positive=True)),
    "timeout": _number(positive=True),
    "config": _Rule("a mapping", lambda v: isinstance(v, dict)),
}


def load(path: Path) -> Settings:
    """Read the settings from a JSON file.

    Raises:
        SettingsError: the file is missing, is no JSON, or holds a key or value that is not valid.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read the settings {path}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{path} is not valid JSON: {error}") from None
    return parse(document, str(path))


def parse(document: object, source: str = "train.json") -> Settings:
    """Check a decoded ``train.json`` and fill in the defaults."""
    if not isinstance(document, dict):
        raise SettingsError(f"{source} holds a {type(document).__name__}; it must hold a mapping")
    values = dict(document)
    schema = values.pop("schema", None)
    if schema != SCHEMA:
        raise SettingsError(f"{source}: schema is {schema!r}; this entrypoint reads {SCHEMA!r}")
    for name, value in values.items():
        rule = _RULES.get(name)
        if rule is None:
            raise SettingsError(f"{source}: unknown key {name!r}{_nearest(name, _RULES)}")
        if not rule.holds(value):
            raise SettingsError(f"{source}: {name} is {value!r}; it must be {rule.valid}")
    if "task" not in values:
        raise SettingsError(f"{source}: task is missing; it must be {_RULES['task'].valid}")
    if values.get("static_graph") and values.get("accumulate", 1) > 1:
        # Its first backward pass must not be one of no_sync: an assertion fails (pytorch's issue 143580).
        raise SettingsError(
            f"{source}: static_graph is True and accumulate is {values['accumulate']}: torch's DDP cannot do both; "
            "set static_graph to false, or accumulate to 1"
        )
    _check_config(values.get("config", {}), source)
    return Settings(**values)


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


def micro_batch(settings: Settings, world_size: int) -> int:
    """Samples that one process takes at a time: batch_size / (world size * accumulate).

    Raises:
        SettingsError: it does not divide; the message names all figures and the nearest value that does.
    """
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
        values = {each.name: getattr(settings, each.name) for each in fields(settings)}
        self.__dict__.update(values, **settings.config)

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
