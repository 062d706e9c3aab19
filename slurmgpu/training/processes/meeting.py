"""The store that the ranks meet by, and a roll call before they do: who never comes is named.

torch's own meeting ends after its time-out as well, but says only how many have come.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ..errors import TrainingError
from .ranks import Ranks

__all__ = ["call_roll", "connect"]

_GRACE = 1.0  # seconds in which the others learn from rank 0 who is missing, before its store is gone with it
_NAMED = 8  # missing ranks that are named


def connect(timeout: float, *, serves: bool = False) -> Any:
    """Return a connection of its own to the store that the ranks meet by; ``serves``: the store is this process's own."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # torch's meeting takes the same server then, which is one for all of a process.
    options = {"is_master": serves, "wait_for_workers": False, "multi_tenant": serves}
    if os.environ.get("USE_LIBUV") == "0" and "use_libuv" in str(dist.TCPStore.__init__.__doc__):  # type: ignore[attr-defined, unused-ignore]
        options["use_libuv"] = False  # known from torch 2.3 on
    store = dist.TCPStore(host, port, timeout=timedelta(seconds=timeout), **options)  # type: ignore[attr-defined, unused-ignore]
    start = os.environ.get(
        "TORCHELASTIC_RESTART_COUNT", "0"
    )  # torchrun keeps its store when it starts ranks again
    found = dist.PrefixStore(f"slurmgpu/{start}", store)  # type: ignore[attr-defined, unused-ignore]
    return found if hasattr(found, "check") else _Checked(found)


class _Checked:
    """A store of an older torch (2.1), which cannot be asked whether it has a value: beside each, a number says so.

    Waiting for a moment is no way to find out: an answer that comes too late is taken for that to the next question.
    """

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def set(self, name: str, value: str) -> None:
        """Publish a value."""
        self._store.set(name, value)
        self._store.add(f"{name}/there", 1)

    def compare_set(self, name: str, expected: str, value: str) -> None:
        """Publish a value where there is none yet, as ``expected`` says by being empty.

        Not by the store's own compare_set: that of torch 2.1 makes its answer without the interpreter's lock, of which
        Python 3.10 dies.
        """
        assert expected == ""
        if self._store.add(f"{name}/taken", 1) == 1:
            self.set(name, value)

    def delete_key(self, name: str) -> None:
        """Forget a value."""
        self._store.delete_key(f"{name}/there")
        self._store.delete_key(name)

    def check(self, names: Iterable[str]) -> bool:
        """Return True if all of the names have a value; does not wait."""
        return all(self._store.add(f"{name}/there", 0) > 0 for name in names)


def call_roll(ranks: Ranks, timeout: float) -> Any:
    """Wait until every rank is here; the store, which must live on rank 0 until all have met.

    Raises:
        TrainingError: some have not come in time; the message names them.
        RuntimeError: the store cannot be reached, because rank 0 is not there.
    """
    serves = ranks.first and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = connect(timeout, serves=serves)
    store.set(f"here/{ranks.rank}", ranks.host)
    if store.add("arrived", 1) == ranks.world_size:
        store.set("all", "1")
    everyone = [f"here/{rank}" for rank in range(ranks.world_size)]
    try:
        # Counted, and asked for by name only where one does not come: a thousand names are much for one question.
        store.wait(["all"] if ranks.first else ["missing"], timedelta(seconds=timeout))
        missing = [] if ranks.first else json.loads(store.get("missing"))
    except RuntimeError:
        missing = [rank for rank, name in enumerate(everyone) if not store.check([name])]
    if ranks.first:
        store.set("missing", json.dumps(missing))
    if missing:
        if serves:
            time.sleep(_GRACE)
        raise TrainingError(_missing(ranks, missing, timeout))
    return store


def _missing(ranks: Ranks, missing: list[int], timeout: float) -> str:
    named = ", ".join(map(str, missing[:_NAMED])) + (" and others" if missing[_NAMED:] else "")
    return (
        f"{len(missing)} of {ranks.world_size} ranks did not come within {timeout:g} s (timeout): rank {named}. "
        "They have not started, or ended before they could say so: look at what they printed, such as an import that failed"
    )
