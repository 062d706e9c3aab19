"""Templates as a user meets them: what each is for, where the one in force comes from, copies to change."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

from slurmgpu.errors import InvalidInput, did_you_mean
from slurmgpu.files.data import SHIPPED, Templates, read_templates
from slurmgpu.files.trust import write_atomically

_COPIED = re.compile(r"\{# copied from slurmgpu (\S+), where its text was ([0-9a-f]{12}) #\}\n")


class Listed(NamedTuple):
    """A template, and where the one in force comes from."""

    name: str
    about: str
    layer: str
    """``shipped``, or the layer whose folder replaces it."""
    file: Path
    copied_from: str | None = None
    """The release that it was copied from, where the shipped one has changed since."""
    is_same: bool = False
    """True if it is a copy of the shipped one that nobody has changed."""


def listed_templates(templates: Templates) -> list[Listed]:
    """Return all templates in force by name, those that only a folder of the user's has among them."""
    shipped, listed = read_templates(), []
    for name in templates:
        found = templates.find(name)
        assert found is not None, name
        (source, file), original = found, shipped.get(name)
        if original is None:
            beside = [one for one in shipped if Path(one).name == Path(name).name]
            about = f"a shipped one is called {beside[0]}" if beside else "no shipped one has this name"
            about += ": used only where another template, or a launcher of yours, names it"
            listed.append(Listed(name, about, source.layer, file))
            continue
        about = original.split("\n", 1)[0].removeprefix("{# ").removesuffix(" #}")
        if source.layer == SHIPPED:
            listed.append(Listed(name, about, source.layer, file))
            continue
        text = templates[name]
        copied = _COPIED.match(text)
        is_same = _COPIED.sub("", text, count=1) == original
        outdated = copied[1] if copied and copied[2] != _digest(original) and not is_same else None
        listed.append(Listed(name, about, source.layer, file, outdated, is_same))
    return listed


def template_named(name: str, templates: Templates) -> str:
    """Return the whole name of a template; ``srun`` is enough for ``launcher/srun.sh.j2``."""
    short = {
        one: (one, one.removesuffix(".sh.j2"), Path(one).name.removesuffix(".sh.j2")) for one in templates
    }
    found = [one for one, names in short.items() if name in names or Path(one).name == name]
    if len(found) == 1:
        return found[0]
    words = [word for names in short.values() for word in dict.fromkeys(names[1:])]
    guess = did_you_mean(name, words)
    raise InvalidInput(
        f"template {name!r}: there is no such template; {guess}".rstrip("; "),
        hint="slurmgpu template list shows all",
    )


def copy_template(name: str, folder: Path, release: str, *, replace: bool) -> Path:
    """Copy a shipped template into a folder, under its name, with a first line that says from which release it is.

    InvalidInput where a file of that name is there and ``replace`` is not given, or it cannot be written.
    """
    text, target = read_templates()[name], folder / name
    if target.exists() and not replace:
        raise InvalidInput(
            f"{target} is there already", hint="--force replaces it by a new copy; what it says now is lost"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(
            target, f"{{# copied from slurmgpu {release}, where its text was {_digest(text)} #}}\n{text}"
        )
    except OSError as error:
        raise InvalidInput(f"{target} cannot be written: {error.strerror}") from None
    return target


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
