"""Options that belong together and arrive as one value."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

F = TypeVar("F", bound=Callable[..., object])
Decorator = Callable[[Callable[..., object]], Callable[..., object]]
"""What ``click.option(...)`` returns, as far as it matters here."""


def gathered(name: str, made: Callable[..., object], *options: Decorator) -> Callable[[F], F]:
    """Add options to a command, which gets ``name=made(option=value, ...)`` in place of their values."""

    def bare() -> None: ...

    for option in reversed(options):
        option(bare)
    own: list[click.Parameter] = getattr(bare, "__click_params__", [])

    def decorate(function: F) -> F:
        def collected(*args: object, **values: object) -> object:
            given = {str(one.name): values.pop(str(one.name)) for one in own}
            return function(*args, **values, **{name: made(**given)})

        collected.__name__, collected.__doc__ = function.__name__, function.__doc__
        others = getattr(function, "__click_params__", [])
        collected.__click_params__ = [*others, *own]  # type: ignore[attr-defined]
        return collected  # type: ignore[return-value]

    return decorate


def together(*options: Decorator) -> Callable[[F], F]:
    """Return a decorator that adds options in their order."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)  # type: ignore[assignment]
        return function

    return decorate
