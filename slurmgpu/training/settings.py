"""``train.json`` as the entrypoint reads it: refused by name where something is wrong, and completed with the defaults."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Optional

from .errors import SettingsError
from .files import write_whole
from .formats.combinations import misfit, uneven_batch
from .formats.settings import NOT_INTERLEAVED, REMOVED, TRAIN_SCHEMA, TrainFields, rules_of

__all__ = ["Config", "Settings", "complete", "divided", "load", "micro_batch", "parse"]

_AS_NOW = {"tensor_parallel": 1, "stages_each": 1, "gradient_as_bucket_view": True}
"""Defaults of removed settings, which earlier versions wrote into each train.json."""


@dataclass(frozen=True)
class Settings(TrainFields):
    """The settings of one training."""

    @property
    def most_epochs(self) -> Optional[int]:
        """Epochs of the training at most; None where ``max_steps`` alone says how long it is."""
        return 1 if self.epochs is None and self.max_steps is None else self.epochs

    def as_dict(self) -> dict[str, object]:
        """Return the settings as plain JSON values."""
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
    for name, value in values.items():
        reason = misfit(name, value, values, _RULES)
        if reason is not None:
            shown = name if name == "config" else f"{name} is {value!r}"
            raise SettingsError(f"{source}: {shown}: {reason}")
    return Settings(**values)


def _nearest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; valid are {', '.join(names)}"


def divided(settings: Settings, world_size: int) -> Settings:
    """Return the settings with ``accumulate`` worked out, where they give ``micro_batch`` as a number.

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
    if (uneven := uneven_batch(settings, world_size, "world size")) is not None:
        raise SettingsError(uneven[0])
    return settings.batch_size // (world_size * settings.accumulate)


class Config:
    """The ``cfg`` of a task: each setting and each key of ``config``, as a read-only attribute."""

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
