"""The command line: one file per command; parse, call, print."""

from __future__ import annotations

import gc
import sys
import types

__all__ = ["main"]


def _leave_out_plugins() -> None:
    """Keep Pydantic from reading every installed package's metadata in search of plugins, a tenth of ``render``.

    PYDANTIC_DISABLE_PLUGINS would skip the search but not the imports for it, and the jobs would inherit it.
    Where Pydantic has no such module any more, this does nothing.
    """
    loader = types.ModuleType("pydantic.plugin._loader")
    loader.__dict__["__getattr__"] = lambda _: lambda *_, **__: ()
    sys.modules.setdefault(loader.__name__, loader)


def main(argv: list[str] | None = None) -> None:
    """The command ``slurmgpu``.

    Most commands are short, and the garbage collector would search the same imported modules dozens of times,
    and once more at the end: a fifth of the time of ``render`` (benchmarks/startup.py).
    """
    gc.set_threshold(500_000)
    _leave_out_plugins()
    try:
        from slurmgpu.cli.group import run

        run(argv)
    finally:
        gc.freeze()
