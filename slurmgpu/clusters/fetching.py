"""Profiles that a centre publishes at an address: fetched on request, kept, and fetched again by their tag."""

from __future__ import annotations

import datetime
import hashlib
import json
import multiprocessing
import time
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPMessage
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import IO, NamedTuple

from slurmgpu.diagnosis.webhooks import address_of
from slurmgpu.errors import InvalidInput
from slurmgpu.files.trust import write_atomically

__all__ = ["Fetched", "Kept", "download", "keep", "kept"]

TIMEOUT, LONGEST = 30.0, 120.0
"""Seconds for each of connecting and reading once, and for the whole answer."""
MOST_BYTES = 1024 * 1024


class Fetched(NamedTuple):
    """The text at an address."""

    text: str
    tag: str | None
    """The server's word for this version (ETag), if it has one."""


class Kept(NamedTuple):
    """A profile that was fetched before."""

    address: str
    tag: str | None
    sha256: str
    date: str
    """The day on which it was fetched."""

    def is_of(self, text: str) -> bool:
        """Return True if the text is still the one that was fetched."""
        return self.sha256 == _sum(text)


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        try:
            if address_of(_checked(newurl)).is_here and not address_of(req.full_url).is_here:
                raise InvalidInput(
                    f"{req.full_url}: leads to this machine itself ({newurl}), where a centre publishes nothing",
                    hint="give the address that is meant",
                )
        except InvalidInput:
            fp.close()
            raise
        fp.close()  # its body, which may have no end, is not read
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _checked(address: str) -> str:
    try:
        read = address_of(address)
    except ValueError as error:
        raise InvalidInput(
            f"address {address!r}: {error}",
            hint="give the address of a profile, https://HOST/PATH/NAME.yaml; of this machine http:// will do",
        ) from None
    if read.login is not None:
        raise InvalidInput(
            f"address of {read.host}: it has a user name in it, and would be kept in a file",
            hint="download the profile by hand, and give its path to --cluster",
        )
    return read.url


def download(address: str, tag: str | None = None) -> Fetched | None:
    """Fetch a text over HTTPS (HTTP from this machine itself); None: it is still the one with this tag.

    Raises:
        InvalidInput: the address is none, the server did not give a text of at most 1 MiB, or could not be trusted.
    """
    url = _checked(address)
    headers = {"User-Agent": "slurmgpu", "Accept": "application/yaml, text/*, */*"}
    request = urllib.request.Request(url, headers={**headers, **({"If-None-Match": tag} if tag else {})})
    try:
        with ThreadPool(1) as pool:  # each header in time does not end in time
            data, found = pool.apply_async(_answered, [request]).get(LONGEST + TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 304:
            return None
        raise InvalidInput(
            f"{address}: the server says {error.code} {error.reason}", hint="look at the address in a browser"
        ) from None
    except (OSError, HTTPException, multiprocessing.TimeoutError) as error:
        why = getattr(error, "reason", None) or str(error) or f"no answer within {LONGEST + TIMEOUT:.0f} s"
        raise InvalidInput(
            f"{address}: cannot be fetched: {why}",
            hint="does this machine reach the internet? Else fetch it elsewhere, and give the file to --cluster",
        ) from None
    if len(data) > MOST_BYTES:
        raise InvalidInput(
            f"{address}: is larger than 1 MiB, which no profile is", hint="give a profile's own address"
        )
    try:
        return Fetched(data.decode("utf-8"), found)
    except UnicodeDecodeError:
        raise InvalidInput(
            f"{address}: is no text in UTF-8", hint="give the address of a profile in YAML"
        ) from None


def _answered(request: urllib.request.Request) -> tuple[bytes, str | None]:
    """Return a whole answer, up to one byte too many, and its tag; raise HTTPException if it ends early or drips."""
    with urllib.request.build_opener(_Redirects()).open(request, timeout=TIMEOUT) as answer:
        pieces, left, until = [], MOST_BYTES + 1, time.monotonic() + LONGEST
        while left and (piece := answer.read1(left)):
            pieces.append(piece)
            left -= len(piece)
            if time.monotonic() > until:
                raise HTTPException(f"not all of it has come within {LONGEST:.0f} s")
        if left and answer.length:
            raise HTTPException("the answer ends before its end")
        return b"".join(pieces), answer.headers.get("ETag")


def _memory(path: Path) -> Path:
    return path.parent / ".fetched" / f"{path.stem}.json"


def kept(path: Path) -> Kept | None:
    """Return where a profile was fetched from; None: it was not."""
    try:
        data = json.loads(_memory(path).read_text(encoding="utf-8"))
        return Kept(str(data["address"]), data.get("tag"), str(data["sha256"]), str(data["date"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def keep(path: Path, address: str, fetched: Fetched, today: datetime.date) -> None:
    """Write a fetched profile, as it came, and its origin; raise InvalidInput when it cannot be written."""
    record = {"address": address, "tag": fetched.tag, "sha256": _sum(fetched.text), "date": str(today)}
    try:
        _memory(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, fetched.text)
        write_atomically(_memory(path), json.dumps(record, indent=2) + "\n")
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be written: {error.strerror}", hint="free some space, or correct its rights"
        ) from None


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
