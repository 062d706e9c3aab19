"""TCP ports for a sandbox's daemons."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

__all__ = ["reserved_ports"]

CANDIDATES = range(30_000, 65_536)
"""Above the ports under which jobs meet (templates/rendezvous.sh.j2)."""

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


@contextlib.contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Different ports of the loopback interface that nobody listens on now.

    Until the end of the ``with``, by which their daemons are to listen, no other sandbox on this machine gets them:
    for each a socket without a file is held whose name says so (unix(7), abstract).

    Outside the range from which the kernel serves whoever names no port (ip(7), ip_local_port_range), as each
    srun does: there a port goes to somebody else before its daemon has started, or while it is down. On a
    machine that leaves nothing beside that range, from within it.
    """
    try:
        lowest, highest = map(int, _EPHEMERAL.read_text().split())
    except (OSError, ValueError):
        lowest, highest = 32_768, 60_999
    candidates = [port for port in CANDIDATES if not lowest <= port <= highest]
    # By chance: others who look for a free port, and know nothing of such names, mostly begin at one end.
    random.SystemRandom().shuffle(candidates)
    with ExitStack() as reserved:
        # Held together, so that they differ.
        with ExitStack() as held:
            ports: list[int] = []
            for candidate in [*candidates, *[0] * count]:
                if len(ports) == count:
                    break
                probe = held.enter_context(socket.socket())
                with contextlib.suppress(OSError):
                    probe.bind(("127.0.0.1", candidate))
                    port: int = probe.getsockname()[1]
                    reserved.enter_context(_named(port))
                    ports.append(port)
        yield ports


def _named(port: int) -> socket.socket:
    """A socket that says that this port is taken; OSError when there is one already."""
    made = socket.socket(socket.AF_UNIX)
    try:
        made.bind(f"\0slurmgpu-port-{port}")
    except OSError:
        made.close()
        raise
    return made
