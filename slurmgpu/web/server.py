"""The application with its routes, and where its server listens, and until when."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import socket
import stat
import threading
import time
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from slurmgpu.errors import InvalidInput, SlurmGpuError
from slurmgpu.files.trust import Trust
from slurmgpu.web.generator import Generator
from slurmgpu.web.http import Behind, Guard, page, static
from slurmgpu.web.runs import Runs

__all__ = ["addresses", "guarded", "listen_on_port", "listen_on_socket", "serve", "token_of"]

_LOOK = 1.0
_LONGEST_SOCKET = 100
_QUEUE = 128
_LOWEST = 1024
_FORWARDED = 8765
"""The port of one's own computer, in the printed line, where the server itself has none."""


def listen_on_port(port: int, host: str | None = None) -> socket.socket:
    """Listen on a port of this machine's loopback, which no other machine reaches; 0: any that is free.

    ``host``: a name or an address of this machine instead, which others may reach.
    """
    if 0 < port < _LOWEST:
        raise InvalidInput(
            f"--port {port}: ports below {_LOWEST} are the system's, here and on your own computer",
            hint=f"give one from {_LOWEST} to 65535, or leave --port out: a free one is taken",
        )
    address: tuple[Any, ...] = ("127.0.0.1", port)
    family = socket.AF_INET
    if host is not None:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        except OSError as error:
            raise InvalidInput(
                f"--listen {host}: is no name of this machine: {error.strerror}",
                hint="give what `hostname` prints",
            ) from None
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(address)
        made.listen(_QUEUE)  # at once: until then, somebody else could bind the same port, and listen first
    except OSError as error:
        made.close()
        what, hint = f"--port {port}", "give another one, or leave --port out: a free one is taken"
        if host is not None:
            what, hint = f"--listen {host}, {what}", "give what `hostname` prints, and a port that is free"
        raise InvalidInput(f"{what}: cannot be listened on: {error.strerror}", hint=hint) from None
    return made


def listen_on_socket(path: Path) -> socket.socket:
    """Listen on a Unix socket that its owner alone can reach."""
    path = path.expanduser().absolute()
    if len(os.fsencode(path)) > _LONGEST_SOCKET:
        raise InvalidInput(
            f"--socket {path}: has {len(os.fsencode(path))} letters, and a socket's path at most {_LONGEST_SOCKET}",
            hint="give a shorter one, such as --socket ~/.slurmgpu/web",
        )
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_own(path)
        if path.exists() and stat.S_ISSOCK(path.lstat().st_mode):
            # The socket of a server that is gone is removed; what answers stays, and cannot be taken.
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
                try:
                    asking.connect(str(path))
                except ConnectionRefusedError:
                    path.unlink()
        before = os.umask(0o177)
        try:
            made.bind(str(path))
        finally:
            os.umask(before)
        made.listen(_QUEUE)
    except OSError as error:
        made.close()
        raise InvalidInput(
            f"--socket {path}: cannot be listened on: {error.strerror}",
            hint="give the path of a file that is not there yet, in a folder of your own on this machine's own disk",
        ) from None
    return made


def _require_own(path: Path) -> None:
    """Refuse a place that somebody else can put a socket of theirs into instead: browsers would tell it the token."""
    below = path.parent.resolve()
    for folder in (below, *below.parents):
        found, there = Trust().foreign(folder), folder.stat()
        if found is None or (there.st_mode & stat.S_ISVTX and there.st_uid in (0, os.geteuid())):
            continue
        raise InvalidInput(
            f"--socket {path}: {folder} {found.why}: somebody else could put a socket of theirs there",
            hint="give a path in a folder of your own, such as --socket ~/.slurmgpu/web",
        )


_SHORTEST_TOKEN = 32


def token_of(path: Path) -> str:
    """Return the token in a file that its owner alone can read; InvalidInput for one that others can, or that is soon guessed."""
    try:
        with path.open(encoding="ascii") as file:
            there = os.fstat(file.fileno())
            token = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is no plain text"
        raise InvalidInput(f"--token-file {path}: cannot be read: {said}") from None
    if there.st_uid != os.geteuid() or there.st_mode & 0o077:
        raise InvalidInput(
            f"--token-file {path}: others can read it", hint=f"chmod 600 {shlex.quote(str(path))}"
        )
    if not re.fullmatch(rf"[\w-]{{{_SHORTEST_TOKEN},}}", token, re.ASCII):
        raise InvalidInput(
            f"--token-file {path}: a token has {_SHORTEST_TOKEN} letters and digits or more, and nothing else",
            hint="openssl rand -hex 32 makes one",
        )
    return token


def addresses(listening: socket.socket, token: str, user: str, host: str) -> tuple[str, str]:
    """Return the address for a browser, and the line of ssh that leads there from another computer."""
    name = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        port, target = _FORWARDED, shlex.quote(str(name))
    else:
        port, target = name[1], f"127.0.0.1:{name[1]}"
    return f"http://127.0.0.1:{port}/?token={token}", f"ssh -N -L {port}:{target} {user}@{host}"


_MOST = 128
"""Connections at a time."""


class _Connection(H11Protocol):
    """One that asks nothing at the moment makes room for others: else any user of this machine could keep all taken."""

    came = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it; where there are as many as there may be, the oldest that is not being answered ends."""
        if len(self.connections) >= _MOST - 1:
            others = [one for one in self.connections if isinstance(one, _Connection) and one.is_waiting]
            if others:
                oldest = min(others, key=lambda one: one.came)
                self.connections.discard(oldest)  # at once: many may come before the loop tells it
                oldest.transport.abort()
        self.came = time.monotonic()
        super().connection_made(transport)

    @property
    def is_waiting(self) -> bool:
        """True if no request of it is being answered."""
        return self.cycle is None or self.cycle.response_complete


def serve(guard: Guard, listening: socket.socket, idle: float) -> bool:
    """Answer until a signal comes, or until nobody has asked anything for ``idle`` seconds (0: for ever); whether it was that."""
    config = uvicorn.Config(
        guard,
        http=_Connection,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_level="warning",
        access_log=False,  # addresses have the token
        server_header=False,
        limit_concurrency=_MOST,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=1 << 16,
    )
    server = uvicorn.Server(config)
    was_idle = threading.Event()

    def watch() -> None:
        while not server.should_exit:
            time.sleep(_LOOK)
            if time.monotonic() - guard.last > idle:
                was_idle.set()
                server.should_exit = True

    guard.last = time.monotonic()
    if idle:
        threading.Thread(target=watch, daemon=True).start()
    path = listening.getsockname() if listening.family == socket.AF_UNIX else None
    try:
        server.run(sockets=[listening])
    finally:
        if path is not None:
            Path(path).unlink(missing_ok=True)
        listening.close()
    return was_idle.is_set()


def guarded(generator: Generator, runs: Runs, token: str, behind: Behind | None = None) -> Guard:
    """Return all pages behind a guard, which lets only those in who have the token."""
    routes = [*generator.routes, *runs.routes, Route("/static/{name}", static)]
    handled = (SlurmGpuError, 404, 405, Exception)
    return Guard(
        Starlette(routes=routes, exception_handlers=dict.fromkeys(handled, _error_page)), token, behind
    )


def _error_page(request: Request, error: Exception) -> Response:
    """Return one error in the words of the command line; where a part of a page was asked for, as a part."""
    if isinstance(error, SlurmGpuError):
        status, message, hint = 422, error.message, error.hint or ""
    elif isinstance(error, HTTPException):
        status, message, hint = error.status_code, "There is no such page.", ""
    else:
        status, hint = 500, ""
        message = "Something is wrong with this page; the terminal that slurmgpu web runs in says what."
    name = "said_part.html" if "hx-request" in request.headers else "said.html"
    # Links are relative, so that a proxy may put all pages below a path of its own.
    root = "../" * (request.url.path.count("/") - 1)
    return page(name, status, message=message, hint=hint, page="", root=root)
