"""Makes the file to learn from: texts, cut into paragraphs, a tenth of them held out.

Licences copy from one another, so a tenth of each text would mostly be known by heart from another one. Therefore
paragraphs that share eight words in a row are one group, and a group is either learned from or tested on.

    python corpus.py [PATTERN [FILE]]        # on a machine that has the texts; training needs FILE alone
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from pathlib import Path

PATTERN = "/usr/share/common-licenses/*"  # in every Debian and Ubuntu
HELD_OUT = 0.1  # of all characters
SHARED = 8  # words in a row


def read(pattern: str) -> dict[str, str]:
    """The texts that the pattern finds, by file; one that several names lead to is taken once."""
    path = Path(pattern).expanduser()
    named = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
    files = sorted({each.resolve() for each in named if each.is_file()})
    texts = {str(each): each.read_text(encoding="utf-8", errors="replace") for each in files}
    if not texts:
        raise SystemExit(
            f"no text is found by {pattern!r} on this machine: set config.text to a pattern of files with text, "
            "such as `--set 'train.config.text=/usr/share/doc/**/copyright'`, or write the file where there are "
            f"texts: `python {Path(__file__).resolve()} PATTERN FILE`"
        )
    return texts


def runs_of_words(paragraph: str) -> set[tuple[str, ...]]:
    """Every eight words in a row; all the words of a shorter paragraph."""
    words = re.findall(r"\w+", paragraph.lower())
    return {tuple(words[start : start + SHARED]) for start in range(max(1, len(words) - SHARED + 1))}


def group(paragraphs: list[str]) -> list[list[int]]:
    """The numbers of the paragraphs that are tied to each other by shared words, group by group."""
    leader = list(range(len(paragraphs)))

    def lead(number: int) -> int:
        while leader[number] != number:
            number = leader[number]
        return number

    first: dict[tuple[str, ...], int] = {}
    for number, paragraph in enumerate(paragraphs):
        for run in runs_of_words(paragraph):
            leader[lead(number)] = lead(first.setdefault(run, number))
    groups: dict[int, list[int]] = {}
    for number in range(len(paragraphs)):
        groups.setdefault(lead(number), []).append(number)
    return list(groups.values())


def split(texts: dict[str, str]) -> dict[str, str]:
    """The text to learn from and the text to test on, which share no eight words in a row."""
    paragraphs = [each for text in texts.values() for each in re.split(r"\n\s*\n", text.strip("\n"))]
    # By a hash: at random, but the same on every machine.
    groups = sorted(
        group(paragraphs), key=lambda numbers: hashlib.sha256(paragraphs[numbers[0]].encode()).digest()
    )
    room = HELD_OUT * sum(map(len, paragraphs))
    held_out: set[int] = set()
    for numbers in groups:
        size = sum(len(paragraphs[number]) for number in numbers)
        if size <= room:
            room -= size
            held_out.update(numbers)
    parts: dict[str, list[str]] = {"train": [], "test": []}
    for number, paragraph in enumerate(paragraphs):
        parts["test" if number in held_out else "train"].append(paragraph)
    return {name: "\n\n".join(part) + "\n" for name, part in parts.items()}


def write(pattern: str, path: Path) -> None:
    """Write both parts, and the characters of the first one: the vocabulary. Whole or not at all."""
    texts = read(pattern)
    parts = split(texts)
    characters = "".join(sorted(set(parts["train"])))
    document = {"pattern": pattern, "files": list(texts), "characters": characters, **parts}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(document), encoding="utf-8")
    temporary.replace(path)


def load(path: Path) -> dict[str, str]:
    """What ``write`` has written."""
    document: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return document


if __name__ == "__main__":
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).with_name("text.json")
    write(sys.argv[1] if len(sys.argv) > 1 else PATTERN, target)
    made = load(target)
    print(
        f"wrote {target}: {len(made['files'])} texts, {len(made['characters'])} different characters, "
        f"{len(made['train'])} to learn from, {len(made['test'])} to test on"
    )
