"""What comes as one module each, found by its name: launchers and container runtimes, shipped or a user's own."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from slurmgpu.errors import InvalidInput, did_you_mean

__all__ = ["LAUNCHERS", "RUNTIMES", "Kind", "OneOf"]

T = TypeVar("T")


class Kind:
    """The modules of one folder of the package, and those that settings add to them."""

    def __init__(self, what: str, folder: str) -> None:
        self.what, self.folder = what, folder
        self._own: dict[str, tuple[Path, str]] = {}
        self._loaded: dict[str, ModuleType] = {}

    def names(self) -> list[str]:
        """The names that a job may give, in alphabetical order; a file's underscore is a name's dash."""
        shipped = (Path(__file__).parents[1] / self.folder).glob("[a-z]*.py")
        return sorted({_name(path) for path in shipped} | self._own.keys())

    def add(self, sources: Mapping[Path, str]) -> None:
        """Add a user's own modules, or replace shipped ones; ``sources`` maps a module's file to its text."""
        self._own |= {_name(path): (path, text) for path, text in sources.items()}
        self._loaded.clear()

    def load(self, name: str) -> ModuleType:
        """The module of that name; InvalidInput where a user's own cannot be imported."""
        if name not in self._loaded:
            own = self._own.get(name)
            self._loaded[name] = (
                importlib.import_module(f"slurmgpu.{self.folder}.{name.replace('-', '_')}")
                if own is None
                else _run(*own)
            )
        return self._loaded[name]

    def instance(self, name: str, of: type[T]) -> T:
        """What the module of that name holds under its class's name in capitals; InvalidInput where that is not one."""
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
        """The names as JSON Schema knows them."""
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
