"""Secrets that a program printed, kept out of what is passed on: the first cause's file, the status, messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from .facts import Cause

__all__ = ["hide", "secrets_here", "without_secrets"]

_INSTEAD = "***"
_NAMES = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|(?:ACCESS|PRIVATE|SECRET)_KEY|WEBHOOK)\Z",
    re.I,
)
_SHORTEST = 8  # characters of a value that is looked for: shorter ones are parts of ordinary words
# What is a secret by its form, wherever it comes from.
_FORMS = (
    re.compile(r"(?<=://)[^/\s@'\"]{1,256}(?=@)"),  # https://USER:PASSWORD@HOST
    re.compile(
        r"(?<=[?&])((?:access_?token|token|api_?key|key|sig|signature|secret|password|x-amz-[a-z-]+)=)[^&\s'\"]+",
        re.I,
    ),
    re.compile(r"\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{16,}", re.I),
    re.compile(r"(hooks\.slack\.com/|discord(?:app)?\.com/api/webhooks/)[^\s'\"]+"),
    re.compile(
        r"\b()(?:hf_[A-Za-z0-9]{20,}|sk-[\w-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}"
        r"|xox[abeprs]-[\w-]{10,}|A[KS]IA[0-9A-Z]{16}\b|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+)"
    ),
)
# The same, of which the end is missing: a long line has been cut there.
_CUT = r"(?= ?\.\.\.)"
_CUT_FORMS = (
    re.compile(r"(?<=://)[^/\s@'\"]{1,256}?:(?!\d{1,5} ?\.\.\.)[^/\s@'\"]{0,256}?" + _CUT),
    re.compile(
        r"\b()(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|A[KS]IA|eyJ)[\w-]{8,}?(?:\.[\w-]+)*?"
        + _CUT
    ),
)


def secrets_here(environment: Mapping[str, str], named: Iterable[str]) -> list[str]:
    """Return the values of the secrets that a job names, and of variables that are called like secrets; the longest first."""
    names = {*named, *(name for name in environment if _NAMES.search(name))}
    values = {line.strip() for name in names for line in environment.get(name, "").splitlines()}
    # The path of a file with a secret in it is none.
    return sorted((one for one in values if len(one) >= _SHORTEST and one[0] != "/"), key=len, reverse=True)


def without_secrets(cause: Cause, values: Iterable[str] = ()) -> Cause:
    """Return the same cause with asterisks for these values, and for what has a secret's form."""
    secrets = tuple(values)
    evidence = tuple(hide(line, secrets) for line in cause.evidence)
    return cause._replace(what=hide(cause.what, secrets), fix=hide(cause.fix, secrets), evidence=evidence)


def hide(text: str, secrets: Sequence[str]) -> str:
    """Return the same text with asterisks for these values, and for what has a secret's form."""
    for value in secrets:
        text = text.replace(value, _INSTEAD)
    for pattern in _FORMS:
        text = pattern.sub(lambda match: (match[1] if match.re.groups else "") + _INSTEAD, text)
    if "..." in text:
        for value in secrets:
            text = _without_parts(text, value)
        for pattern in _CUT_FORMS:
            text = pattern.sub(_INSTEAD, text)
    return text


def _without_parts(text: str, value: str) -> str:
    """Without the beginning of a secret before a cut, and its end behind one."""
    pieces = re.split(r"( ?\.\.\. ?)", text)
    for at in range(0, len(pieces) - 2, 2):
        before, after = pieces[at], pieces[at + 2]
        lengths = range(len(value) - 1, _SHORTEST - 1, -1)
        kept = next((one for one in lengths if before.endswith(value[:one])), 0)
        if kept:
            pieces[at] = before[:-kept] + _INSTEAD
        left = next((one for one in lengths if after.startswith(value[-one:])), 0)
        if left:
            pieces[at + 2] = _INSTEAD + after[left:]
    return "".join(pieces)
