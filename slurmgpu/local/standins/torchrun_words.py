"""Figures of the cluster in a step's command, torchrun's above all: changed to fit this machine."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...lines.torchrun import TORCHRUN, torchrun_at

__all__ = ["fit_local_world_size", "fit_torchrun", "is_pretended_host"]

_ADDRESSES = {"master-addr", "rdzv-endpoint", "local-addr"}


def is_pretended_host(name: str, nodes: Sequence[str]) -> bool:
    """Whether a host name is a pretended node's, whatever suffix a site has (``node1i``, ``node1.ib``)."""
    return any(re.fullmatch(re.escape(node) + r"(?![0-9])[A-Za-z0-9.-]*", name) for node in nodes)


def _first_option(words: Sequence[str]) -> int | None:
    """Return where torchrun's options begin, or None in a command without torchrun."""
    for position, word in enumerate(words[2:], 2):
        # sh -c 'exec python3 -m torch.distributed.run ... "$@"' NAME OPTIONS...
        if words[position - 1] == "-c" and re.search(
            r"\btorch\.distributed\.(run|launch)\b|\btorchrun\b", word
        ):
            return position + 2
    return torchrun_at(words)


def fit_torchrun(
    words: Sequence[str], *, nodes: int, processes_per_node: int, hosts: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Change ``--nnodes``, ``--nproc-per-node`` and addresses of pretended nodes to this machine's.

    Only torchrun's own options are read, up to the program that it starts. Returns the words, and what was
    changed as ``old -> new`` for the user.
    """
    result, changes = list(words), list[str]()
    start = _first_option(words)
    for option in TORCHRUN.read(words, start).options if start is not None else ():
        value = new = option.value or ""
        if option.name == "nnodes":
            new = str(nodes)
        elif option.name == "nproc-per-node":
            new = str(processes_per_node)
        elif option.name in _ADDRESSES:
            host, colon, port = value.partition(":")
            new = "127.0.0.1" + colon + port if is_pretended_host(host, hosts) else value
        if new != value:
            result[option.value_at] = result[option.value_at].removesuffix(value) + new
            changes.append(f"{option.spelling}={value} -> {new}")
    return result, changes


def fit_local_world_size(words: Sequence[str], processes_per_node: int) -> list[str]:
    """Change ``LOCAL_WORLD_SIZE=4`` in a task's own ``sh -c '...'`` to the number of tasks here."""
    new = rf"\g<1>{processes_per_node}"
    return [
        re.sub(r"(\bLOCAL_WORLD_SIZE=)\d+\b", new, word) if before == "-c" else word
        for before, word in zip(["", *words], words, strict=False)
    ]
