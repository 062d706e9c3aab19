"""Every option of sbatch, and how sbatch finds one by its name, an abbreviation or a letter.

Asked of the sbatch of 20.11, 22.05, 24.11 and 26.05 themselves; what getopt_long(3) says of abbreviations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

__all__ = ["NEWEST", "OPTIONS", "SHORT", "OptionInfo", "Release", "Takes", "abbreviated", "canonical"]

Release = tuple[int, int]
Takes = Literal["none", "required", "optional"]

OLDEST: Release = (20, 11)
NEWEST: Release = (26, 5)


class OptionInfo(NamedTuple):
    """One option of sbatch. An optional value stands after ``=``, never in the next word."""

    name: str
    takes: Takes
    since: Release = OLDEST
    """The oldest of the four releases that has it."""
    until: Release = NEWEST
    """The newest that has it."""
    plugin: bool = False
    """A site's plug-in brings it; sbatch of another site refuses it."""

    def there(self, release: Release) -> bool:
        """Whether a release has it."""
        return self.since <= release <= self.until


_REQUIRED = """
account acctg-freq array batch bb bbf begin chdir cluster cluster-constraint clusters comment constraint core-spec
cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude export
export-file extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint
input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus
network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres
open-mode output partition priority profile qos reservation signal sockets-per-node switches tasks-per-node thread-spec
threads-per-core time time-min tmp uid wait-all-nodes wckey wrap
"""
_NONE = """
contiguous help hold ignore-pbs no-requeue overcommit oversubscribe parsable quiet reboot spread-job test-only usage
use-min-nodes verbose version wait
"""
# --requeue takes a value in 26.05 only, --get-user-env in all before it.
_OPTIONAL = "exclusive get-user-env nice no-kill propagate requeue"
_LATER: tuple[tuple[Release, Takes, str], ...] = (
    ((22, 5), "required", "container context prefer"),
    ((24, 11), "required", "autocomplete container-id extra segment tres-bind tres-per-task"),
    ((24, 11), "optional", "oom-kill-step resv-ports"),
    ((24, 11), "none", "stepmgr"),
    ((26, 5), "required", "container-type mem-update resources"),
    ((26, 5), "none", "consolidate-segments external spread-segments"),
)
# What published scripts use of pyxis, Shifter and uenv; the sites' own are without number.
_PLUGIN_REQUIRED = """
container-image container-mounts container-workdir container-name container-save container-env environment image module
uenv view volume
"""
_PLUGIN_NONE = """
container-mount-home no-container-mount-home container-remap-root no-container-remap-root container-writable
container-readonly container-entrypoint no-container-entrypoint
"""


def _all() -> Iterator[OptionInfo]:
    kinds: tuple[tuple[Takes, str], ...] = (("required", _REQUIRED), ("none", _NONE), ("optional", _OPTIONAL))
    for takes, names in kinds:
        yield from (OptionInfo(name, takes) for name in names.split())
    for since, takes, names in _LATER:
        yield from (OptionInfo(name, takes, since=since) for name in names.split())
    yield OptionInfo("power", "required", until=(22, 5))
    yield from (OptionInfo(name, "required", plugin=True) for name in _PLUGIN_REQUIRED.split())
    yield from (OptionInfo(name, "none", plugin=True) for name in _PLUGIN_NONE.split())


OPTIONS: dict[str, OptionInfo] = {option.name: option for option in _all()}
"""By long name, the two aliases (see ``canonical``) included."""

SHORT: dict[str, str] = {
    "a": "array", "A": "account", "b": "begin", "B": "extra-node-info", "c": "cpus-per-task", "C": "constraint",
    "d": "dependency", "D": "chdir", "e": "error", "F": "nodefile", "G": "gpus", "h": "help", "H": "hold",
    "i": "input", "J": "job-name", "k": "no-kill", "L": "licenses", "m": "distribution", "M": "clusters",
    "n": "ntasks", "N": "nodes", "o": "output", "O": "overcommit", "p": "partition", "q": "qos", "Q": "quiet",
    "s": "oversubscribe", "S": "core-spec", "t": "time", "v": "verbose", "V": "version", "w": "nodelist",
    "W": "wait", "x": "exclude",
}  # fmt: skip
"""Long names by letter."""

_ALIASES = {"tasks-per-node": "ntasks-per-node", "cluster": "clusters"}


def canonical(name: str) -> str:
    """The long name that an alias stands for; any other name as it is."""
    return _ALIASES.get(name, name)


def abbreviated(word: str, release: Release | None = None) -> list[str]:
    """The options that ``word`` (without its dashes) can mean: one if it is clear, several if not, none if unknown.

    An exact name means itself. Without a release, an abbreviation that only some releases can tell apart means
    what these find.
    """
    if word in OPTIONS:
        return [word] if release is None or OPTIONS[word].there(release) else []
    found = [option for option in OPTIONS.values() if option.name.startswith(word) and not option.plugin]
    if release is not None:
        return _names(option for option in found if option.there(release))
    everywhere = _names(option for option in found if option.there(OLDEST) and option.there(NEWEST))
    return everywhere if len(everywhere) == 1 else _names(found)


def _names(options: Iterator[OptionInfo] | list[OptionInfo]) -> list[str]:
    return sorted(option.name for option in options)
