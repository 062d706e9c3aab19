"""Secrets where others can read them: among the variables, or the words of a command."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from slurmgpu.models.plan import Plan
from slurmgpu.scripts.secret_words import is_known_key, looks_random, names_secret, surely_names_secret
from slurmgpu.submission.slips.command import Slip

__all__ = ["secrets_in_sight"]

_SHOWN = "stands in the script, and `ps` shows it to all users of the node"
_NO_SECRET = {"true", "false", "yes", "no", "none", "null", "0", "1"}
_SAFE = "name it under secrets: [NAME], and let the program read it from the environment"


def secrets_in_sight(words: tuple[str, ...], plan: Plan) -> Iterator[Slip]:
    """What looks like a secret, with the way that keeps it one; guesses, all of them.

    What stands in the script as text that the rule `secret-in-script` finds is left to it.
    """
    for name, value in plan.variables.items():
        if _is_secret(name, value):
            yield Slip(
                f"variables.{name}: its value stands in the script and in the run directory, which others may read",
                f"name it under secrets: [{name}]; it then comes from your environment, or from "
                f"~/.config/slurmgpu/secrets/{name} (chmod 600)",
                sure=False,
            )
    for option, value in _options(words):
        if _is_secret(option, value):
            yield Slip(f"command: the value of {option} {_SHOWN}", _SAFE, sure=False)


def _is_secret(name: str, value: str) -> bool:
    if not value or "$" in value or is_known_key(value) or value.startswith(("<", "[")):
        return False
    if value.lower() in _NO_SECRET or (name[:1].isupper() and looks_random(value) and names_secret(name)):
        return False
    bare = name.lstrip("-") == "token" and len(value) >= 8
    return bare or surely_names_secret(name) or (names_secret(name) and looks_random(value))


def _options(words: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for word, following in pairwise((*words, "")):
        option, equals, value = word.partition("=")
        if equals:
            yield option, value
        elif word.startswith("-") and not following.startswith("-"):
            yield word, following
