"""The application: its routes, and what is said where one cannot answer."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slurmgpu.errors import SlurmGpuError
from slurmgpu.web.generator import Generator
from slurmgpu.web.guard import Behind, Guard
from slurmgpu.web.html import page, static
from slurmgpu.web.runs import Runs

__all__ = ["guarded"]


def guarded(generator: Generator, runs: Runs, token: str, behind: Behind | None = None) -> Guard:
    """All pages, behind the one who lets only those in who have the token."""
    routes = [*generator.routes, *runs.routes, Route("/static/{name}", static)]
    app = Starlette(
        routes=routes,
        exception_handlers={SlurmGpuError: _said, 404: _nowhere, 405: _nowhere, Exception: _broken},
    )
    return Guard(app, token, behind)


def _said(request: Request, error: Exception) -> Response:
    """One error, in the words of the command line; where a part of a page was asked for, as a part."""
    assert isinstance(error, SlurmGpuError)
    return _page(request, 422, error.message, error.hint or "")


def _nowhere(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return _page(request, status, "There is no such page.")


def _broken(request: Request, _: Exception) -> Response:
    message = "Something is wrong with this page; the terminal that slurmgpu web runs in says what."
    return _page(request, 500, message)


def _page(request: Request, status: int, message: str, hint: str = "") -> Response:
    name = "said_part.html" if "hx-request" in request.headers else "said.html"
    # Links are relative, so that a proxy may put all pages below a path of its own.
    root = "../" * (request.url.path.count("/") - 1)
    return page(name, status, message=message, hint=hint, page="", root=root)
