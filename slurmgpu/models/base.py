"""The base of every model (frozen, strict, no unknown keys), the kinds of text, and what comes as one module each."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SkipValidation,
    Strict,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from slurmgpu.errors import InvalidInput, did_you_mean

__all__ = [
    "LAUNCHERS",
    "RUNTIMES",
    "Checked",
    "EnvName",
    "Hinted",
    "JobOption",
    "JobPath",
    "JobText",
    "Kind",
    "LowerWord",
    "Model",
    "OneOf",
    "OptionValue",
    "Text",
    "Word",
    "Words",
    "one_line",
]


# C0 controls but the tab, DEL, and the C1 block: none survives a batch script's option lines.
_CONTROL = r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]"
_NAMES = {"\n": "a newline", "\r": "a carriage return", "\x00": "a NUL byte"}


class Model(BaseModel):
    """A frozen value: equal by content, no key beyond those declared, no silent conversion."""

    # Built when first used: a command pays for the models that it validates, not for all that are defined.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class Checked:
    """Functions that a validated value goes through, in order; each returns it, or raises ValueError.

    Pydantic's AfterValidator inspects the signature of every function, once a field, at every start.
    """

    def __init__(self, *checks: Callable[[Any], Any]) -> None:
        self._checks = checks

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._through, handler(source))

    def _through(self, value: Any) -> Any:
        for check in self._checks:
            value = check(value)
        return value


class Hinted(ValueError):
    """A value that cannot be, with the next act on its own, as ``slurmgpu.errors`` prints it."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def one_line(value: str) -> str:
    """Refuse what a line of a batch script cannot carry.

    sbatch stops reading options at a line that is neither comment nor blank, and the shell runs that
    line: a newline in a value would be a command.
    """
    if value.isprintable():
        return value  # most are: no control character stands in it, and nothing that UTF-8 lacks
    found = re.search(_CONTROL, value)
    if found:
        name = _NAMES.get(found[0], f"the control character U+{ord(found[0]):04X}")
        raise ValueError(f"contains {name} at position {found.start() + 1}; write it on one line, without it")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("is not valid UTF-8; write it again without the broken character") from None
    return value


def _not_empty(value: str) -> str:
    if not value.strip():
        raise ValueError("is empty; give a value or leave the key out")
    return value


_WORD = r"[^\s\"'#\\$`]+\Z"


def _word(value: str) -> str:
    if not re.match(_WORD, value):
        raise ValueError(
            f"{value!r} is not a name Slurm could know: use letters, digits and . _ - : + @, no blanks or quotes"
        )
    return value


_ENV_NAME = r"[A-Za-z_][A-Za-z0-9_]*\Z"

# Slurm drops variables with longer names in silence (seen on 22.05).
LONGEST_VARIABLE = 255


def _env_name(value: str) -> str:
    if not re.match(_ENV_NAME, value):
        raise ValueError(
            f"{value!r} is not a variable name: use letters, digits and _, not beginning with a digit"
        )
    if len(value) > LONGEST_VARIABLE:
        raise ValueError(
            f"{value[:20]}... is a variable's name of {len(value)} letters, and Slurm hands on at most "
            f"{LONGEST_VARIABLE}; shorten it"
        )
    return value


TEXT = (one_line, _not_empty)
Text = Annotated[str, Checked(*TEXT)]
"""One line of free text, not empty."""

Word = Annotated[str, Checked(*TEXT, _word)]
"""A name that Slurm administrators give (partition, account, QOS): one word."""
LowerWord = Annotated[str, Checked(*TEXT, _word, str.lower)]
"""A word that Slurm keeps in lower case, however it is typed: an account."""

EnvName = Annotated[str, Checked(_env_name)]
"""The name of an environment variable."""

JobPath = Annotated[
    str,
    Checked(*TEXT),
    Field(
        description="A path; $NAME and ${NAME} in it expand when the job runs, and a leading ~/ is the home "
        "folder; nothing else expands."
    ),
]
"""A path in which only ``$NAME``, ``${NAME}`` and a leading ``~/`` expand, when the job runs."""

Words = Annotated[tuple[Text, ...], Strict(False)]
"""A list of texts; lists count too where a validator has already turned the file's values into Python's."""


def _option_value(value: object) -> object:
    return _not_empty(one_line(value)) if isinstance(value, str) else _any_value(value)


def _any_value(value: object) -> object:
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, (bool, int)):
        return value
    raise ValueError(
        f"{value!r} is not a value of an option; write text, a number, true (no value) or false (leave it out)"
    )


JobText = Annotated[
    str,
    Checked(one_line),
    Field(
        description="A value, which may be empty; $NAME and ${NAME} in it expand when the job runs, and a leading ~/ "
        "is the home folder; nothing else expands."
    ),
]
"""The value of a variable, expanded as a :data:`JobPath` is."""

_OF_AN_OPTION = "A value; true for an option without one, false to leave out an option of the cluster's."
OptionValue = Annotated[
    str | int | bool, SkipValidation, Checked(_option_value), Field(description=_OF_AN_OPTION)
]
"""The value of an sbatch option that is passed on as it is."""

JobOption = Annotated[str | int | bool, SkipValidation, Checked(_any_value), Field(description=_OF_AN_OPTION)]
"""The same in a job, where an exact one may leave a value empty."""

T = TypeVar("T")


class Kind:
    """The modules of one folder of the package, and those that settings add to them."""

    def __init__(self, what: str, folder: str) -> None:
        self.what, self.folder = what, folder
        self._own: dict[str, tuple[Path, str]] = {}
        self._loaded: dict[str, ModuleType] = {}

    def names(self) -> list[str]:
        """Return the names that a job may give, in alphabetical order; a file's underscore is a name's dash."""
        shipped = (Path(__file__).parents[1] / self.folder).glob("[a-z]*.py")
        return sorted({_name(path) for path in shipped} | self._own.keys())

    def add(self, sources: Mapping[Path, str]) -> None:
        """Add a user's own modules, or replace shipped ones; ``sources`` maps a module's file to its text."""
        self._own |= {_name(path): (path, text) for path, text in sources.items()}
        self._loaded.clear()

    def load(self, name: str) -> ModuleType:
        """Return the module of that name; InvalidInput where a user's own cannot be imported."""
        if name not in self._loaded:
            own = self._own.get(name)
            self._loaded[name] = (
                importlib.import_module(f"slurmgpu.{self.folder}.{name.replace('-', '_')}")
                if own is None
                else _run(*own)
            )
        return self._loaded[name]

    def instance(self, name: str, of: type[T]) -> T:
        """Return what the module of that name holds under its class's name in capitals; InvalidInput where that is not one."""
        module, holder = self.load(name), of.__name__.upper()
        found = getattr(module, holder, None)
        if not isinstance(found, of):
            raise InvalidInput(
                f"{module.__file__}: {holder} is {found!r}, which is not a slurmgpu.{self.folder}.{of.__name__}",
                hint=f"define a subclass of {of.__name__}, and {holder} = ThatClass()",
            )
        return found


def _name(path: Path) -> str:
    return path.stem.replace("_", "-")


def _run(path: Path, text: str) -> ModuleType:
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
    except Exception as error:
        raise InvalidInput(
            f"{path}: it cannot be imported: {type(error).__name__}: {error}",
            hint="correct the file, or take it out of the folder that `extensions` names",
        ) from error
    return module


LAUNCHERS = Kind("launcher", "launchers")
RUNTIMES = Kind("container runtime", "containers")


class OneOf:
    """A field that holds the name of a kind's module, or one of a few other words."""

    def __init__(self, kind: Kind, *others: str) -> None:
        self._kind, self._others = kind, others

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._known, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return self.json_schema()

    def json_schema(self) -> JsonSchemaValue:
        """Return the names as JSON Schema knows them."""
        return {"enum": self._names(), "type": "string"}

    def _names(self) -> list[str]:
        return [*self._others, *self._kind.names()]

    def _known(self, value: str) -> str:
        names = self._names()
        if value not in names:
            raise ValueError(
                f"{value!r} is not a {self._kind.what}; {did_you_mean(value, names)}valid: {', '.join(names)}"
            )
        return value
