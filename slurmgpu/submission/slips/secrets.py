"""Secrets where others can read them: among the variables, or the words of a command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from slurmgpu.models.plan import Plan
from slurmgpu.submission.slips.command import Slip

__all__ = ["secrets_in_sight"]

_NAME = r"(?i)(?:\A|_)(?:API_?KEY|\w+_KEY|TOKEN|PASSWORD|PASSWD|SECRET|CREDENTIALS?)\Z"
# A tokenizer has tokens, a sort has a key: of these only values that look like a secret count.
_OPTION = r"(?i)--?(?:[\w-]*[-_])?(?:api[-_]?key|key|token|password|passwd|secret)\Z"
_SURE = r"(?i)passw(?:or)?d\Z|secret\Z"
# What the rule `secret-in-script` finds by itself.
_KNOWN = r"hf_|sk-|gh[pousr]_|AKIA|xox[abp]-|glpat-"


def secrets_in_sight(words: tuple[str, ...], plan: Plan) -> Iterator[Slip]:
    """What looks like a secret, with the way that keeps it one; guesses, all of them."""
    for name, value in plan.variables.items():
        if re.search(_NAME, name) and value and "$" not in value and not _found_by_check(value):
            yield Slip(
                f"variables.{name}: its value stands in the script and in the run directory, which others may read",
                f"name it under secrets: [{name}]; it then comes from your environment, or from "
                f"~/.config/slurmgpu/secrets/{name} (chmod 600)",
                sure=False,
            )
    for option, value in _options(words):
        if re.search(_OPTION, option) and (re.search(_SURE, option) or _looks_secret(value)):
            yield Slip(
                f"command: the value of {option} stands in the script, and `ps` shows it to all users of the node",
                "name it under secrets: [NAME], and let the program read it from the environment",
                sure=False,
            )


def _options(words: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for word, following in pairwise((*words, "")):
        option, equals, value = word.partition("=")
        if equals:
            yield option, value
        elif not following.startswith("-"):
            yield word, following


def _looks_secret(value: str) -> bool:
    return (
        len(value) >= 12
        and re.fullmatch(r"[\w+/=.-]+", value) is not None
        and re.search(r"\d", value) is not None
        and re.search(r"[A-Za-z]", value) is not None
        and not re.match(_KNOWN, value)
    )


def _found_by_check(value: str) -> bool:
    return len(value) >= 12 and bool(re.search(r"\d", value) and re.search(r"[A-Za-z]", value))
