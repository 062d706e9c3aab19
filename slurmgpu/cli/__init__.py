"""The command line: one file per command; parse, call, print."""

from __future__ import annotations

import gc

__all__ = ["main"]


def main(argv: list[str] | None = None) -> None:
    """The command ``slurmgpu``.

    Most commands are short, and the garbage collector would search the same imported modules dozens of times,
    and once more at the end: a fifth of the time of ``render`` (benchmarks/startup.py).
    """
    gc.set_threshold(500_000)
    try:
        from slurmgpu.cli.group import run

        run(argv)
    finally:
        gc.freeze()
