"""The line of apptainer (1.1 to 1.4) and singularity: global options, the action, its options, the image, the command.

Read in apptainer's cmd/internal/cli/action_flags.go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurmgpu.lines.options import Line, table

__all__ = ["PROGRAMS", "ContainerLine", "read_container"]

PROGRAMS = ("apptainer", "singularity")
"""The programs that are called so."""

_GLOBAL_NONE = "build-config debug help nocolor quiet silent verbose version"
_REQUIRED = """
add-caps app apply-cgroups authfile bind blkio-weight blkio-weight-device cdi-dirs containlibs cpu-shares cpus
cpuset-cpus cpuset-mems cwd device dmtcp-launch dmtcp-restart dns docker-host docker-password docker-username drop-caps
env env-file fakerootpath fusemount home hostname memory memory-reservation memory-swap mount netns-path network
network-args no-mount overlay pem-path pids-limit pwd runscript-timeout scratch security shell tmpdir workdir
"""
_NONE = """
allow-setuid boot cleanenv compat contain containall disable-cache docker-login fakeroot help ignore-fakeroot-command
ignore-subuid ignore-userns ipc keep-privs net no-compat no-eval no-home no-https no-init no-nv no-oci no-pid no-privs
no-rocm no-tmp-sandbox no-umask nohttps nv nvccli oci oom-kill-disable passphrase pid rocm sharens tmp-sandbox underlay
unsquash userns uts vm writable writable-tmpfs
"""
_LETTERS = {
    "B": "bind", "c": "contain", "C": "containall", "e": "cleanenv", "f": "fakeroot", "h": "help", "H": "home",
    "i": "ipc", "n": "net", "o": "overlay", "p": "pid", "s": "shell", "S": "scratch", "u": "userns", "w": "writable",
    "W": "workdir",
}  # fmt: skip
_GLOBAL_LETTERS = {"c": "config", "d": "debug", "h": "help", "q": "quiet", "s": "silent", "v": "verbose"}
_GLOBAL = table("config", _GLOBAL_NONE, _GLOBAL_LETTERS, abbreviates=False, underscores=False)
_ACTION = table(_REQUIRED, _NONE, _LETTERS, abbreviates=False, underscores=False)


class ContainerLine(NamedTuple):
    """A call of a container's runtime."""

    action: str
    """exec, run, ...; empty where none is named."""
    line: Line
    """The action's options; their indices, and its ``end``, are those of the words that were read."""
    image: str
    command: tuple[str, ...]

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables that ``--env`` sets."""
        texts = [one.value or "" for one in self.line.options if one.name == "env"]
        pairs = (pair.partition("=") for text in texts for pair in text.split(","))
        return {name: value for name, _, value in pairs}

    @property
    def pwd(self) -> str:
        """The work folder in the container, empty where none is named."""
        return next(
            (one.value or "" for one in reversed(self.line.options) if one.name in ("pwd", "cwd")), ""
        )


def read_container(words: Sequence[str]) -> ContainerLine:
    """Read what follows the runtime's own name."""
    start = _GLOBAL.read(words).end
    line = _ACTION.read(words, start + 1)
    rest = words[line.end :]
    return ContainerLine("".join(words[start : start + 1]), line, "".join(rest[:1]), tuple(rest[1:]))
