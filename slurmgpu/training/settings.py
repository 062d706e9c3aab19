"""``train.json`` as the entrypoint reads it: refused by name where something is wrong, and completed with the defaults."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Optional

from .errors import SettingsError
from .files import write_whole
from .formats.settings import NOT_INTERLEAVED, REMOVED, TRAIN_SCHEMA, TrainFields, rules_of

__all__ = ["Config", "Settings", "complete", "divided", "load", "micro_batch", "parse"]

_AS_NOW = {"tensor_parallel": 1, "stages_each": 1, "gradient_as_bucket_view": True}
"""What earlier versions wrote into each train.json, and what is done without it."""


@dataclass(frozen=True)
class Settings(TrainFields):
    """The settings of one training."""

    @property
    def most_epochs(self) -> Optional[int]:
        """Epochs of the training at most; None where ``max_steps`` alone says how long it is."""
        return 1 if self.epochs is None and self.max_steps is None else self.epochs

    def as_dict(self) -> dict[str, object]:
        """The settings as plain JSON values."""
        return asdict(self)


_RULES = rules_of(Settings)


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
    document = {"schema": TRAIN_SCHEMA, **settings.as_dict(), **told}
    if document.keys() != told.keys():
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        write_whole(path, lambda file: file.write(text.encode()))


def parse(document: object, source: str = "train.json") -> Settings:
    """Check a decoded ``train.json`` and fill in the defaults."""
    if not isinstance(document, dict):
        raise SettingsError(f"{source} holds a {type(document).__name__}; it must hold a mapping")
    values = dict(document)
    schema = values.pop("schema", None)
    if schema != TRAIN_SCHEMA:
        raise SettingsError(f"{source}: schema is {schema!r}; this entrypoint reads {TRAIN_SCHEMA!r}")
    for name, usual in _AS_NOW.items():
        if name in values and values.pop(name) != usual:
            raise SettingsError(f"{source}: {name} {REMOVED[name]}")
    if values.get("pipeline_schedule") == "interleaved":
        raise SettingsError(f"{source}: pipeline_schedule {NOT_INTERLEAVED}")
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
