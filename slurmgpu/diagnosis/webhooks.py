"""Webhooks: which address may be used, what each service takes, and one request. No message here tells the address."""

from __future__ import annotations

import base64
import ipaddress
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional
from urllib.parse import unquote, urlsplit, urlunsplit

__all__ = ["FORMS", "SECONDS", "Address", "Message", "Unsent", "address_of", "form_of", "send"]

SECONDS = 4.0
"""For each of connecting, writing and reading; at a script's end, for all of it."""
_LONGEST = 2048  # characters of an address
_MOST = 1900  # characters of a text: Discord takes 2000
_MOST_BYTES = 3000  # of a text for ntfy, which takes 4096, and 8192 of JSON, where quotes are two bytes each
# By the end of the host's name.
_HOSTS = (
    ("slack.com", "slack"),
    ("slack-gov.com", "slack"),
    ("discord.com", "discord"),
    ("discordapp.com", "discord"),
    ("webhook.office.com", "teams"),
    ("logic.azure.com", "teams"),
    ("api.powerplatform.com", "teams"),
    ("ntfy.sh", "ntfy"),
)


class Unsent(Exception):
    """Why nothing was sent, in words that may stand in a log."""


class Message(NamedTuple):
    """A message: lines of plain text, without control characters, each of bounded length."""

    event: str
    """completed, failed, stopped or requeued."""
    headline: str
    lines: tuple[str, ...]
    data: Mapping[str, object]
    """The same for a program."""

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join((self.headline, *self.lines))[:_MOST]


class Address(NamedTuple):
    """A webhook's address; a secret, all of it."""

    url: str
    host: str
    login: Optional[str] = None
    """USER:PASSWORD, where the address has them."""
    is_here: bool = False
    """True if it is on this machine."""


def address_of(text: str) -> Address:
    """Read an address; ValueError, which does not repeat it, for one that nothing is sent to."""
    text = text.strip()
    if len(text) > _LONGEST or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("it has a blank, a line break or a letter that no address has, or is too long")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError("it is not an address of the form https://HOST/PATH") from None
    here = _is_loopback(host)
    if not host or parts.scheme not in ("https", "http"):
        raise ValueError("it is not an address of the form https://HOST/PATH")
    if parts.scheme == "http" and not here:
        raise ValueError("it begins with http://, and anybody on the way could read it; it must be https://")
    netloc = f"[{host}]" if ":" in host else host
    url = urlunsplit(
        (parts.scheme, netloc if port is None else f"{netloc}:{port}", parts.path or "/", parts.query, "")
    )
    login = None
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return Address(url, host.lower(), login, here)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def form_of(host: str) -> str:
    """Return what the service with this host takes; a server of one's own is told by a name such as ntfy.example.org."""
    for end, form in _HOSTS:
        if host == end or host.endswith(f".{end}"):
            return form
    return "ntfy" if host.startswith("ntfy.") else "json"


class _Ready(NamedTuple):
    url: str
    body: Mapping[str, object]


def _quiet(text: str) -> str:
    """Without @everyone, @here and the like: a space of no width behind each @, as chats themselves advise."""
    return text.replace("@", "@\u200b")


# No markup, no names that become mentions, and nobody fetches what a job has printed the address of.
_SLACK = {"mrkdwn": False, "link_names": False, "unfurl_links": False, "unfurl_media": False}


def _slack(address: Address, message: Message) -> _Ready:
    # https://api.slack.com/reference/surfaces/formatting#escaping: <!channel> and <@U123> are nothing but text then.
    text = _quiet(message.text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _Ready(address.url, {"text": text, **_SLACK})


def _discord(address: Address, message: Message) -> _Ready:
    # In a code block nothing is a mention, a link or markup.
    text = "```\n" + _quiet(message.text).replace("`", "'")[:_MOST] + "\n```"
    return _Ready(address.url, {"username": "slurmgpu", "content": text, "allowed_mentions": {"parse": []}})


def _teams(address: Address, message: Message) -> _Ready:
    # Workflows and connectors alike take an Adaptive Card; a TextRun has no markup.
    body: list[dict[str, Any]] = []
    for number, line in enumerate(message.text.split("\n")):
        run = {"type": "TextRun", "text": _quiet(line), "weight": "default" if number else "bolder"}
        body.append({"type": "RichTextBlock", "inlines": [run]})
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.2",
        "body": body,
    }
    attachment = {
        "contentType": "application/vnd.microsoft.card.adaptive",
        "contentUrl": None,
        "content": card,
    }
    return _Ready(address.url, {"type": "message", "attachments": [attachment]})


def _ntfy(address: Address, message: Message) -> _Ready:
    # As JSON, to the folder that the topic is in: headers would have no letters beyond ASCII. https://docs.ntfy.sh/publish/
    parts = urlsplit(address.url)
    folder, _, topic = parts.path.rstrip("/").rpartition("/")
    if not topic:
        raise Unsent("the address has no topic behind its host, as in https://ntfy.sh/TOPIC")
    failed = message.event == "failed"
    body = {
        "topic": unquote(topic),
        "title": message.headline,
        "message": _within("\n".join(message.lines) or message.headline, _MOST_BYTES),
        "priority": 4 if failed else 3,
        "tags": ["rotating_light" if failed else "white_check_mark"]
        if message.event in ("failed", "completed")
        else [],
    }
    return _Ready(urlunsplit((parts.scheme, parts.netloc, f"{folder}/", parts.query, "")), body)


def _within(text: str, most: int) -> str:
    """As much of a text as fits into so many bytes."""
    return text.encode("utf-8", "replace")[:most].decode("utf-8", "ignore")


def _json(address: Address, message: Message) -> _Ready:
    return _Ready(address.url, {**message.data, "text": message.text})


FORMS: Mapping[str, Callable[[Address, Message], _Ready]] = {
    "slack": _slack,
    "discord": _discord,
    "teams": _teams,
    "ntfy": _ntfy,
    "json": _json,
}
"""Address and JSON for each service."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A message is for the host that was named, and a POST that is sent elsewhere would lose it anyway."""

    def redirect_request(self, *_: Any) -> None:
        return None


def send(address: Address, message: Message, form: Optional[str] = None) -> None:
    """Send a message, and ignore the answer but for its status; Unsent where it did not arrive.

    The environment's proxies are used, certificates are checked and redirects are not followed.
    """
    ready = FORMS[form or form_of(address.host)](address, message)
    headers = {"Content-Type": "application/json", "User-Agent": "slurmgpu"}
    if address.login is not None:
        headers["Authorization"] = "Basic " + base64.b64encode(address.login.encode()).decode()
    handlers: list[urllib.request.BaseHandler] = [
        _NoRedirect(),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
    ]
    if address.is_here:
        handlers.append(urllib.request.ProxyHandler({}))
    try:
        # Escapes of letters beyond ASCII would take up to four times as much of what a service allows.
        body = json.dumps(ready.body, ensure_ascii=False).encode("utf-8", "replace")
        request = urllib.request.Request(ready.url, body, headers)
        with urllib.request.build_opener(*handlers).open(request, timeout=SECONDS):
            pass
    except Exception as error:
        raise Unsent(_why(error)) from None


def _why(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        with error:
            elsewhere = ", and sends elsewhere, which is not followed" if 300 <= error.code < 400 else ""
            return f"the server answered {error.code}{elsewhere}"
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, BaseException):
        error = error.reason
    if isinstance(error, TimeoutError):
        return f"no answer within {SECONDS:.0f} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return "the server's certificate is not valid, or not known here"
    if isinstance(error, OSError) and str(error).startswith("Tunnel connection failed"):
        return "the proxy refused"
    known = error.strerror if isinstance(error, OSError) and error.errno is not None else None
    return known or type(error).__name__
