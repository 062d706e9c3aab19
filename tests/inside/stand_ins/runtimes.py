"""Container runtimes that know the words that their documentation lists, refuse every other, and run the command.

``python runtimes.py NAME WORD...`` is the program of that name. Pyxis, EDF, uenv and Slurm's own containers are options
of srun: there, the program takes its options away, hands the rest to the real srun, and enters in each task. What a
real one keeps out of the image is kept from the command too: variables that are not passed, work folders that nobody
mounted. What was asked is printed, one line of JSON for each entry. The documentation:

- pyxis: https://github.com/NVIDIA/pyxis/wiki/Usage, and the options' table in args.c
- edf: https://docs.cscs.ch/software/container-engine/run and https://docs.cscs.ch/software/container-engine/edf
- uenv: https://docs.cscs.ch/software/uenv/using
- oci-bundle: https://slurm.schedmd.com/srun.html, --container; https://slurm.schedmd.com/containers.html
- shifter: https://shifter.readthedocs.io/en/latest/command/shifter.html, and long_options in src/shifter.c
- podman-hpc: https://github.com/NERSC/podman-hpc, etc/modules.d (--gpu, --mpi ...);
  https://docs.podman.io/en/stable/markdown/podman-run.1.html
- ch-run: https://manpages.ubuntu.com/manpages/questing/man1/ch-run.1.html (0.38)
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple, NoReturn


class Options(NamedTuple):
    """Options by name: those with a value, those without, and the single letters that take a value."""

    valued: str
    flags: str = ""
    letters: str = ""


SRUN = {
    "pyxis": Options(
        "container-image container-mounts container-workdir container-name container-save container-env",
        "container-mount-home no-container-mount-home container-remap-root no-container-remap-root container-entrypoint "
        "no-container-entrypoint container-entrypoint-log container-writable container-readonly",
    ),
    "edf": Options("environment"),
    "uenv": Options("uenv view repo uenv-passthrough", "no-default-view"),
    "oci-bundle": Options("container"),
}
PROGRAMS = {
    "shifter": Options(
        "volume image entrypoint workdir module env env-file", "help verbose entry clearenv", "Viwme"
    ),
    "podman-hpc": Options(
        "network net ipc pid entrypoint volume mount workdir env env-file shm-size user userns name device ulimit "
        "security-opt",
        "rm gpu mpi cuda-mpi nccl cvmfs home scratch cfs openmpi-pmi2 openmpi-pmix interactive tty privileged read-only "
        "no-healthcheck init",
        "vweul",
    ),
    "ch-run": Options(
        "bind cd feature gid join-ct join-pid join-tag mount storage uid unset-env",
        "env-no-expand home join no-passwd private-tmp set-env unsafe verbose write write-fake quiet",
        "bcgmsu",
    ),
}
EDF_KEYS = {
    "base_environment", "image", "workdir", "entrypoint", "writable", "mounts", "env", "annotations", "devices",
}  # fmt: skip


def refuse(text: str) -> NoReturn:
    """End as a real one does where it is asked for what it does not know."""
    sys.exit(f"stand-in: {text}")


def read(known: Options, words: list[str], *, strict: bool = True) -> tuple[dict[str, list[str]], list[str]]:
    """The options, and the words that are not: what follows them, or with ``strict=False`` what srun is to judge."""
    found: dict[str, list[str]] = {}
    others: list[str] = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        word = words[at]
        name, has_value, value = word.lstrip("-").partition("=")
        letter = not word.startswith("--")
        at += 1
        if name in (list(known.letters) if letter else known.valued.split()):
            if not has_value:
                value, at = words[at], at + 1
        elif letter or name not in known.flags.split() or has_value:
            if strict:
                refuse(f"{word}: the documentation has no such word")
            others.append(word)
            continue
        found.setdefault(name, []).append(value)
    return found, others + words[at:]


def enter(
    name: str, asked: dict[str, list[str]], env: dict[str, str], folder: str, command: list[str]
) -> NoReturn:
    """Say what was asked; run the command in this folder, with this environment."""
    said = {"runtime": name, **asked}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    os.chdir(folder)
    os.execvpe(command[0], command, {**env, "IN_IMAGE": name})


def mounts_of(given: list[str], *, separator: str = ",") -> dict[str, str]:
    """Folders inside, and those of the host behind them; each must be SRC:DST[:FLAGS], and there."""
    found = {}
    for mount in (one for text in given for one in text.split(separator)):
        host, *rest = mount.split(":")
        if not re.fullmatch(r"[./][^:]*:[./][^:]*(:[a-z+]+)?", mount):
            refuse(f"mount {mount!r}: not SRC:DST[:FLAGS] with paths")
        if not Path(host).exists():
            refuse(f"mount {mount!r}: {host} is not there")
        found[rest[0]] = host
    return found


def on_host(folder: str, mounts: dict[str, str]) -> str:
    """Where a folder inside lies on the host; refused where nobody mounted it."""
    for inside, host in sorted(mounts.items(), reverse=True):
        if Path(folder).is_relative_to(inside):
            return str(Path(host) / Path(folder).relative_to(inside))
    refuse(f"the work folder {folder} is in no mount: {sorted(mounts)}")


def pyxis(asked: dict[str, list[str]], command: list[str]) -> NoReturn:
    """All of the host's exported variables get in; of its folders, only those that are mounted."""
    (image,) = asked["container-image"]
    if not re.fullmatch(r"[./].*|([\w.-]+@)?([\w.:-]+#)?[\w./-]+(:[\w.-]+)?", image):
        refuse(f"pyxis: {image!r}: not [USER@][REGISTRY#]IMAGE[:TAG], nor a path")
    if image.startswith((".", "/")) and not Path(image).exists():
        refuse(f"pyxis: no such file {image}")
    mounts = mounts_of(asked.get("container-mounts", []))
    folder = asked.get("container-workdir", ["/"])[0]
    enter("pyxis", asked, dict(os.environ), on_host(folder, mounts) if folder != "/" else "/", command)


def edf(asked: dict[str, list[str]], command: list[str]) -> NoReturn:
    """A name is looked for in EDF_PATH, or ~/.edf; a relative path begins with ``./``; without workdir it is the image's."""
    import tomllib

    (name,) = asked["environment"]
    if name.startswith(("/", "./")):
        file = Path(name)
    else:
        places = os.environ.get("EDF_PATH", f"{Path.home()}/.edf").split(":")
        file = next(
            (one for one in (Path(place) / f"{name}.toml" for place in places) if one.exists()), Path()
        )
    if not file.is_file():
        refuse(f"edf: {name!r} is neither a path nor in EDF_PATH")
    text = re.sub(r"\$\{(\w+)\}", lambda match: os.environ[match[1]], file.read_text())
    read_in: dict[str, Any] = tomllib.loads(text)
    if unknown := set(read_in) - EDF_KEYS:
        refuse(f"edf: {unknown}: the documentation has no such entry")
    mounts = mounts_of(read_in.get("mounts", []))
    folder = read_in.get("workdir", "/")
    env = {**os.environ, **read_in.get("env", {})}
    asked = {**asked, "image": [read_in["image"]]}
    enter("edf", asked, env, on_host(folder, mounts) if folder != "/" else "/", command)


def uenv(asked: dict[str, list[str]], command: list[str]) -> NoReturn:
    """The host stays in sight, and its variables are as they were; a label, a file, or several with commas."""
    for image in asked["uenv"][0].split(","):
        if not re.fullmatch(r"/.*\.squashfs(:/\S+)?|[\w.-]+(/[\w.-]+)?(:[\w.-]+)?(@\w+)?", image):
            refuse(f"uenv: {image!r}: not NAME[/VERSION][:TAG], nor the full path of a SquashFS file")
    enter("uenv", asked, dict(os.environ), str(Path.cwd()), command)


def oci_bundle(asked: dict[str, list[str]], command: list[str]) -> NoReturn:
    """The bundle is a folder with a config.json; that its cwd holds is the OCI runtime's to see to."""
    (bundle,) = asked["container"]
    config = json.loads((Path(bundle) / "config.json").read_text())
    inside = {mount["destination"]: mount["source"] for mount in config["mounts"]}
    enter("oci-bundle", asked, dict(os.environ), on_host(config["process"]["cwd"], inside), command)


def shifter(words: list[str]) -> NoReturn:
    """All variables and the site's folders are as outside; nothing may be mounted over the system's folders."""
    asked, command = read(PROGRAMS["shifter"], words)
    if not re.match(r"(docker|id|custom|local):[\w./:-]+\Z", asked["image"][0]):
        refuse(f"shifter: {asked['image']}: need image_type:image_desc")
    for inside in mounts_of(asked.get("volume", []), separator=";"):
        if re.match(r"/(dev|etc|opt/udiImage|proc|var)(/|\Z)", inside):
            refuse(f"shifter: nothing may be mounted at {inside}")
    enter("shifter", asked, dict(os.environ), asked.get("workdir", ["."])[0], command)


def podman(words: list[str]) -> NoReturn:
    """A new environment, with what ``-e`` names; of the host's folders, only those of ``-v``."""
    if words[:1] != ["run"]:
        refuse("podman-hpc: only run runs a command")
    asked, (image, *command) = read(PROGRAMS["podman-hpc"], words[1:])
    if image.startswith("-") or not command:
        refuse(f"podman-hpc: {image!r} and {command}: an image and a command must follow the options")
    passed = [*asked.get("e", []), *asked.get("env", [])]
    kept = {
        name: value
        for name, value in os.environ.items()
        if any(fnmatch.fnmatchcase(name, one) for one in passed)
    }
    kept |= {name: os.environ[name] for name in ("PATH", "HOME")}  # the image has its own
    mounts = mounts_of([*asked.get("v", []), *asked.get("volume", [])], separator="\n")
    enter("podman-hpc", {**asked, "image": [image]}, kept, on_host(asked["w"][0], mounts), command)


def charliecloud(words: list[str]) -> NoReturn:
    """``[OPTION...] IMAGE -- COMMAND``; a folder that is mounted must be in the image, or made there by --write-fake."""
    asked, (image, dashes, *command) = read(PROGRAMS["ch-run"], words)
    if dashes != "--" or not Path(image).is_dir():
        refuse(f"ch-run: {image!r} is no folder, or -- does not follow it")
    mounts = dict.fromkeys(one.rpartition(":")[2] for one in asked["bind"])
    absent = [one for one in mounts if not (Path(image) / one.lstrip("/")).is_dir()]
    if absent and "write-fake" not in asked:
        refuse(f"ch-run: {absent} not in the image")
    enter("charliecloud", asked, dict(os.environ), asked["cd"][0], command)


def main(name: str, words: list[str]) -> NoReturn:
    """Be the program of that name; with ``in:`` before it, what srun's plug-in does in a task."""
    runtime, _, rest = name.partition(":")
    if runtime == "in":
        asked = json.loads(words[0])
        {"pyxis": pyxis, "edf": edf, "uenv": uenv, "oci-bundle": oci_bundle}[rest](asked, words[1:])
    if name == "shifter":
        shifter(words)
    if name == "podman-hpc":
        podman(words)
    if name == "ch-run":
        charliecloud(words)
    asked, others = read(SRUN[rest], words, strict=False)
    real = os.environ["STAND_IN_SRUN"]
    at = next((i for i, word in enumerate(others) if not word.startswith("-")), len(others))
    entry = [sys.executable, __file__, f"in:{rest}", json.dumps(asked)] if asked else []
    os.execv(real, [real, *others[:at], *entry, *others[at:]])


def write(folder: Path, runtime: str) -> None:
    """Put the program that enters this runtime into a folder for PATH."""
    program = {"charliecloud": "ch-run"}.get(runtime, runtime)
    program, name = ("srun", f"srun:{runtime}") if runtime in SRUN else (program, program)
    folder.mkdir(exist_ok=True)
    file = folder / program
    file.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} {name} "$@"\n')
    file.chmod(0o755)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
