"""A script's overrides, judged as hydra would judge them; the script and its configuration are read and never run."""

from __future__ import annotations

import argparse
import ast
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from slurmgpu.files.trust import read_regular, text_of
from slurmgpu.runs.command_checks.command import Command, Slip, is_there, near_file, near_word
from slurmgpu.runs.command_checks.python import parse_python
from slurmgpu.runs.command_checks.python_source import OF_SHELL, is_started, parents_of

__all__ = ["hydra_slip"]


_FLAGS = "--help -h, --hydra-help, --version, --resolve, --run -r, --multirun -m, --shell-completion -sc"
_VALUES = (
    "--cfg -c, --package -p, --config-path -cp, --config-name -cn, --config-dir -cd, --experimental-rerun"
)
_OTHER_WORDS = re.compile(r"sys\.argv\s*(?:\[[^]]*\]\s*)?=[^=]|sys\.argv\.[a-z]|\bdel sys\.argv")
_OTHER_CONFIGS = re.compile(r"ConfigStore|hydra_zen|hydra_configs|SearchPath|searchpath|hydra_plugins")
_LEFT_OUT = frozenset(
    {"__pycache__", "multirun", "node_modules", "outputs", "runs", "site-packages", "wandb"}
)
_MOST_FILES = 3000


def hydra_slip(command: Command, folder: Path, script: str, text: str) -> Slip | None:
    """Return what hydra refuses among a script's arguments or lacks of its files; None where it may take them."""
    tree = parse_python(text.encode())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    mains = [(one, by) for one in functions for by in one.decorator_list if "hydra.main" in ast.unparse(by)]
    if len(mains) != 1 or re.search(r"argparse|sys\.argv", text):
        return None
    function, main = mains[0]
    started = is_started(function.name, tree, parents_of(tree))
    if not started or function.decorator_list[0] is not main or not isinstance(main, ast.Call) or main.args:
        return None
    settings = {one.arg: ast.literal_eval(one.value) for one in main.keywords}
    beside = (folder / script).parent
    project = _texts({folder, beside}, ".py")
    if settings.keys() - {"version_base", "config_path", "config_name"} or project is None:
        return None
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    for names in _FLAGS.split(", "):
        parser.add_argument(*names.split(), action="store_true")
    for names in _VALUES.split(", "):
        parser.add_argument(*names.split())
    parser.add_argument("--info", "-i", nargs="?", const="all")
    parser.add_argument("overrides", nargs="*")
    at = command.words.index(script) + 1
    before, given = command.words[:at], command.words[at:]
    try:
        options, unknown = parser.parse_known_args(list(given))
    except (argparse.ArgumentError, SystemExit):
        return None
    runs = {"resolve", "run", "multirun", "package", "config_path", "config_name", "config_dir", "overrides"}
    shows = any(value for name, value in vars(options).items() if name not in runs)
    if shows or any(map(_OTHER_WORDS.search, project.values())):
        return None

    root = Path(os.path.normpath(beside.absolute() / (settings.get("config_path") or "")))
    name = str(options.config_name or settings.get("config_name") or "")
    file = root / f"{name.removesuffix('.yaml')}.yaml"
    open_words = command.in_script and any(re.search(OF_SHELL, word) for word in given)
    overrides = [*options.overrides, *unknown]
    for word in unknown:
        if re.match(r"--?[A-Za-z][\w.-]*(?:=|\Z)", word):
            place = given.index(word) + 1
            option, equals, value = word.partition("=")
            if not equals and given[place:] and not re.match(r"-|.*=", given[place]):
                value, place = given[place], place + 1
            meant = f"{_full_name(option.strip('-').replace('-', '_'), _load(file))}={value or 'true'}"
            words = (*before, *given[: given.index(word)], meant, *given[place:])
            said = f"command: {script} refuses {option}: hydra takes NAME=VALUE"
            return Slip(said, f"write {meant}: {command.instead(*words)}", not command.blind)
    for word in overrides:
        if word and "=" not in word[1:] and not word.startswith(("~", "-")) and not open_words:
            joined = re.sub(r"\s*=\s*", "=", " ".join(given)).split()
            right = command.instead(*before, *joined) if len(joined) < len(given) else f"{word}=VALUE"
            said = f"command: {script} refuses {word!r}: hydra takes NAME=VALUE, without blanks"
            return Slip(said, f"write {right}", not command.blind)
    elsewhere = options.config_path or options.config_dir or any("searchpath" in word for word in given)
    own_path = re.fullmatch(r"[\w.][\w./-]*", str(settings.get("config_path") or "."))
    if command.blind or command.plan.steps or elsewhere or open_words or not own_path:
        return None
    if not re.fullmatch(r"[\w./-]+", name) or any(map(_OTHER_CONFIGS.search, project.values())):
        return None
    found = _lacking(root, file, [word for word in overrides if "=" in word])
    return Slip(f"command: {script}: {found[0]}", found[1]) if found else None


def _lacking(root: Path, file: Path, overrides: list[str]) -> tuple[str, str] | None:
    """Return which file or key a configuration does not have, and what to write instead."""
    if not root.is_dir():
        near = near_file(root, folders=True)
        hint = f"did you mean {near}?" if near else "make it, or mend config_path"
        return f"its configuration is to be in {root}, which is no folder", hint
    if not is_there(file):
        near = near_file(file)
        hint = f"did you mean {Path(near).stem}?" if near else "give another by --config-name"
        return None if is_there(file.with_suffix(".yml")) else (f"{file.name} is not in {root}", hint)
    texts, config = _texts({root}, ".yaml"), _load(file)
    if not isinstance(config, dict) or texts is None or "searchpath" in texts.get(file, "searchpath"):
        return None
    defaults = config.get("defaults") or []
    groups = {group: option for one in defaults if isinstance(one, dict) for group, option in one.items()}
    plain = all(isinstance(one, dict) or one == "_self_" for one in defaults)
    plain = plain and all(re.fullmatch(r"[\w-]+", str(group)) for group in groups)
    of_groups = [text for one, text in texts.items() if one.parent != root]
    plain = plain and not any(re.search(r"(?m)@\s*package|^defaults:", text) for text in of_groups)
    plain = plain and "@" not in texts[file]
    keys = config | {group: _load(root / group / f"{option}.yaml") for group, option in groups.items()}
    for word in overrides:
        key, _, value = word.partition("=")
        add = f"to add it to the configuration, write +{word}"
        group = key.lstrip("+").partition("@")[0]
        first = re.split(r"[/.]", group)[0]
        if first == "hydra" or not re.fullmatch(r"[A-Za-z_][\w./-]*", group):
            continue
        if (root / group).is_dir() and group not in config:
            option = root / group / value.removesuffix(".yaml")
            named = re.fullmatch(r"(?!null\Z|true\Z|false\Z|None\Z)[A-Za-z_][\w./-]*", value)
            if named and not any(is_there(Path(f"{option}{end}")) for end in ("", ".yaml", ".yml")):
                near = near_file(Path(f"{option}.yaml"))
                hint = f"did you mean {key}={Path(near).stem}?" if near else "give one that is there"
                return f"{word}: there is no {option.name}.yaml in {option.parent}", hint
        elif plain and key == group and "/" not in key and first not in keys and not is_there(root / first):
            full = _full_name(key, keys)
            near = full if full != key else near_word(key, map(str, keys))
            if "." in key and (above := near_word(first, map(str, keys))):
                near = above + key.removeprefix(first)
            hint = f"did you mean {near}={value}?" if near else add
            return f"{word}: hydra could not override {key}, which {file} does not have", hint
        elif plain and key == group and "/" not in key:
            parts, inner = key.split("."), keys
            while parts and isinstance(inner, dict) and parts[0] in inner:
                inner = inner[parts.pop(0)]
            if parts and isinstance(inner, dict) and inner:
                above = key.removesuffix(".".join(parts))
                near = near_word(parts[0], map(str, inner))
                hint = f"did you mean {above}{near}={value}?" if near else add
                return f"{word}: hydra could not override {key}, which its configuration does not have", hint
    return None


def _texts(folders: Iterable[Path], suffix: str) -> dict[Path, str] | None:
    """Return the files with a suffix; None where the folders have too much to be looked through."""
    found: dict[Path, str] = {}
    seen = 0
    for place, names, files in (one for folder in folders for one in os.walk(folder, followlinks=True)):
        names[:] = [name for name in names if name not in _LEFT_OUT and not name.startswith(".")]
        seen += len(files) + len(names)
        if seen > _MOST_FILES:
            return None
        for path in (Path(place, name) for name in files if name.endswith(suffix)):
            found[path] = text_of(path)
    return found


def _load(path: Path) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(read_regular(path).decode("utf-8"))
    except (OSError, ValueError, YAMLError):
        return None


def _full_name(key: str, config: Any) -> str:
    """Return a key with those above it where exactly one key within others has its name, else the key itself."""
    parts, found = [("", config)], []
    for above, part in parts:
        inner = part.items() if isinstance(part, dict) else ()
        parts += [(f"{above}{name}.", value) for name, value in inner]
        found += [f"{above}{name}" for name, _ in inner if name == key]
    return found[0] if len(found) == 1 else key
