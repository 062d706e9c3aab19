"""Where a session's server is reached."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

__all__ = ["Server", "read_server"]

_MARK = "slurmgpu-server "


class Server(NamedTuple):
    """A server on a node, as this machine reaches it."""

    node: str
    port: int
    end: datetime | None
    """When the allocation ends; None: Slurm does not say."""

    @property
    def until(self) -> str:
        """The end as part of a sentence, with a blank before it; '' where it is not known."""
        return f" until {self.end:%H:%M}" if self.end else ""


def read_server(line: str) -> Server | None:
    """Read the line with which a node's script says that its server listens; None for any other."""
    if not line.startswith(_MARK):
        return None
    port, end, *names = line.removeprefix(_MARK).split()
    moment = datetime.fromtimestamp(int(end)).astimezone() if int(end) else None
    return Server(_known(names), int(port), moment)


def _known(names: Sequence[str]) -> str:
    """The first of a node's names under which this machine finds it."""
    for name in names:
        try:
            socket.getaddrinfo(name, None)
        except OSError:
            continue
        return name
    return names[0]
