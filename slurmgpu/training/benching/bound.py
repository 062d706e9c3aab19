"""A module run as long as the process that started it lives, ``python -m slurmgpu_training.benching.bound PARENT MODULE``.

A bench that is killed can end nobody: what it tries would train without end. Linux ends it (prctl(2), PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import signal
import sys

__all__ = ["end_with_parent"]

_PR_SET_PDEATHSIG = 1


def end_with_parent(number: int) -> None:
    """Get this signal when the parent ends; nothing but on Linux."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


if __name__ == "__main__":
    _, parent, module = sys.argv
    end_with_parent(signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("whoever started this has ended already")
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
