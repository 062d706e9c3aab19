"""A reverse proxy on loopback that treats requests as Open OnDemand's node proxy does."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["Portal", "portal"]


class Portal:
    """Where it is, whom it takes its visitor for, and the page of a session, which is shown at /session."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"
        self.user = "me"
        self.keeps_host = False
        """Whether the server behind it gets the browser's ``Host``, as with Dex, or its own name."""
        self.session = ""


@contextmanager
def portal() -> Iterator[Portal]:
    """One that serves as long as somebody needs it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path == "/session":
                self._answer(200, [("Content-Type", "text/html")], made.session.encode())
                return
            match = re.match(r"/(r?node)/([\w.-]+)/(\d+)(/[^?]*|)(\?.*|)\Z", self.path)
            if match is None:
                self._answer(404, [], b"")
                return
            kind, host, port, rest, query = match.groups()
            # node keeps the whole path, rnode takes its own part away.
            target = (rest or "/") + query if kind == "rnode" else self.path
            headers = {
                name: value
                for name, value in self.headers.items()
                if name.lower() not in ("connection", "host", "x-forwarded-user")
            }
            headers |= {
                "Host": self.headers["Host"] if made.keeps_host else f"{host}:{port}",
                "X-Forwarded-Host": self.headers["Host"],
                "X-Forwarded-Proto": "http",
                "X-Forwarded-User": made.user,
            }
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asking = http.client.HTTPConnection(host, int(port), timeout=30)
            asking.request(self.command, target, body or None, headers)
            answer = asking.getresponse()
            data = answer.read()
            found = []
            for name, value in answer.getheaders():
                if name.lower() == "set-cookie":
                    bare = re.sub(r"(?i);\s*(domain|path)[^;]*", "", value)
                    value = re.sub(r"^([^;]+)", rf"\1; Path=/{kind}/{host}/{port}", bare)
                if name.lower() == "location":
                    value = re.sub(r"^[^/]+//[^/]+", "", value)
                if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                    found.append((name, value))
            asking.close()
            self._answer(answer.status, found, data)

        do_POST = do_GET

        def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = Portal(server.server_port)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
