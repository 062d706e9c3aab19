"""What ranks tell each other beside the training's own collectives, from background threads.

The process group may be used by one thread only, and on a GPU a collective would wait for the step. So this goes
over torch's TCP store, through connections of its own: a few bytes, none of it on the path of a step.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .ranks import Ranks

__all__ = ["Channel"]


class Channel:
    """Small values by name, common to all ranks; with one process a mere dictionary."""

    def __init__(self, ranks: Ranks, timeout: float) -> None:
        self._store = _connect(timeout) if ranks.world_size > 1 else None
        self._own: dict[str, object] = {}

    def put(self, name: str, value: object) -> None:
        """Publish a value (JSON)."""
        if self._store is None:
            self._own[name] = value
        else:
            self._store.set(name, json.dumps(value))

    def put_first(self, name: str, value: object) -> None:
        """Publish a value unless there is one already."""
        if self._store is None:
            self._own.setdefault(name, value)
        else:
            self._store.compare_set(name, "", json.dumps(value))

    def has(self, *names: str) -> bool:
        """Whether all of the names have a value; does not wait."""
        if self._store is None:
            return all(name in self._own for name in names)
        return bool(self._store.check(list(names)))

    def get(self, name: str) -> Any:
        """The value, once it is there (RuntimeError after the time-out, or when rank 0 is gone)."""
        return self._own[name] if self._store is None else json.loads(self._store.get(name))

    def drop(self, name: str) -> None:
        """Forget a value."""
        if self._store is None:
            self._own.pop(name, None)
        else:
            self._store.delete_key(name)


def _connect(timeout: float) -> Any:
    """A connection of its own to the store that the ranks met by."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    options = {"is_master": False, "wait_for_workers": False}
    if os.environ.get("USE_LIBUV") == "0" and "use_libuv" in str(dist.TCPStore.__init__.__doc__):  # type: ignore[attr-defined, unused-ignore]
        options["use_libuv"] = False  # known from torch 2.3 on
    store = dist.TCPStore(host, port, timeout=timedelta(seconds=timeout), **options)  # type: ignore[attr-defined, unused-ignore]
    start = os.environ.get(
        "TORCHELASTIC_RESTART_COUNT", "0"
    )  # torchrun keeps its store when it starts ranks again
    return dist.PrefixStore(f"slurmgpu/{start}", store)  # type: ignore[attr-defined, unused-ignore]
