"""Requests that the server lets in (with its token, from a page of its own, by a name of this machine), and its answers."""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import cache
from html import escape
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import parse_qs, parse_qsl, quote, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from slurmgpu.errors import InvalidInput
from slurmgpu.web.drawing import STATIC, TYPES, draw

__all__ = ["LARGEST", "Behind", "Guard", "Questions", "form_of", "page", "query_of", "static"]


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

LARGEST = 1 << 20
"""Bytes of a request's body: a form, or a batch script."""
_PATIENCE = 30.0
"""Seconds within which a body has to be there."""
# A page of somebody else's may let its own name lead to this machine; it has no other name than these then.
_HOST = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])(?::\d{1,5})?", re.ASCII)
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_NO_TOKEN = (
    "This address needs the token of this server: open the whole address that `slurmgpu web` has printed.\n"
)
_WELCOME = """<!doctype html><html lang="en"><meta charset="utf-8"><title>slurmgpu</title><link rel="icon" href="data:,">
<meta http-equiv="refresh" content="0; url={url}"><p><a href="{url}">Go on to slurmgpu</a></p></html>"""


class Behind(NamedTuple):
    """The one reverse proxy that the server is behind, such as Open OnDemand's."""

    origin: str
    """Its address in browsers: https://ondemand.example.edu."""
    prefix: str
    """The path of this server there, without a slash at its end."""
    hosts: frozenset[str]
    """Its names for this server, or itself, in ``Host``."""
    user: str
    """The server's user: the only one whose requests it may pass on, where it says whose they are."""

    @classmethod
    def of(cls, url: str, listening: str, user: str) -> Behind:
        """By the address that browsers see, and HOST:PORT that the server listens on; InvalidInput for what is none."""
        example = "give all of it, such as --behind https://ondemand.example.edu/node/HOST/PORT"
        try:
            parsed = urlsplit(url)
            port = parsed.port
        except ValueError as error:
            raise InvalidInput(f"--behind {url}: {error}", hint=example) from None
        path = parsed.path.rstrip("/")
        if (
            parsed.scheme not in ("http", "https")
            or not parsed.hostname
            or parsed.username is not None
            or not re.fullmatch(r"(?:/[A-Za-z0-9._~-]+)+", path, re.ASCII)
            or parsed.query
            or parsed.fragment
        ):
            raise InvalidInput(
                f"--behind {url}: is not the address of a folder on a web server", hint=example
            )
        name = f"[{parsed.hostname}]" if ":" in parsed.hostname else parsed.hostname
        usual = {"http": 80, "https": 443}[parsed.scheme]
        # A browser leaves the usual port out; a proxy may not.
        host = name if port in (None, usual) else f"{name}:{port}"
        here = {listening.lower(), listening.replace("127.0.0.1:", "localhost:")}
        hosts = frozenset({host, f"{name}:{port or usual}", *here})
        return cls(f"{parsed.scheme}://{host}", path, hosts, user)


class Guard:
    """An application in front of another: what is refused here never reaches the other.

    The token comes in the address, and is exchanged for a cookie that no other site's page can send. Browsers send a cookie
    to every port of a host, where other users' servers may listen: so its value is the session's and not the token, and it
    goes only to the folder in which the pages are, whose name nobody else knows. ``last`` is when somebody who has it has
    asked for something, on the clock of ``time.monotonic``. Without ``behind``, this machine alone is answered.
    """

    def __init__(self, app: App, token: str, behind: Behind | None = None) -> None:
        self.app = app
        self.token = token
        self.behind = behind
        self.prefix = behind.prefix if behind is not None else f"/{secrets.token_urlsafe(16)}"
        self.cookie = f"slurmgpu-{secrets.token_hex(4)}"
        self.session = secrets.token_urlsafe(32)
        self.last = time.monotonic()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return  # nothing here uses another protocol
        send = _with_headers(send)
        headers = scope["headers"]
        status, why = self._refused(scope)
        if status:
            await _answer(send, status, why)
            return
        if scope["path"] == self.prefix and scope["method"] != "POST":
            # Links are relative, and would lead out of a folder without its slash.
            query = scope["query_string"].decode("latin-1")
            to = f"{self.prefix}/" + (f"?{query}" if query else "")
            await _answer(send, 307, "", {"location": to})
            return
        within = scope["path"].startswith(f"{self.prefix}/")
        if within:
            scope = {**scope, "path": scope["path"][len(self.prefix) :], "raw_path": None}
        within |= self.behind is not None  # some proxies take their own part of the path away
        if scope["method"] in ("GET", "HEAD") and self._has_token_in_address(scope):
            self.last = time.monotonic()
            await self._welcome(scope, send)
            return
        if self.behind is not None and scope["method"] == "POST" and scope["path"] == "/":
            await self._let_in(scope, receive, send)  # the button of the proxy's page, maybe once more
            return
        if not (within and self._has_cookie(headers)):
            await _answer(send, 403, _NO_TOKEN)
            return
        self.last = time.monotonic()
        if scope["method"] == "POST":
            body, status = await _body(headers, receive)
            if status:
                await _answer(send, status, f"A form may have {LARGEST >> 20} MiB.\n")
                return
            receive = _replayed(body)
        await self.app(scope, receive, send)

    def _refused(self, scope: MutableMapping[str, Any]) -> tuple[int, str]:
        """Return a status and why, for what is refused whoever asks; 0: nothing is wrong."""
        headers, method, behind = scope["headers"], scope["method"], self.behind
        if method not in ("GET", "HEAD", "POST"):
            return 405, "This server answers GET and POST.\n"
        hosts, origins = _all(headers, b"host"), _all(headers, b"origin")
        if behind is not None:
            if len(hosts) != 1 or hosts[0].lower() not in behind.hosts:
                return 403, f"This server is asked through {behind.origin}{behind.prefix}/.\n"
            if any(one != behind.user for one in _all(headers, b"x-forwarded-user")):
                return 403, "This server is another user's.\n"
        elif len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
            return 403, "This server is asked by a name of this machine, such as localhost.\n"
        own = behind.origin if behind is not None else f"http://{hosts[0]}"
        foreign = [one for one in origins if one != own]
        crossing = [one for one in _all(headers, b"sec-fetch-site") if one not in ("same-origin", "none")]
        if foreign or (crossing and not self._has_token_in_address(scope)):
            return 403, "This was asked by a page of another site.\n"
        if method == "POST" and len(origins) != 1:
            return 403, "A form is sent by a page of this server, and its sender says so.\n"
        return 0, ""

    def _has_token_in_address(self, scope: MutableMapping[str, Any]) -> bool:
        return self._is_token(scope["query_string"])

    def _is_token(self, query: bytes) -> bool:
        given = parse_qs(query.decode("latin-1")).get("token", [])
        return len(given) == 1 and hmac.compare_digest(given[0].encode(), self.token.encode())

    def _has_cookie(self, headers: list[tuple[bytes, bytes]]) -> bool:
        pairs = (pair.strip().partition("=") for line in _all(headers, b"cookie") for pair in line.split(";"))
        given = [value for name, _, value in pairs if name == self.cookie]
        return len(given) == 1 and hmac.compare_digest(given[0].encode(), self.session.encode())

    async def _let_in(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """The token as a proxy's own page sends it, in a form: it stays in no record of addresses."""
        body, status = await _body(scope["headers"], receive)
        if not status and self._is_token(body):
            self.last = time.monotonic()
            await self._welcome(scope, send)
            return
        await _answer(send, status or 403, _NO_TOKEN)

    async def _welcome(self, scope: MutableMapping[str, Any], send: Send) -> None:
        """Hand out the session's cookie, and lead to the same page without the token: it stays in no history.

        A page, and not a redirect: browsers send such a cookie only where one of our own pages leads.
        """
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        query.pop("token", None)
        # One slash: two would name another machine; browsers leave out tabs and line breaks, so they may not stay between.
        path = f"{self.prefix}/" + quote(scope["path"].lstrip("/\\"))
        url = escape(path + (f"?{urlencode(query, doseq=True)}" if query else ""))
        cookie = f"{self.cookie}={self.session}; HttpOnly; SameSite=Strict; Path={self.prefix}/"
        if self.behind is not None and self.behind.origin.startswith("https:"):
            cookie += "; Secure"
        page = _WELCOME.format(url=url)
        await _answer(send, 200, page, {"content-type": "text/html; charset=utf-8", "set-cookie": cookie})


def _all(headers: list[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key.lower() == name]


async def _answer(send: Send, status: int, text: str, headers: dict[str, str] | None = None) -> None:
    named = {"content-type": "text/plain; charset=utf-8", **(headers or {})}
    body = text.encode()
    named["content-length"] = str(len(body))
    pairs = [(key.encode(), value.encode()) for key, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            named = {key.lower() for key, _ in message["headers"]}
            own = {**_HEADERS, "cache-control": "no-store"}
            more = [(key.encode(), value.encode()) for key, value in own.items() if key.encode() not in named]
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return sending


async def _body(headers: list[tuple[bytes, bytes]], receive: Receive) -> tuple[bytes, int]:
    """Return the body, or the status with which it is refused."""
    said = _all(headers, b"content-length")
    if said and (not said[0].isdecimal() or int(said[0]) > LARGEST):
        return b"", 413
    pieces: list[bytes] = []
    size = 0
    until = time.monotonic() + _PATIENCE
    try:
        while True:
            message = await asyncio.wait_for(receive(), until - time.monotonic())
            if message["type"] != "http.request":
                return b"", 400
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            if size > LARGEST:
                return b"", 413
            if not message.get("more_body"):
                return b"".join(pieces), 0
    except asyncio.TimeoutError:
        return b"", 408


def _replayed(body: bytes) -> Receive:
    told = False

    async def receive() -> Message:
        nonlocal told
        if told:
            return {"type": "http.disconnect"}
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


_MOST_FIELDS = 100


def page(name: str, status: int = 200, **values: object) -> HTMLResponse:
    """Return a page, or a part of one, by its template."""
    return HTMLResponse(draw(name, **values), status_code=status)


@cache
def _files() -> Mapping[str, tuple[bytes, str]]:
    """Return what there is, by name: nothing that a browser sends becomes a path."""
    found = sorted(STATIC.iterdir())
    return {one.name: (one.read_bytes(), TYPES[one.suffix]) for one in found if one.suffix in TYPES}


def static(request: Request) -> Response:
    """Return a script, a style sheet or a licence."""
    found = _files().get(request.path_params["name"])
    if found is None:
        return PlainTextResponse("There is no such file.\n", 404)
    return Response(found[0], media_type=found[1], headers={"cache-control": "private, max-age=300"})


def query_of(request: Request) -> dict[str, str]:
    """Return the fields in an address."""
    return _fields(request.url.query)


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form that was sent; InvalidInput where they are not UTF-8."""
    body = await request.body()
    try:
        return _fields(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise InvalidInput("the form is not UTF-8") from None


def _fields(text: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict")
    except (ValueError, UnicodeError) as error:
        raise InvalidInput(f"the form cannot be read: {error}") from None
    return dict(pairs)


T = TypeVar("T")

_MOST = 256
_GOOD_FOR = 900.0
"""Seconds within which a person answers."""


class Questions(Generic[T]):
    """Open questions, by the key that their forms hold."""

    def __init__(self) -> None:
        self._asked: dict[str, tuple[T, float]] = {}
        self._lock = threading.Lock()

    def ask(self, what: T) -> str:
        """Return the key for a form that asks this."""
        key = secrets.token_urlsafe(16)
        with self._lock:
            while len(self._asked) >= _MOST:
                del self._asked[next(iter(self._asked))]
            self._asked[key] = (what, time.monotonic())
        return key

    def answered(self, key: str) -> T | None:
        """Return what was asked with this key; None where nothing was, long ago, or where it was answered before."""
        with self._lock:
            what, at = self._asked.pop(key, (None, 0.0))
        return what if time.monotonic() - at < _GOOD_FOR else None
