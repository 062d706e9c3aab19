"""Earlier results for this task on this kind of device: a file for each in the user's cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, Union

import torch

from ..files import write_json
from ..settings import Settings
from ..task import Task
from .memory import Budget
from .search import Tried

__all__ = ["Known", "facts_of", "path_of", "read", "write"]

SCHEMA = "slurmgpu.micro-batch/1"
_OWN = Path(__file__).parents[1]
"""This package, which a submission copies into each run's folder."""
_MORE = 1.1
"""With so much more memory than there was, sizes that did not fit may fit now."""
# Settings that change no step's memory.
_FREE = {
    "task", "epochs", "max_steps", "batch_size", "accumulate", "micro_batch", "eval_micro_batch", "drop_last", "lr",
    "weight_decay", "schedule", "warmup_steps", "seed", "workers", "init_scale", "checkpoint_every", "checkpoint_steps",
    "checkpoint_shared_steps", "checkpoint_node_folder", "keep", "keep_every", "resume", "stop_margin", "hang_timeout",
    "log_every", "checksum_steps", "verify_steps", "mismatch", "profile", "profile_after", "profile_steps",
    "profile_stacks", "profile_snapshot", "nvtx",
    "track", "peak_flops", "timeout", "device", "evaluate_every", "evaluate_steps", "log_grad_norm", "broadcast_buffers",
    "best", "early_stop",
}  # fmt: skip


@dataclass
class Known:
    """Sizes of a step that were tried, and of an evaluation; ``budget``: bytes that they were tried with."""

    budget: int = 0
    steps: list[Tried] = field(default_factory=list)
    evaluations: list[Tried] = field(default_factory=list)


def path_of(task: Task, budget: Budget, environment: Mapping[str, str]) -> Path:
    """Return the file for a task and a kind of device."""
    which = f"slurmgpu:{task.path.stem}" if _OWN in task.path.parents else str(task.path)
    home = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or Path.home(), ".cache")
    name = hashlib.sha256(f"{which}\n{budget.device}\n{budget.total}".encode()).hexdigest()[:16]
    return Path(home, "slurmgpu", "micro-batch", f"{task.path.stem}-{name}.json")


def facts_of(task: Task, settings: Settings, together: Union[bool, int]) -> dict[str, object]:
    """Return what a size depends on beside the device; what is known counts only as long as all of it is the same.

    ``together``: whether there are several processes; how many, where it depends on that.
    """
    kept = {name: value for name, value in settings.as_dict().items() if name not in _FREE}
    return {
        "task": settings.task.rpartition(":")[2],
        "code": _code(task.path),
        "settings": kept,
        "torch": torch.__version__,
        "several processes": together,
    }


def _code(path: Path) -> str:
    """Return the SHA-256 of the task's file and of the modules in its folder that are loaded.

    The run's copy of this package may lie in that folder, too; it is none of the task's code.
    """
    files, others = {path}, set() if _OWN in path.parents else {_OWN}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or "site-packages" in file:
            continue
        if path.parent in Path(file).parents and not others & set(Path(file).parents):
            files.add(Path(file))
    digest = hashlib.sha256()
    for each in sorted(files):
        with contextlib.suppress(OSError):
            digest.update(str(each.relative_to(path.parent)).encode() + each.read_bytes())
    return digest.hexdigest()


def read(path: Path, facts: Mapping[str, object], budget: Budget) -> tuple[Known, Optional[str]]:
    """Return what is known, and why what the file says does not count, where it does not."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Known(), None
    except (OSError, ValueError) as error:
        return Known(), f"cannot be read ({error})"
    try:
        document = json.loads(text)
        known = _known(document)
        then = document["facts"]
        differs = [name for name in facts if then.get(name) != json.loads(json.dumps(facts[name]))]
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        return Known(), "is not what was written there"
    if differs:
        return Known(), f"is of another state of: {', '.join(differs)}"
    if budget.bytes > _MORE * known.budget and not all(each.fits for each in known.steps + known.evaluations):
        return Known(), "was made where less memory was free"
    peaks = [each.peak for each in known.steps + known.evaluations if each.fits and each.peak is not None]
    if max(peaks, default=0) > budget.bytes:
        return Known(), "was made where more memory was free"
    return known, None


def _known(document: Any) -> Known:
    if document["schema"] != SCHEMA or type(document["budget"]) is not int:
        raise ValueError
    lists = [[_tried(each) for each in document[name]] for name in ("steps", "evaluations")]
    return Known(document["budget"], *lists)


def _tried(values: Any) -> Tried:
    size, fits, peak = values
    if type(size) is not int or size < 1 or type(fits) is not bool or type(peak) not in (int, type(None)):
        raise ValueError
    return Tried(size, fits, peak)


def write(path: Path, facts: Mapping[str, object], known: Known) -> None:
    """Keep it; a home that cannot be written to costs the search of the next run."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "schema": SCHEMA,
            "facts": facts,
            "budget": known.budget,
            "steps": [list(each) for each in known.steps],
            "evaluations": [list(each) for each in known.evaluations],
        }
        write_json(path, document)
