"""A webhook on this machine, which keeps what it is sent."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

TOKEN = "xyzzy-0451"
"""In every address, and in no file, log or message."""


class Received(NamedTuple):
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Webhook:
    """What has come; ``status`` is what it answers, and ``location`` where it sends to."""

    def __init__(self, port: int) -> None:
        self.port, self.received = port, list[Received]()
        self.status, self.location, self.waits = 204, "", threading.Event()
        self.hangs = False

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks/{TOKEN}"


@contextmanager
def webhook() -> Iterator[Webhook]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.received.append(Received(self.path, dict(self.headers), body))
            if made.hangs:  # not in silence: each letter begins the time of a read anew
                self.wfile.write(b"HTTP/1.1 204 No Content\r\nX-More: ")
                with contextlib.suppress(OSError):
                    while not made.waits.wait(0.5):
                        self.wfile.write(b"x")
                        self.wfile.flush()
                return
            self.send_response(made.status)
            if made.location:
                self.send_header("Location", made.location)
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made = Webhook(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            made.waits.set()
            server.shutdown()
            thread.join()
