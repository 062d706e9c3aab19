"""What a secret is called, and what one looks like: guesses, which warn and never refuse."""

from __future__ import annotations

import re

__all__ = ["in_address", "is_known_key", "looks_random", "names_secret", "surely_names_secret"]

_SURE = (
    r"(?:api|access|secret|private|auth|encryption|signing|wandb|account)[-_]?key"
    r"|(?:auth|access|api|bearer|hf|github|gitlab|wandb|hub|session|refresh|secret)[-_]?token"
    r"|\w*(?:password|passwd|passphrase)|credentials?|\w*secret|pat"
)
# A tokenizer has tokens, a sort has a key: with these the value decides.
_MAYBE = r"key|token"
_KNOWN_KEYS = (
    r"(?<![\w-])(?:hf_[A-Za-z0-9]{20}|sk-[A-Za-z0-9_-]{20}|gh[pousr]_[A-Za-z0-9]{20}|github_pat_\w{20}"
    r"|AKIA[A-Z0-9]{16}|xox[abp]-[A-Za-z0-9-]{10}|glpat-[A-Za-z0-9_-]{15})"
)
_IN_ADDRESS = r"\b[a-z][a-z0-9+.-]*://[^/\s:@'\"]+:(?P<password>[^/\s@'\"$`<{]+)@"


def surely_names_secret(name: str) -> bool:
    """Whether what is called so is a secret whatever its value: `DB_PASSWORD`, `--api-key`."""
    return re.search(rf"(?i)(?:\A|[-_])(?:{_SURE})\Z", name) is not None


def names_secret(name: str) -> bool:
    """Whether what is called so may be a secret: as above, or any key or token."""
    return surely_names_secret(name) or re.search(rf"(?i)(?:\A|[-_])(?:{_MAYBE})\Z", name) is not None


def looks_random(value: str) -> bool:
    """Whether a value looks drawn by chance: long, in one word, with letters and digits, and no path."""
    return (
        len(value) >= 12
        and re.fullmatch(r"[\w+/=.:-]+", value) is not None
        and re.search(r"\d", value) is not None
        and re.search(r"[A-Za-z]", value) is not None
    )


def is_known_key(text: str) -> bool:
    """Whether a key of a known service stands in a text, which such a key tells by how it begins."""
    return re.search(_KNOWN_KEYS, text) is not None


def in_address(text: str) -> str | None:
    """The password of an address `scheme://user:password@host` in a text, if there is one (RFC 3986, 3.2.1)."""
    match = re.search(_IN_ADDRESS, text)
    return match["password"] if match else None
