"""Answers of the server: pages, files, forms; and questions that count once, so that nothing is done twice."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping
from functools import cache
from typing import Generic, TypeVar
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from slurmgpu.errors import InvalidInput
from slurmgpu.web.drawing import STATIC, TYPES, draw

__all__ = ["Questions", "form_of", "page", "query_of", "static"]

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
